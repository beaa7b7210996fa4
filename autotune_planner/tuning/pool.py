"""One worker process per GPU, fed with work units until none is left."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection, wait

from autotune_planner.errors import NotPossibleHereError
from autotune_planner.ops.base import JitModule
from autotune_planner.plan.plan import WorkUnit
from autotune_planner.tuning import worker
from autotune_planner.tuning.messages import (
    BuildModules,
    Event,
    ModuleBuilding,
    ModuleProgress,
    ModuleReady,
    ModulesReady,
    ToWorker,
    TuneUnit,
    UnitFinished,
    UnitResult,
    UnitStarted,
    WorkerLost,
    WorkerReady,
    WorkerSpec,
)

Observer = Callable[[Event], None]

_STARTS = 3  # starts of one worker in a row that may fail before the run gives up
_STOP_SECONDS = 10.0
_BUILD_POLL_SECONDS = 1.0


class _Worker:
    """A worker process and the parent's end of its pipe."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.unit: WorkUnit | None = None
        self.bound: int | None = None  # a process keeps the first bucket bound that it meets
        self.failed_starts = 0  # in a row
        self.connection: Connection
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=worker.main, args=(theirs, self.spec), daemon=True)
        self.process.start()
        theirs.close()
        self.ready = False
        self.bound = None
        self.unit = None

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
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"


class WorkerPool:
    """Workers of one run. Use as a context manager: leaving it by an exception kills them at once."""

    def __init__(self, specs: Sequence[WorkerSpec], observer: Observer) -> None:
        self._observer = observer
        self._workers = [_Worker(specs[0])]
        self._specs = specs

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for member in self._workers:
            member.stop() if kind is None else member.kill()

    def metadata(self) -> dict[str, str]:
        """FlashInfer's environment stamp, from the first worker."""
        first = self._workers[0]
        while True:
            try:
                message = first.connection.recv()
            except (EOFError, ConnectionResetError):
                self._restart(first)
                continue
            assert isinstance(message, WorkerReady), message
            first.ready = True
            return dict(message.metadata)

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

    def tune(self, units: Iterable[WorkUnit], finished: Callable[[UnitResult], None]) -> None:
        """Tune every unit; ``finished`` gets each result as soon as it is there, before the next unit starts.

        A worker that dies fails its unit and is started again for the next one.
        """
        pending = deque(units)
        count = min(len(self._specs), max(len(pending), 1))
        self._workers += [_Worker(spec) for spec in self._specs[1:count]]
        for member in self._workers:
            if member.ready:
                self._assign(member, pending)
        while pending or any(member.unit for member in self._workers):
            by_connection = {member.connection: member for member in self._workers if member.unit or not member.ready}
            for connection in wait(list(by_connection)):
                member = by_connection[connection]  # type: ignore[index]
                try:
                    message = member.connection.recv()
                except (EOFError, ConnectionResetError):
                    self._lost(member, finished)
                    continue
                if isinstance(message, WorkerReady):
                    member.ready, member.failed_starts = True, 0
                else:
                    assert isinstance(message, UnitResult), message
                    member.unit = None
                    finished(message)
                    self._observer(UnitFinished(member.spec.index, message))
                self._assign(member, pending)

    def _assign(self, member: _Worker, pending: deque[WorkUnit]) -> None:
        if not pending:
            return
        bound = pending[0].call.tune_max
        if bound is not None and member.bound not in (None, bound):
            member.stop()
            member.start()
            return
        unit = pending.popleft()
        member.unit, member.bound = unit, bound or member.bound
        self._observer(UnitStarted(member.spec.index, unit))
        member.send(TuneUnit(unit))

    def _lost(self, member: _Worker, finished: Callable[[UnitResult], None]) -> None:
        """Report a dead worker, fail its unit, start it again."""
        unit, reason = member.unit, member.ended_because()
        self._restart(member)
        if unit is not None:
            result = UnitResult(unit, {}, (), 0.0, None, failure=f"its worker process ended: {reason}")
            finished(result)
            self._observer(UnitFinished(member.spec.index, result))

    def _restart(self, member: _Worker) -> None:
        """Report a dead worker and start it again. ``NotPossibleHereError`` where it has not started for too often."""
        self._observer(WorkerLost(member.spec.index, member.unit, member.ended_because()))
        member.failed_starts = 0 if member.ready else member.failed_starts + 1
        if member.failed_starts >= _STARTS:
            raise _workers_do_not_start(member)
        member.connection.close()
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
