"""``autotune-plan/bench@1``: the JSON of ``bench``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from autotune_planner.proof.bench import Bench, Gain, PassResult, SizeResult
from autotune_planner.proof.medians import CONFIDENCE, Interval
from autotune_planner.proof.whole_op import ROUNDS

SCHEMA = "autotune-plan/bench@1"
_DIGITS = 4  # significant, beyond which a time is noise


def bench_document(bench: Bench) -> dict[str, Any]:
    """Times in microseconds with their intervals; gains as ratios of times."""
    return {
        "schema": SCHEMA,
        "device": bench.device,
        "file": bench.path,
        "against": bench.against,
        "metadata": dict(bench.machine.metadata),
        "gpu": bench.machine.gpu,
        "rounds": ROUNDS,
        "confidence": CONFIDENCE,
        "sizes": [_size(result) for result in bench.sizes],
        "passes": [_pass(result) for result in bench.passes],
        "passes_left_out": [
            {"pass": each.phase, "sizes_measured": each.measured, "sizes_planned": each.planned}
            for each in bench.passes_left_out
        ],
    }


def _size(result: SizeResult) -> dict[str, Any]:
    return {
        "layers": list(result.layers),
        "op": result.call.family,
        "shape": result.call.label,
        "m": result.m,
        "l2": result.l2,
        **_measured(result.times, result.gains),
        "tactics": {variant: dict(tactics) for variant, tactics in result.tactics.items()},
    }


def _pass(result: PassResult) -> dict[str, Any]:
    return {"pass": result.phase, "l2": result.l2, **_measured(result.times, result.gains)}


def _measured(times: Mapping[str, Interval], gains: Sequence[Gain]) -> dict[str, Any]:
    return {
        "us": {variant: _interval(interval) for variant, interval in times.items()},
        "gains": [{"over": gain.over, **_interval(gain.ratio), "verdict": gain.verdict} for gain in gains],
    }


def _interval(interval: Interval) -> dict[str, float]:
    return {name: float(f"{value:.{_DIGITS}g}") for name, value in asdict(interval).items()}
