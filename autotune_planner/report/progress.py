"""Progress of a run on stderr: a bar per GPU in a terminal, plain lines otherwise."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from autotune_planner.plan.plan import Plan, WorkUnit
from autotune_planner.tuning.messages import (
    Event,
    Forecast,
    ModuleBuilding,
    ModuleProgress,
    ModuleReady,
    Note,
    TacticQuarantined,
    UnitFinished,
    UnitStarted,
    WorkerLost,
)
from autotune_planner.tuning.pool import Observer

_PLAIN_SECONDS = 5.0  # between two plain lines
_PLAIN_BUILD_SECONDS = 30.0


@contextmanager
def progress_observer(console: Console, plan: Plan, workers: int) -> Iterator[Observer]:
    """An observer of a run that reports to ``console``."""
    if console.is_terminal:
        with _Bars(console, plan, workers) as bars:
            yield bars.observe
    else:
        yield _Lines(console, plan).observe


def _unit_text(unit: WorkUnit) -> str:
    return f"{unit.custom_op} {unit.call.label} M={unit.bucket}"


def _common_line(event: Event) -> str | None:
    """Text of the events that are worth a line of their own in both forms."""
    if isinstance(event, ModuleBuilding):
        return f"building {event.name}: {len(event.object_paths)} objects (once per machine, not counted as tuning)"
    if isinstance(event, ModuleReady) and event.seconds:
        return f"built {event.name} in {event.seconds:.0f} s"
    if isinstance(event, WorkerLost):
        during = f" while it tuned {_unit_text(event.unit)}" if event.unit else " while it started"
        return f"worker {event.worker} ended{during}: {event.reason}"
    if isinstance(event, TacticQuarantined):
        return f"quarantined: {event.item}"
    if isinstance(event, Forecast):
        tactics = f"{event.candidates} tactics of {event.profiles} profiles"
        return f"forecast: {event.seconds:.0f} s for {tactics}, without compiling and start-up"
    if isinstance(event, Note):
        return event.text
    if isinstance(event, UnitFinished) and event.result.failure:
        return f"not tuned: {_unit_text(event.result.unit)}: {event.result.failure}"
    return None


class _Lines:
    """At most one line every few seconds, and the first and the last always."""

    def __init__(self, console: Console, plan: Plan) -> None:
        self._console = console
        self._total = len(plan.units)
        self._done = 0
        self._started: float | None = None
        self._lost_at: float | None = None
        self._paused = 0.0
        self._last = 0.0

    def observe(self, event: Event) -> None:
        line = _common_line(event)
        if line:
            self._console.print(line)
        if isinstance(event, ModuleProgress) and time.monotonic() - self._last >= _PLAIN_BUILD_SECONDS:
            self._last = time.monotonic()
            self._console.print(f"building {event.name}: {event.compiled}/{event.objects} objects")
        if isinstance(event, Forecast):
            self._total = self._done + event.profiles  # what earlier runs, or a quarantine, left to do
        if isinstance(event, UnitStarted) and self._started is None:
            self._started = time.monotonic()
        if isinstance(event, WorkerLost):
            self._lost_at = time.monotonic()
        if isinstance(event, UnitStarted) and self._lost_at is not None:
            self._paused += time.monotonic() - self._lost_at  # a restart says nothing of the other profiles
            self._lost_at = None
        if isinstance(event, UnitFinished) and self._started is not None:
            self._finished(event, self._started)

    def _finished(self, event: UnitFinished, started: float) -> None:
        self._done += 1
        now = time.monotonic()
        if self._done in (1, self._total) or now - self._last >= _PLAIN_SECONDS:
            self._last = now
            left = (now - started - self._paused) / self._done * (self._total - self._done)
            # The first profile of a process also loads modules: no base for an estimate.
            estimate = f", about {left:.0f} s left" if 1 < self._done < self._total else ""
            self._console.print(
                f"GPU {event.worker}: {self._done}/{self._total} profiles{estimate}, {_unit_text(event.result.unit)}"
            )


class _Bars:
    def __init__(self, console: Console, plan: Plan, workers: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[now]}"),
            console=console,
        )
        self._all = self._progress.add_task("all profiles", total=len(plan.units), now="")
        self._gpus: dict[int, TaskID] = {
            index: self._progress.add_task(f"GPU {index}", total=None, now="starting") for index in range(workers)
        }

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def observe(self, event: Event) -> None:
        line = _common_line(event)
        if line:
            self._progress.console.print(line)
        if isinstance(event, Forecast):
            self._progress.update(self._all, total=self._progress.tasks[self._all].completed + event.profiles)
        elif isinstance(event, ModuleProgress):
            now = f"building {event.name}: {event.compiled}/{event.objects} objects"
            self._progress.update(self._all, now=now)
        elif isinstance(event, ModuleReady):
            self._progress.update(self._all, now="")
        elif isinstance(event, UnitStarted):
            self._progress.update(self._gpus[event.worker], now=_unit_text(event.unit))
        elif isinstance(event, UnitFinished):
            self._progress.advance(self._all)
            self._progress.advance(self._gpus[event.worker])
