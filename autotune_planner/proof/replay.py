"""Replay of a published file in a fresh process, exactly as the server loads it: hits, misses and timings counted.

Source of the steps: SGLang 0.5.23, ``runner/flashinfer_autotune.py:flashinfer_autotune_context``: ``load_configs``,
then the tuning contexts with the default tactic racing, then the calls. A size that misses would be timed there.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from autotune_planner.deployment.model import Gpu
from autotune_planner.errors import NotPossibleHereError
from autotune_planner.ops.base import OpCall
from autotune_planner.tuning import flashinfer_internals as internals
from autotune_planner.tuning.child import flashinfer_child
from autotune_planner.tuning.contexts import tuning_contexts
from autotune_planner.tuning.devices import DeviceKind


@dataclass(frozen=True)
class Replayed:
    """One call of one op with M tokens. ``misses`` are custom ops that found no entry, ``timings`` tactics timed."""

    call: OpCall
    m: int
    hits: tuple[str, ...]
    misses: tuple[str, ...]
    timings: int


@dataclass(frozen=True)
class ReplayReport:
    """``loaded`` is what FlashInfer's ``load_configs`` said of the file in this environment."""

    loaded: bool
    calls: tuple[Replayed, ...]

    @property
    def served(self) -> bool:
        """Every call hit and nothing was timed."""
        return self.loaded and not any(replayed.misses or replayed.timings for replayed in self.calls)


def replay(
    path: str, calls: Sequence[OpCall], sizes: Sequence[int], *, device: DeviceKind, gpu: Gpu, log_path: str
) -> ReplayReport:
    """Load ``path`` in a fresh process and make every call at every size (tokens), in the server's contexts."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(
        target=_replay, args=(sender, path, tuple(calls), tuple(sizes), device, gpu, log_path), daemon=True
    )
    child.start()
    sender.close()
    try:
        report: ReplayReport = receiver.recv()
    except EOFError:
        child.join()
        raise NotPossibleHereError(
            f"the replay process ended with exit code {child.exitcode}", code="replay-failed", where=log_path
        ) from None
    child.join()
    return report


def _replay(
    sender: Connection,
    path: str,
    calls: tuple[OpCall, ...],
    sizes: tuple[int, ...],
    device: DeviceKind,
    gpu: Gpu,
    log_path: str,
) -> None:
    timer: internals.Timer | None = None if device == "cuda" else lambda *_: 1.0  # only counted, never compared
    with flashinfer_child(log_path, gpu, timer) as tensors, internals.watched_tuner() as watch:
        from flashinfer.autotuner import AutoTuner

        loaded = AutoTuner.get().load_configs(path)
        replayed = []
        for call in calls:
            bind = call.prepare(tensors)
            for m in sizes:
                watch.reset()
                with tuning_contexts(None):
                    bind(m)()
                replayed.append(Replayed(call, m, tuple(watch.hits), tuple(watch.misses), watch.timings))
            del bind
        sender.send(ReplayReport(loaded, tuple(replayed)))
