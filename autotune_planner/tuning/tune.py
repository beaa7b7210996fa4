"""Tune a plan: journal, workers, results. Knows nothing of files for servers or of deployments."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune_planner.ops.base import JitModule
from autotune_planner.plan.plan import Plan, WorkUnit
from autotune_planner.tuning.devices import CudaDevice, DeviceKind
from autotune_planner.tuning.journal import Journal
from autotune_planner.tuning.messages import Event, ModuleReady, UnitResult, WorkerSpec
from autotune_planner.tuning.pool import Observer, WorkerPool

_SEED = 0


@dataclass(frozen=True)
class Tuned:
    """Outcome of a run: every unit's result, resumed ones included, and FlashInfer's environment stamp.

    ``build_seconds`` is compile time, ``tuning_seconds`` wall time of tuning without it; ``resumed`` counts units that
    an earlier run had finished.
    """

    results: tuple[UnitResult, ...]
    metadata: Mapping[str, str]
    resumed: int
    build_seconds: float
    tuning_seconds: float

    @property
    def entries(self) -> dict[str, list[Any]]:
        """FlashInfer's v1 entries of all finished units: key text -> [runner, tactic, policy]."""
        return {key: value for result in self.results for key, value in result.entries.items()}

    @property
    def failures(self) -> tuple[UnitResult, ...]:
        return tuple(result for result in self.results if result.failure is not None)


def tune(
    plan: Plan,
    *,
    device: DeviceKind,
    devices: Sequence[CudaDevice] | int,
    work_dir: Path,
    fresh: bool,
    observer: Observer,
) -> Tuned:
    """Tune every work unit of ``plan`` that the journal in ``work_dir`` does not have yet.

    ``devices``: the GPUs to use, or how many virtual ones on the simulated device.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    specs = _worker_specs(plan, device, devices, work_dir)
    build_seconds = 0.0

    def watch(event: Event) -> None:
        nonlocal build_seconds
        if isinstance(event, ModuleReady):
            build_seconds += event.seconds
        observer(event)

    with WorkerPool(specs, watch) as pool:
        metadata = pool.metadata()
        journal = Journal(work_dir / "journal.jsonl", metadata)
        if fresh:
            journal.clear()
        results = journal.finished(plan.units)
        resumed = len(results)
        pending = [unit for unit in plan.units if unit not in results]
        if pending and device == "cuda":
            pool.build(_modules(pending, plan))

        def finished(result: UnitResult) -> None:
            journal.append(result)
            results[result.unit] = result

        started = time.monotonic()
        pool.tune(pending, finished)
        tuning_seconds = time.monotonic() - started
    ordered = tuple(results[unit] for unit in plan.units)
    return Tuned(ordered, metadata, resumed, build_seconds, tuning_seconds)


def _worker_specs(
    plan: Plan, device: DeviceKind, devices: Sequence[CudaDevice] | int, work_dir: Path
) -> list[WorkerSpec]:
    visible = [None] * devices if isinstance(devices, int) else [_visible(found) for found in devices]
    return [
        WorkerSpec(index, device, name, plan.resolved.gpu, _SEED, str(work_dir / f"worker-{index}.log"))
        for index, name in enumerate(visible)
    ]


def _visible(device: CudaDevice) -> str:
    """Entry of CUDA_VISIBLE_DEVICES for one device: torch counts within the list that is set already."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return listed.split(",")[device.index].strip() if listed else str(device.index)


def _modules(units: Sequence[WorkUnit], plan: Plan) -> tuple[JitModule, ...]:
    capability = plan.resolved.gpu.compute_capability
    assert capability is not None
    return tuple(dict.fromkeys(module for unit in units for module in unit.call.jit_modules(capability)))
