"""Tune a plan: journal, workers, results. Knows nothing of files for servers or of deployments."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from autotune_planner.deployment.model import Gpu
from autotune_planner.ops.base import JitModule
from autotune_planner.plan.forecast import UnitForecast, forecast_units
from autotune_planner.plan.plan import Plan, WorkUnit
from autotune_planner.plan.schedule import Shard, makespan, shards, within_budget
from autotune_planner.plan.worth import worth
from autotune_planner.tuning import quarantine as quarantines
from autotune_planner.tuning.devices import CudaDevice, DeviceKind
from autotune_planner.tuning.journal import Journal
from autotune_planner.tuning.messages import (
    Event,
    Forecast,
    Host,
    ModuleReady,
    Note,
    Strategy,
    UnitFinished,
    UnitResult,
    WorkerReady,
    WorkerSpec,
)
from autotune_planner.tuning.planted import PlantedFault
from autotune_planner.tuning.pool import Observer, Watchdog, WorkerPool
from autotune_planner.tuning.quarantine import Place, Quarantine, Quarantined
from autotune_planner.tuning.ray_executor import RayCluster, RayExecutor

_SEED = 0
JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class Tuned:
    """Outcome of a run: every unit's result, resumed ones included, and FlashInfer's environment stamp.

    ``blocked`` is what no entry may pick: FlashInfer's blocklist, and what is in quarantine. ``build_seconds`` is
    compile time, ``tuning_seconds`` wall time of tuning without it, ``forecast_seconds`` what was expected of it;
    ``device_seconds`` the busiest virtual GPU's own clock (None on a GPU). ``resumed`` counts units that an earlier run
    had finished, ``left_out`` are those for which the time budget did not reach. ``hosts`` are a cluster's, those that
    were not used included; none on this machine alone.
    """

    results: tuple[UnitResult, ...]
    metadata: Mapping[str, str]
    strategy: Strategy
    resumed: int
    build_seconds: float
    tuning_seconds: float
    forecast_seconds: float
    device_seconds: float | None
    quarantined: tuple[Quarantined, ...]
    blocked: frozenset[Place] = frozenset()
    left_out: tuple[WorkUnit, ...] = ()
    hosts: tuple[Host, ...] = ()

    @property
    def entries(self) -> dict[str, list[Any]]:
        """FlashInfer's v1 entries of all finished units: key text -> [runner, tactic, policy]."""
        return {key: value for result in self.results for key, value in result.entries.items()}

    @property
    def failures(self) -> tuple[UnitResult, ...]:
        return tuple(result for result in self.results if result.failure is not None)


@dataclass(frozen=True)
class Options:
    """How a run is made. ``time_budget``: seconds of tuning, by forecast; the most valuable units are tuned in it."""

    strategy: Strategy = "race"
    fresh: bool = False
    time_budget: float | None = None
    watchdog: Watchdog = field(default_factory=Watchdog)
    planted: tuple[PlantedFault, ...] = ()


Devices = Sequence[CudaDevice] | int | RayCluster
"""GPUs of this machine, how many virtual ones on the simulated device, or a cluster's."""


class Executor(Protocol):
    """Where units are tuned: worker processes of this machine, or a cluster. A context manager.

    ``gpus``, how many tune, and ``hosts`` hold once ``first_ready`` has returned; the methods are ``WorkerPool``'s.
    """

    @property
    def gpus(self) -> int: ...

    @property
    def hosts(self) -> tuple[Host, ...]: ...

    def __enter__(self) -> Executor: ...

    def __exit__(self, kind: object, *_: object) -> None: ...

    def first_ready(self) -> WorkerReady: ...

    def build(self, modules: Iterable[JitModule]) -> None: ...

    def tune(
        self,
        shards: Sequence[Shard],
        strategy: Strategy,
        quarantine: Quarantine,
        forecast: Callable[[WorkUnit], float],
        finished: Callable[[UnitResult], None],
    ) -> None: ...


