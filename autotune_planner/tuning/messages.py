"""What the parent and its GPU workers say to each other, and what observers of a run are told. All picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune_planner.deployment.model import Gpu
from autotune_planner.ops.base import JitModule
from autotune_planner.plan.plan import WorkUnit
from autotune_planner.tuning.devices import DeviceKind


@dataclass(frozen=True)
class WorkerSpec:
    """One worker process. ``visible_device`` is its CUDA_VISIBLE_DEVICES, None on the simulated device."""

    index: int
    device: DeviceKind
    visible_device: str | None
    gpu: Gpu
    seed: int
    log_path: str


@dataclass(frozen=True)
class BuildModules:
    modules: tuple[JitModule, ...]


@dataclass(frozen=True)
class TuneUnit:
    unit: WorkUnit


@dataclass(frozen=True)
class WorkerReady:
    """``metadata`` is FlashInfer's environment stamp of the worker."""

    metadata: Mapping[str, str]


@dataclass(frozen=True)
class ModuleBuilding:
    """A compiled module is missing and is being built; finished objects appear as files at ``object_paths``."""

    name: str
    object_paths: tuple[str, ...]


@dataclass(frozen=True)
class ModuleProgress:
    """How many of a module's objects are compiled."""

    name: str
    compiled: int
    objects: int


@dataclass(frozen=True)
class ModuleReady:
    """``seconds`` is the build time; 0.0 for a module that was there already."""

    name: str
    seconds: float


@dataclass(frozen=True)
class ModulesReady:
    pass


@dataclass(frozen=True)
class UnitResult:
    """One finished unit.

    ``entries`` are FlashInfer's own v1 entries, key text -> [runner, tactic, policy]; empty when ``failure`` says why.
    ``skipped`` are tactics that FlashInfer rejected with an ordinary error. ``seconds`` is wall time,
    ``device_seconds`` the simulated device's own clock (None on a GPU).
    """

    unit: WorkUnit
    entries: Mapping[str, list[Any]]
    skipped: tuple[str, ...]
    seconds: float
    device_seconds: float | None
    failure: str | None = None


@dataclass(frozen=True)
class UnitStarted:
    worker: int
    unit: WorkUnit


@dataclass(frozen=True)
class UnitFinished:
    worker: int
    result: UnitResult


@dataclass(frozen=True)
class WorkerLost:
    """A worker process ended while it tuned ``unit`` (None: while it started)."""

    worker: int
    unit: WorkUnit | None
    reason: str


ToWorker = BuildModules | TuneUnit | None
FromWorker = WorkerReady | ModuleBuilding | ModuleReady | ModulesReady | UnitResult
Event = ModuleBuilding | ModuleProgress | ModuleReady | UnitStarted | UnitFinished | WorkerLost
