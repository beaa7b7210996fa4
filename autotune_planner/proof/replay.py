"""Replay of published files in a fresh process, exactly as the server loads them: every lookup and timing counted.

Source of the steps: SGLang 0.5.23, ``runner/flashinfer_autotune.py:flashinfer_autotune_context``: ``load_configs``,
then the tuning contexts with the default tactic racing, then the calls. A size that misses would be timed there; here
it is only counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from autotune_planner.deployment.model import Gpu
from autotune_planner.ops.base import Bind, OpCall
from autotune_planner.proof.fresh import in_fresh_process
from autotune_planner.tuning import flashinfer_internals as internals
from autotune_planner.tuning.child import flashinfer_child
from autotune_planner.tuning.contexts import tuning_contexts
from autotune_planner.tuning.devices import DeviceKind
from autotune_planner.tuning.flashinfer_internals import Lookup

Stage = Literal["start", "capture", "eager"]


@dataclass(frozen=True)
class Step:
    """One call of one op with M = m tokens. ``start``: inside the contexts in which the server tunes; ``capture``: as
    when a CUDA graph of that size is captured; ``eager``: as in serving without a graph."""

    call: OpCall
    m: int
    stage: Stage = "start"


@dataclass(frozen=True)
class Replayed:
    """What the tuner looked up for one step, in order."""

    step: Step
    lookups: tuple[Lookup, ...]

    @property
    def hits(self) -> tuple[str, ...]:
        """Custom ops of the lookups that found an entry."""
        return tuple(lookup.custom_op for lookup in self.lookups if lookup.hit)

    @property
    def misses(self) -> tuple[str, ...]:
        return tuple(lookup.custom_op for lookup in self.lookups if not lookup.hit)

    @property
    def timings(self) -> int:
        """Tactics that the server would time here."""
        return sum(lookup.timings for lookup in self.lookups)


@dataclass(frozen=True)
class ReplayReport:
    """``loads`` is what FlashInfer's ``load_configs`` said of each file; ``metadata`` its stamp of the process."""

    loads: tuple[bool, ...]
    metadata: Mapping[str, str]
    calls: tuple[Replayed, ...]

    @property
    def loaded(self) -> bool:
        return all(self.loads)

    @property
    def served(self) -> bool:
        """Every file was loaded, every call hit and nothing was timed."""
        return self.loaded and not any(replayed.misses or replayed.timings for replayed in self.calls)


def replay(paths: Sequence[str], steps: Sequence[Step], *, device: DeviceKind, gpu: Gpu, log_path: str) -> ReplayReport:
    """Load each of ``paths`` by itself in a fresh process; with the first one loaded, take the steps in order."""
    arguments = tuple(paths), tuple(steps), device, gpu, log_path
    return in_fresh_process(_replay, *arguments, device=device, what="replay", log_path=log_path)


def _replay(
    paths: tuple[str, ...], steps: tuple[Step, ...], device: DeviceKind, gpu: Gpu, log_path: str
) -> ReplayReport:
    timer: internals.Timer | None = None if device == "cuda" else lambda *_: 1.0  # never asked
    with flashinfer_child(log_path, gpu, timer) as tensors, internals.watched_tuner(only_count=True) as watch:
        from flashinfer.autotuner import AutoTuner

        tuner, loads = AutoTuner.get(), []
        for path in reversed(paths):  # the first comes last and stays
            tuner.clear_cache()
            loads.append(tuner.load_configs(path))
        replayed: list[Replayed] = []
        prepared: tuple[OpCall, Bind] | None = None
        for step in steps:
            if prepared is None or prepared[0] != step.call:
                prepared = None  # frees the weights before the next ones are made
                prepared = step.call, step.call.prepare(tensors)
            watch.reset()
            with tuning_contexts(None) if step.stage == "start" else contextlib.nullcontext():
                prepared[1](step.m)()
            replayed.append(Replayed(step, tuple(watch.lookups)))
        return ReplayReport(tuple(reversed(loads)), internals.collect_metadata(), tuple(replayed))