def tune(
    plan: Plan,
    *,
    device: DeviceKind,
    devices: Devices,
    work_dir: Path,
    observer: Observer,
    options: Options,
) -> Tuned:
    """Tune every work unit of ``plan`` that the journal in ``work_dir`` does not have yet."""
    work_dir.mkdir(parents=True, exist_ok=True)
    spent = _Spent(observer)
    # What a journal holds is known when the first worker has said what it runs in; without one all have work.
    at_once = 1 if (work_dir / JOURNAL).exists() else len(plan.units)
    with _executor(plan.resolved.gpu, device, devices, work_dir, spent.watch, options, at_once) as executor:
        ready = executor.first_ready()
        strategy = _possible(options.strategy, ready, observer)
        journal = Journal(work_dir / JOURNAL, ready.metadata, strategy)
        quarantine = Quarantine(work_dir / quarantines.FILE, ready.metadata)
        if options.fresh:
            journal.clear()
            quarantine.clear()
        if quarantine.damaged:
            observer(Note(f"{quarantine.path} is damaged: tactics that it kept apart may run, and fail, again"))
        results = journal.finished(plan.units)
        for text in journal.unused(plan.units):
            observer(Note(text))
        if barred := _take_out(results, ready.blocked | quarantine.harmful):
            observer(Note(f"{_profiles(barred)} of an earlier run had picked what is blocked or in quarantine by now"))
        resumed = len(results)
        pending = forecast_units([unit for unit in plan.units if unit not in results], plan.resolved.gpu, strategy)
        left_out: tuple[UnitForecast, ...] = ()
        if options.time_budget is not None:
            pending, left_out = within_budget(pending, worth(plan, pending), options.time_budget, executor.gpus)
        work, expected = _scheduled(pending, executor.gpus, observer)
        if pending and device == "cuda":
            executor.build(_modules([found.unit for found in pending], plan))

        def finished(result: UnitResult) -> None:
            journal.append(result)
            results[result.unit] = result

        started = time.monotonic()
        while work:
            seconds = {found.unit: found.seconds for found in pending}
            executor.tune(work, strategy, quarantine, seconds.__getitem__, finished)
            barred = _take_out(results, quarantine.harmful)
            if barred:
                observer(Note(f"{_profiles(barred)} had picked what was quarantined later, and are tuned again"))
            pending = forecast_units(barred, plan.resolved.gpu, strategy)
            work, _ = _scheduled(pending, executor.gpus, observer)
        tuning_seconds = time.monotonic() - started
    return Tuned(
        results=tuple(results[unit] for unit in plan.units if unit in results),
        metadata=ready.metadata,
        strategy=strategy,
        resumed=resumed,
        build_seconds=spent.building,
        tuning_seconds=tuning_seconds,
        forecast_seconds=expected,
        device_seconds=max(spent.device.values(), default=0.0) if device == "simulated" else None,
        quarantined=quarantine.items,
        blocked=ready.blocked | quarantine.harmful,
        left_out=tuple(found.unit for found in left_out),
        hosts=executor.hosts,
    )


def _take_out(results: dict[WorkUnit, UnitResult], blocked: frozenset[Place]) -> list[WorkUnit]:
    """Take out the results whose pick is blocked, and give their units."""
    units = [unit for unit, result in results.items() if result.places & blocked]
    for unit in units:
        del results[unit]
    return units


def _scheduled(pending: Sequence[UnitForecast], gpus: int, observer: Observer) -> tuple[Sequence[Shard], float]:
    """The shards of what is pending, and the seconds that they are expected to take, which the observer hears of."""
    work = shards(pending, gpus)
    expected = makespan((shard.seconds for shard in work), gpus)
    if pending:
        observer(Forecast(len(pending), sum(found.candidates for found in pending), expected))
    return work, expected


def _profiles(units: Sequence[WorkUnit]) -> str:
    return "1 finished profile" if len(units) == 1 else f"{len(units)} finished profiles"


class _Spent:
    """Adds up what an observer hears: compile time, and the own clock of each virtual GPU."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.building = 0.0
        self.device: defaultdict[int, float] = defaultdict(float)

    def watch(self, event: Event) -> None:
        if isinstance(event, ModuleReady):
            self.building += event.seconds
        if isinstance(event, UnitFinished):
            self.device[event.worker] += event.result.device_seconds or 0.0
        self._observer(event)


def _possible(strategy: Strategy, ready: WorkerReady, observer: Observer) -> Strategy:
    """``stock`` in place of a race where this FlashInfer has not what it needs, and word of it."""
    if strategy == "race" and ready.obstacle is not None:
        observer(Note(f"{ready.obstacle}: tuning with FlashInfer's own loop (stock) in place of race"))
        return "stock"
    return strategy


def _executor(
    gpu: Gpu,
    device: DeviceKind,
    devices: Devices,
    work_dir: Path,
    observer: Observer,
    options: Options,
    at_once: int,
) -> Executor:
    visible: list[str | None] = [None]
    if isinstance(devices, int | RayCluster):
        visible *= devices if isinstance(devices, int) else devices.gpus
    else:
        visible = [_visible(found) for found in devices]
    specs = [
        WorkerSpec(index, device, name, gpu, _SEED, str(work_dir / f"worker-{index}.log"), options.planted)
        for index, name in enumerate(visible)
    ]
    if isinstance(devices, RayCluster):
        return RayExecutor(specs, observer, options.watchdog)
    return WorkerPool(specs, observer, options.watchdog, at_once)


def _visible(device: CudaDevice) -> str:
    """Entry of CUDA_VISIBLE_DEVICES for one device: torch counts within the list that is set already."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return listed.split(",")[device.index].strip() if listed else str(device.index)


def _modules(units: Sequence[WorkUnit], plan: Plan) -> tuple[JitModule, ...]:
    capability = plan.resolved.gpu.compute_capability
    assert capability is not None
    return tuple(dict.fromkeys(module for unit in units for module in unit.call.jit_modules(capability)))
