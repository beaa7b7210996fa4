"""One worker process per GPU, fed with shards of work units until none is left; a lost or hung one is replaced."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from autotune_planner.errors import NotPossibleHereError
from autotune_planner.ops.base import JitModule, OpCall
from autotune_planner.plan.plan import WorkUnit
from autotune_planner.plan.schedule import Shard, take_shard
from autotune_planner.tuning import worker
from autotune_planner.tuning.attempts import Attempt, Loss
from autotune_planner.tuning.job import Job
from autotune_planner.tuning.messages import (
    BuildModules,
    Event,
    Host,
    ModuleBuilding,
    ModuleProgress,
    ModuleReady,
    ModulesReady,
    Strategy,
    TacticQuarantined,
    TacticStarted,
    ToWorker,
    TuneUnit,
    UnitFinished,
    UnitResult,
    UnitStarted,
    WorkerLost,
    WorkerReady,
    WorkerSpec,
)
from autotune_planner.tuning.quarantine import Quarantine
from autotune_planner.tuning.uninterrupted import uninterrupted

Observer = Callable[[Event], None]

_STARTS = 3  # starts of one worker in a row that may fail before the run gives up
_STOP_SECONDS = 10.0
_BUILD_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Watchdog:
    """How long a unit, and a tactic that runs by itself, may take before its worker is killed. Seconds.

    Either may take ``times`` the unit's forecast, and its floor in any case; a process's first unit also loads modules.
    """

    times: float = 20.0
    unit_floor: float = 60.0
    first_unit: float = 120.0
    tactic_floor: float = 30.0

    def of_tactic(self, forecast: float) -> float:
        return max(self.times * forecast, self.tactic_floor)

    def of_unit(self, forecast: float, *, first: bool) -> float:
        return max(self.times * forecast, self.unit_floor) + (self.first_unit if first else 0.0)


class _Worker:
    """A worker process and the parent's end of its pipe."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.queue: deque[WorkUnit] = deque()
        self.failed_starts = 0  # in a row
        self.lost = False  # and not yet back
        self.clock = 0.0  # seconds of a virtual GPU's own time; a real one's are not counted
        self.connection: Connection
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        with uninterrupted():
            self.connection, theirs = context.Pipe()
            self.process = context.Process(target=worker.main, args=(theirs, self.spec), daemon=True)
            self.process.start()
            theirs.close()
        self.ready = False
        self.bound: int | None = None  # a process keeps the first bucket bound that it meets
        self.attempt: Attempt | None = None
        self.last: TacticStarted | None = None
        self.deadline = float("inf")
        self.hung: str | None = None
        self.fresh = True

    def send(self, request: ToWorker) -> None:
        # A worker that is gone is noticed, with its exit code, when its pipe is read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(request)

    def stop(self) -> None:
        if self.ready:  # one that is still starting has nothing to finish
            self.send(None)
            self.process.join(timeout=_STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.connection.close()

    def ended_because(self) -> str:
        self.process.join()
        code = self.process.exitcode or 0
        if self.hung is not None:
            return self.hung
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return "its CUDA context was lost" if code == worker.CONTEXT_LOST else f"exit code {code}"

    def loss(self) -> Loss:
        reason = self.ended_because()
        stray = self.hung is None and self.process.exitcode == -signal.SIGKILL
        return Loss(reason, self.last, hung=self.hung is not None, stray=stray)


class WorkerPool:
    """Workers of one run. Use as a context manager: leaving it by an exception kills them at once."""

    def __init__(self, specs: Sequence[WorkerSpec], observer: Observer, watchdog: Watchdog, at_once: int = 1) -> None:
        """``at_once``: workers to start now; the others start when there is work for them."""
        self._observer = observer
        self._workers = [_Worker(spec) for spec in specs[: max(at_once, 1)]]
        self._specs = specs
        self._watchdog = watchdog
        self._again: dict[WorkUnit, Attempt] = {}  # of units that have cost a worker
        self._unblockable: set[tuple[str, OpCall]] = set()  # ops and shapes whose default tactic did

    @property
    def gpus(self) -> int:
        return len(self._specs)

    @property
    def hosts(self) -> tuple[Host, ...]:
        return ()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for member in self._workers:
            member.stop() if kind is None else member.kill()

    def first_ready(self) -> WorkerReady:
        """FlashInfer's environment stamp, and whether it can be raced, from the first worker."""
        first = self._workers[0]
        while True:
            try:
                message = first.connection.recv()
            except (EOFError, ConnectionResetError):
                self._restart(first)
                continue
            assert isinstance(message, WorkerReady), message
            first.ready = True
            return message

    def build(self, modules: Iterable[JitModule]) -> None:
        """Build missing compiled modules in the first worker, before any other one could compile the same."""
        first = self._workers[0]
        first.send(BuildModules(tuple(modules)))
        building: ModuleBuilding | None = None
        while True:
            while building is not None and not first.connection.poll(_BUILD_POLL_SECONDS):
                self._observer(_compiled(building))
            try:
                message = first.connection.recv()
            except (EOFError, ConnectionResetError):
                raise NotPossibleHereError(
                    f"FlashInfer could not build its modules ({first.ended_because()})",
                    code="jit-failed",
                    where=first.spec.log_path,
                    hint="the log has the compiler's output; nvcc, ninja and the CUDA headers are needed, or "
                    "flashinfer-jit-cache with prebuilt modules",
                ) from None
            if isinstance(message, ModulesReady):
                return
            assert isinstance(message, ModuleBuilding | ModuleReady), message
            building = message if isinstance(message, ModuleBuilding) else None
            self._observer(message)

    def tune(
        self,
        shards: Sequence[Shard],
        strategy: Strategy,
        quarantine: Quarantine,
        forecast: Callable[[WorkUnit], float],
        finished: Callable[[UnitResult], None],
    ) -> None:
        """Tune every unit of ``shards``, which come in the order in which they are begun.

        ``finished`` gets each result as soon as it is there, before the next unit starts. ``forecast`` gives a unit's
        expected seconds. A worker that dies or hangs is started again, and whoever is free first goes on with its
        shard; the tactic that did it is found and quarantined.
        """
        job = Job(deque(shards), strategy, quarantine, forecast, finished)
        count = min(len(self._specs), max(len(job.shards), 1))
        self._workers += [_Worker(spec) for spec in self._specs[len(self._workers) : count]]
        for member in self._workers:
            if member.ready:
                self._assign(member, job)
        while job.shards or any(member.attempt or member.queue for member in self._workers):
            self._wait(job)

    def _wait(self, job: Job) -> None:
        """Serve what arrives until the next deadline, then kill who missed it."""
        waiting = {member.connection: member for member in self._workers if member.attempt or not member.ready}
        timeout = min(member.deadline for member in waiting.values()) - time.monotonic()
        for connection in wait(list(waiting), None if timeout == float("inf") else max(timeout, 0.0)):
            member = waiting[connection]  # type: ignore[index]
            try:
                message = member.connection.recv()
            except (EOFError, ConnectionResetError):
                self._lost(member, job)
                continue
            self._serve(member, message, job)
        now = time.monotonic()
        for member in self._workers:
            if member.attempt is not None and now > member.deadline and member.hung is None:
                limit = self._limit(member, job)
                member.hung = f"it did not end within {limit:.0f} s"
                member.process.kill()

    def _serve(self, member: _Worker, message: object, job: Job) -> None:
        if isinstance(message, TacticStarted):
            member.last = message
            member.deadline = time.monotonic() + self._limit(member, job)
            return
        if isinstance(message, WorkerReady):
            member.ready, member.lost, member.failed_starts = True, False, 0
        else:
            assert isinstance(message, UnitResult), message
            member.attempt, member.deadline, member.fresh = None, float("inf"), False
            member.clock += message.device_seconds or 0.0
            self._end(member, message, job)
        self._assign(member, job)
        self._assign_idle(job)

    def _end(self, member: _Worker, result: UnitResult, job: Job) -> None:
        for item in result.quarantined:
            self._observer(TacticQuarantined(member.spec.index, item))
        job.quarantine.add(result.quarantined)
        job.finished(result)
        self._observer(UnitFinished(member.spec.index, result))

    def _assign(self, member: _Worker, job: Job) -> None:
        """Give the worker its next unit. One whose bucket bound is another's needs a new process."""
        if not member.queue:
            if not job.shards or not self._is_next(member):
                return
            member.queue.extend(take_shard(job.shards, member.bound).units)
        bound = member.queue[0].call.tune_max
        if bound is not None and member.bound not in (None, bound):
            member.stop()
            member.start()
            return
        unit = member.queue.popleft()
        careful = (unit.custom_op, unit.call) in self._unblockable
        attempt = self._again.get(unit, Attempt(unit, careful=careful))
        member.attempt, member.bound, member.last = attempt, bound or member.bound, None
        member.deadline = time.monotonic() + self._limit(member, job)
        self._observer(UnitStarted(member.spec.index, unit))
        blocked = tuple((item.runner, item.tactic) for item in job.quarantine.of(unit.custom_op))
        member.send(TuneUnit(unit, job.strategy, blocked, attempt.careful))

    def _is_next(self, member: _Worker) -> bool:
        """Whether no virtual GPU that is at work, or on its way, would be free before this one by its own clock."""
        others = (other for other in self._workers if other.attempt or not (other.ready or other.lost))
        return all(member.clock <= other.clock for other in others if other is not member)

    def _assign_idle(self, job: Job) -> None:
        for idle in self._workers:
            if idle.ready and idle.attempt is None:
                self._assign(idle, job)

    def _limit(self, member: _Worker, job: Job) -> float:
        assert member.attempt is not None
        forecast = job.forecast(member.attempt.unit)
        if member.last is not None:  # each tactic by itself
            return self._watchdog.of_tactic(forecast)
        return self._watchdog.of_unit(forecast, first=member.fresh)

    def _lost(self, member: _Worker, job: Job) -> None:
        """Start a dead worker again, and decide what becomes of its unit; what is left of its shard is anybody's."""
        attempt, loss = member.attempt, member.loss()
        self._restart(member)
        if attempt is None:
            return
        left = list(member.queue)
        member.queue.clear()
        following, culprit = attempt.after_loss(loss)
        if culprit is not None:
            job.quarantine.add([culprit])
            self._observer(TacticQuarantined(member.spec.index, culprit))
        if following is not None:
            self._again[attempt.unit] = following
            left.insert(0, attempt.unit)
        if left:
            job.shards.appendleft(Shard(tuple(left), sum(map(job.forecast, left))))
        if following is None:
            failure = f"its worker process ended: {loss.reason}"
            if loss.last is not None and loss.last.tactic == -1:
                self._unblockable.add((attempt.unit.custom_op, attempt.unit.call))
                failure = f"its default tactic (-1), which nothing can block, ended the worker process: {loss.reason}"
            self._end(member, UnitResult(attempt.unit, {}, (), 0.0, None, failure=failure), job)
        self._assign_idle(job)

    def _restart(self, member: _Worker) -> None:
        """Report a dead worker and start it again. ``NotPossibleHereError`` where it has not started for too often."""
        unit = member.attempt.unit if member.attempt else None
        self._observer(WorkerLost(member.spec.index, unit, member.ended_because()))
        member.failed_starts = 0 if member.ready else member.failed_starts + 1
        if member.failed_starts >= _STARTS:
            raise _workers_do_not_start(member)
        member.connection.close()
        member.lost = True
        member.start()


def _compiled(building: ModuleBuilding) -> ModuleProgress:
    done = sum(os.path.exists(path) for path in building.object_paths)
    return ModuleProgress(building.name, done, len(building.object_paths))


def _workers_do_not_start(member: _Worker) -> NotPossibleHereError:
    return NotPossibleHereError(
        f"a GPU worker process does not start ({member.ended_because()})",
        code="worker-failed",
        where=member.spec.log_path,
        hint="the log has its output",
    )
