"""What the parent and its GPU workers say to each other, and what observers of a run are told. All picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autotune_planner.deployment.model import Gpu
from autotune_planner.ops.base import JitModule
from autotune_planner.plan.plan import WorkUnit
from autotune_planner.tuning.devices import DeviceKind
from autotune_planner.tuning.planted import PlantedFault
from autotune_planner.tuning.quarantine import Place, Quarantined, tactic_place

Strategy = Literal["race", "stock"]

Blocked = tuple[str, Any]
"""A tactic that must not run: runner class and tactic, of the op of the unit that it comes with."""


@dataclass(frozen=True)
class WorkerSpec:
    """One worker process. ``visible_device`` is its CUDA_VISIBLE_DEVICES; None keeps its parent's."""

    index: int
    device: DeviceKind
    visible_device: str | None
    gpu: Gpu
    seed: int
    log_path: str
    planted: tuple[PlantedFault, ...] = ()


@dataclass(frozen=True)
class BuildModules:
    modules: tuple[JitModule, ...]


@dataclass(frozen=True)
class TuneUnit:
    """``careful``: FlashInfer's own loop, which waits for each tactic, and word of each before it runs: what a tactic
    that kills the process needs to be named."""

    unit: WorkUnit
    strategy: Strategy
    blocked: tuple[Blocked, ...] = ()
    careful: bool = False


@dataclass(frozen=True)
class WorkerReady:
    """``metadata`` is FlashInfer's environment stamp of the worker; ``obstacle`` why it cannot race, None if it can;
    ``blocked`` what FlashInfer's own blocklist keeps it from."""

    metadata: Mapping[str, str]
    obstacle: str | None
    blocked: frozenset[Place] = frozenset()


@dataclass(frozen=True)
class Host:
    """One host of a cluster and how many of its GPUs were asked.

    ``differs`` are fields of FlashInfer's stamp, (there, in the run); with any, nothing was tuned on that host.
    """

    name: str
    gpus: int
    differs: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def __str__(self) -> str:
        fields = (f"{name} is {theirs} there and {ours} here" for name, (theirs, ours) in self.differs.items())
        return f"{self.name}: {', '.join(fields)}" if self.differs else self.name


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
class TacticStarted:
    """A careful unit is about to run this tactic."""

    runner: str
    tactic: Any


@dataclass(frozen=True)
class Candidate:
    """Time of one launch in microseconds, as last measured."""

    tactic: Any
    us: float


@dataclass(frozen=True)
class Search:
    """What was measured of one profile.

    ``strategy`` is what chose: "careful" is FlashInfer's loop after a crash. ``candidates`` come fastest first and
    include the default (-1) unless it failed. ``spread`` is the standard deviation of one final round as a ratio,
    ``tied`` how many counted as equal to the best, ``launches`` what was timed; None where the strategy does not say.
    """

    strategy: Literal["race", "stock", "careful"]
    pick: Any
    candidates: tuple[Candidate, ...]
    spread: float | None = None
    tied: int | None = None
    launches: int | None = None

    def us_of(self, tactic: Any) -> float | None:
        return next((found.us for found in self.candidates if found.tactic == tactic), None)

    @property
    def runner_up(self) -> Candidate | None:
        return next((found for found in self.candidates if found.tactic != self.pick), None)


@dataclass(frozen=True)
class UnitResult:
    """One finished unit.

    ``entries`` are FlashInfer's own v1 entries, key text -> [runner, tactic, policy]; empty when ``failure`` says why.
    ``skipped`` are tactics that FlashInfer rejected with an ordinary error, ``quarantined`` those that did worse.
    ``seconds`` is wall time, ``device_seconds`` the simulated device's own clock (None on a GPU), ``gpu`` the GPU's
    state after it (None on the simulated device and without NVML).
    """

    unit: WorkUnit
    entries: Mapping[str, list[Any]]
    skipped: tuple[str, ...]
    seconds: float
    device_seconds: float | None
    failure: str | None = None
    search: Search | None = None
    quarantined: tuple[Quarantined, ...] = ()
    gpu: Mapping[str, Any] | None = None

    @property
    def places(self) -> frozenset[Place]:
        """What its entries pick."""
        return frozenset(
            tactic_place(self.unit.custom_op, runner, tactic) for runner, tactic, *_ in self.entries.values()
        )


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


@dataclass(frozen=True)
class TacticQuarantined:
    worker: int
    item: Quarantined


@dataclass(frozen=True)
class Forecast:
    """What is about to be tuned: profiles, tactics of all of them, and wall seconds without compiling."""

    profiles: int
    candidates: int
    seconds: float


@dataclass(frozen=True)
class Note:
    """Something that the operator should know of this run."""

    text: str


ToWorker = BuildModules | TuneUnit | None
FromWorker = WorkerReady | ModuleBuilding | ModuleReady | ModulesReady | TacticStarted | UnitResult
Event = (
    ModuleBuilding
    | ModuleProgress
    | ModuleReady
    | UnitStarted
    | UnitFinished
    | WorkerLost
    | TacticQuarantined
    | Forecast
    | Note
)
