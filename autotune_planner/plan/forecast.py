"""How long tuning will take, before it is started: profiles x tactics x time. All times in seconds.

A launch is taken from the GPU's roofline: the larger of bytes over bandwidth and operations over peak rate. What a
search adds to it (slow tactics, repeats, waiting, the check of its winner) is measured, ``profiles/search.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune_planner import profiles
from autotune_planner.deployment.model import Gpu
from autotune_planner.ops.base import OpCall
from autotune_planner.ops.tensors import bytes_of
from autotune_planner.plan.plan import WorkUnit
from autotune_planner.values import dataclass

_UNKNOWN_GPU = "H200-141G"  # whose figures stand in for a GPU without a profile


@dataclass(frozen=True)
class UnitForecast:
    """``candidates`` counts the default tactic; ``launch_seconds`` is one launch at the roofline."""

    unit: WorkUnit
    candidates: int
    launch_seconds: float
    seconds: float


def forecast_units(units: Sequence[WorkUnit], gpu: Gpu, strategy: str) -> tuple[UnitForecast, ...]:
    """Each unit's search with ``strategy`` on ``gpu``; compiling is not in it."""
    table = profiles.table("search")
    figures = profiles.load("gpus", gpu.profile or _UNKNOWN_GPU)
    runners, costs = table["runners"], table["strategies"]
    return tuple(
        # a race leaves an op that is measured with a cold L2 cache to FlashInfer's own loop
        _unit(unit, figures, runners[unit.call.searched_as], costs["stock" if unit.call.cold_l2 else strategy])
        for unit in units
    )


def launch_seconds(call: OpCall, custom_op: str, m: int, figures: Mapping[str, Any]) -> float:
    """One launch of one custom op with M = m at the roofline of a GPU profile's ``figures``."""
    share = call.flops(custom_op, m) / sum(call.flops(name, m) for name in call.custom_ops)
    moved = share * (call.weight_bytes() * call.weight_share(m) + bytes_of(call.inputs(m)) + call.output(m).bytes)
    rate = figures[f"dense_{call.compute_dtype}_tflops"] * 1e12
    return float(max(moved / (figures["memory_bandwidth_gbps"] * 1e9), call.flops(custom_op, m) / rate))


def _unit(
    unit: WorkUnit, figures: Mapping[str, Any], runner: Mapping[str, Any], strategy: Mapping[str, float]
) -> UnitForecast:
    count, launch = runner["candidates"], launch_seconds(unit.call, unit.custom_op, unit.bucket, figures)
    each = strategy["per_candidate"] + strategy["launches"] * runner["slowdown"] * launch
    finals = strategy["finals"] * runner["finals"] * launch
    return UnitForecast(unit, count, launch, strategy["per_profile"] + count * each + finals)
