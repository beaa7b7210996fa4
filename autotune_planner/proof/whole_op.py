"""Times of whole ops, as a server calls them, under several caches: CUDA graphs, interleaved, hot and cold L2.

Each op is captured in one CUDA graph per variant, with that variant's file loaded, at the server's own call. In every
round each variant is sampled once, forwards and backwards in turn, so that a drifting clock meets all alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autotune_planner.deployment.model import Gpu
from autotune_planner.errors import CacheFileError
from autotune_planner.ops.base import Bind, OpCall
from autotune_planner.proof.fresh import in_fresh_process
from autotune_planner.tuning import flashinfer_internals as internals
from autotune_planner.tuning.child import flashinfer_child
from autotune_planner.tuning.devices import DeviceKind
from autotune_planner.tuning.gpu_state import gpu_state
from autotune_planner.tuning.simulated import CostModel

L2 = Literal["hot", "cold"]
L2_STATES: tuple[L2, ...] = ("hot", "cold")

ROUNDS = 31
_SAMPLE_US = 2000.0  # of a hot sample: so many replays back to back as fill it
_WARM_UPS = 3
_L2_TIMES = 3  # as much memory as this many L2 caches is written between cold samples
_NOISE = 0.005  # of a sample on the simulated device
_SEED = 0


@dataclass(frozen=True)
class Variant:
    """One cache to measure with. ``path`` None: FlashInfer's default tactics."""

    name: str
    path: str | None


@dataclass(frozen=True)
class Timed:
    """One call with M = m tokens: samples in microseconds by variant and L2 state, and the tactics that ran."""

    call: OpCall
    m: int
    samples: Mapping[L2, Mapping[str, tuple[float, ...]]]
    tactics: Mapping[str, tuple[tuple[str, Any], ...]]


@dataclass(frozen=True)
class Machine:
    """What measured: FlashInfer's stamp, and the GPU's clocks and temperature afterwards (None where not known)."""

    metadata: Mapping[str, str]
    gpu: Mapping[str, Any] | None


def time_ops(
    calls: Sequence[tuple[OpCall, int]], variants: Sequence[Variant], *, device: DeviceKind, gpu: Gpu, log_path: str
) -> tuple[tuple[Timed, ...], Machine]:
    """Time each (call, M) in one fresh process. ``CacheFileError`` for a file that FlashInfer does not load there."""
    arguments = tuple(calls), tuple(variants), device, gpu, log_path
    timed, machine, refused = in_fresh_process(_time_ops, *arguments, device=device, what="bench", log_path=log_path)
    if refused is not None:
        raise CacheFileError(
            "FlashInfer does not load this file here: it was made in another environment",
            code="not-loaded",
            where=refused,
            hint="autotune-plan check says in which field they differ",
        )
    return timed, machine


def _time_ops(
    calls: Sequence[tuple[OpCall, int]], variants: Sequence[Variant], device: DeviceKind, gpu: Gpu, log_path: str
) -> tuple[tuple[Timed, ...], Machine, str | None]:
    model = CostModel(gpu, _SEED) if device == "simulated" else None
    with flashinfer_child(log_path, gpu, model) as tensors:
        metadata = internals.collect_metadata()
        refused = next((variant.path for variant in variants if not _load(variant)), None)
        if refused is not None:
            return (), Machine(metadata, None), refused
        timed: list[Timed] = []
        prepared: tuple[OpCall, Bind] | None = None
        for call, m in calls:
            if prepared is None or prepared[0] != call:
                prepared = None  # frees the weights before the next ones are made
                prepared = call, call.prepare(tensors)
            timed.append(_time_size(call, m, prepared[1](m), variants, on_gpu=model is None))
        return tuple(timed), Machine(metadata, gpu_state() if model is None else None), None


def _load(variant: Variant) -> bool:
    """Put the variant's entries, and nothing else, before the tuner."""
    from flashinfer.autotuner import AutoTuner

    AutoTuner.get().clear_cache()
    return variant.path is None or bool(AutoTuner.get().load_configs(variant.path))


def _time_size(call: OpCall, m: int, launch: Callable[[], Any], variants: Sequence[Variant], *, on_gpu: bool) -> Timed:
    tactics, samplers = {}, {}
    for variant in variants:
        _load(variant)
        with internals.watched_choices(timed=not on_gpu) as chosen:
            launch()
        tactics[variant.name] = tuple((choice.custom_op, choice.tactic) for choice in chosen)
        samplers[variant.name] = _Graph(launch) if on_gpu else _Modelled(variant.name, chosen)
    samples = {}
    for state in L2_STATES:
        found: dict[str, list[float]] = {name: [] for name in samplers}
        for number in range(ROUNDS):
            for name in list(samplers)[:: -1 if number % 2 else 1]:
                found[name].append(samplers[name].sample(state))
        samples[state] = {name: tuple(values) for name, values in found.items()}
    return Timed(call, m, samples, tactics)


class _Modelled:
    """Samples of the cost model, whose own answer never varies, with noise. It knows no L2 state."""

    def __init__(self, name: str, chosen: Sequence[internals.Chosen]) -> None:
        self._us = 1e3 * sum(choice.ms or 0.0 for choice in chosen)
        self._random = random.Random(f"{_SEED} {name} {chosen}")

    def sample(self, state: L2) -> float:
        return self._us * self._random.gauss(1.0, _NOISE)


class _Graph:
    """One launch captured in a CUDA graph. A hot sample is of replays back to back, a cold one of a single replay
    after the L2 cache was written over."""

    def __init__(self, launch: Callable[[], Any]) -> None:
        import torch

        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                launch()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            launch()
        l2_bytes = int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
        self._evicting = torch.empty(_L2_TIMES * l2_bytes, dtype=torch.uint8, device="cuda")
        self._time(_WARM_UPS)
        self._replays = max(1, round(_SAMPLE_US / self._time(_WARM_UPS)))

    def sample(self, state: L2) -> float:
        """Microseconds of one replay."""
        if state == "hot":
            return self._time(self._replays)
        self._evicting.zero_()
        return self._time(1)

    def _time(self, replays: int) -> float:
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(replays):
            self._graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / replays
