"""Tuning on an existing Ray cluster: one task on each GPU of its hosts, with a worker process of its own there.

A task is a ``WorkerPool`` of one worker on its host, so that crashes, hangs and bad tactics are dealt with there as
they are here. What it hears comes back after every unit, and this process alone writes journal, quarantine and files:
a task or a host that dies loses no finished unit. Ray is the extra ``[ray]`` and is imported by nothing else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune_planner.errors import NotPossibleHereError, PlannerError, UsageError
from autotune_planner.ops.base import JitModule
from autotune_planner.plan.plan import WorkUnit
from autotune_planner.plan.schedule import Shard, take_shard
from autotune_planner.tuning import flashinfer_internals as internals
from autotune_planner.tuning.devices import SIMULATED, DeviceKind
from autotune_planner.tuning.job import Job
from autotune_planner.tuning.messages import (
    Event,
    Host,
    ModuleReady,
    Note,
    Strategy,
    TacticQuarantined,
    UnitFinished,
    UnitResult,
    WorkerLost,
    WorkerReady,
    WorkerSpec,
)
from autotune_planner.tuning.pool import Observer, Watchdog, WorkerPool
from autotune_planner.tuning.quarantine import FILE, Quarantine, Quarantined

_TRIES = 3  # tasks that one unit may cost
_CONNECT_SECONDS = 5.0
_SETTLE_SECONDS = 3.0
_START_SECONDS = 300.0  # for a host to take a task and to import torch and FlashInfer
_STOP_SECONDS = 15.0
_MISSING = "missing"
_START_A_CLUSTER = "ray start --head on one host, ray start --address=HOST:6379 on the others"

_PERHAPS_TOKEN = "; RAY_AUTH_MODE=token here too, if ray start said that token authentication is enabled"


@dataclass(frozen=True)
class RayCluster:
    """The cluster that this process is connected to; a run takes ``gpus`` of its GPUs."""

    gpus: int

    def __len__(self) -> int:
        return self.gpus


def connect(address: str, device: DeviceKind, gpus: int | None, most: int | None = None) -> RayCluster:
    """Connect to a running cluster. ``gpus`` None: all that are free, at most ``most``.

    ``address`` is ``host:port``, or ``auto``: RAY_ADDRESS, else the cluster that this host belongs to. A virtual GPU of
    the simulated device is a CPU of the cluster. ``NotPossibleHereError`` where Ray is not installed, no cluster
    answers, or fewer are free.
    """
    try:
        import ray
    except ImportError:
        raise NotPossibleHereError(
            "Ray is not installed in this environment",
            code="ray-missing",
            where="--executor",
            hint="pip install 'autotune-planner[ray]', on every host of the cluster",
        ) from None
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or _noted_address() or address
    if address != "auto":
        _require_answer(address)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        raise _no_cluster(address, str(error).strip().splitlines()[0], _PERHAPS_TOKEN) from None
    finally:
        with contextlib.suppress(ValueError):  # in another thread Ray has set none either
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own would end the process at once
    resource = "GPU" if device == "cuda" else "CPU"
    free, all_there = _free(ray, resource, gpus)
    if free < (gpus or 1):
        ray.shutdown()
        raise NotPossibleHereError(
            f"{free} of the {all_there} {resource}s of the cluster are free, and --gpus {gpus or 'all'} asks for more",
            code="too-few-gpus",
            where="--gpus",
            hint="ray status shows who holds them" + (f", or --gpus {free}" if free else ""),
        )
    return RayCluster(gpus or min(free, most or free))


def _free(ray: Any, resource: str, wanted: int | None) -> tuple[int, int]:
    """(free, all). Waits a little where fewer are free than wanted: the cluster counts with some delay."""
    until = time.monotonic() + _SETTLE_SECONDS
    while True:
        free, there = (int(found.get(resource, 0)) for found in (ray.available_resources(), ray.cluster_resources()))
        if free >= (wanted or there) or time.monotonic() > until:
            return free, there
        time.sleep(0.1)


def _noted_address() -> str | None:
    """What ``ray start`` has noted on this host; the note outlives a head that was killed."""
    temporary = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    with contextlib.suppress(OSError):
        return Path(temporary, "ray", "ray_current_cluster").read_text(encoding="utf-8").strip() or None
    return None


def _require_answer(address: str) -> None:
    """Ray itself tries a dead address without end."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise UsageError(
            f"--address takes auto or the host:port of a cluster's head, not {address!r}",
            code="usage",
            where="--address",
            hint="run on a host of the cluster: --address auto",
        )
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from None


def _no_cluster(address: str, why: str, more: str = "") -> NotPossibleHereError:
    return NotPossibleHereError(
        f"no Ray cluster answers at {address}: {why}",
        code="no-cluster",
        where="--address",
        hint=_START_A_CLUSTER + more,
    )


@dataclass(frozen=True)
class TaskReady:
    """A task's worker is up on a host; ``node`` is Ray's id of it."""

    node: str
    host: str
    worker: WorkerReady


class GpuTask:
    """What Ray runs on a GPU's host. Errors are ordinary ones with text: ours do not survive pickling."""

    def __init__(self, spec: WorkerSpec, watchdog: Watchdog) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="autotune-plan-")
        self._log = Path(self._folder.name) / "worker.log"
        self._heard: list[Event] = []
        self._pool = WorkerPool([replace(spec, log_path=str(self._log))], self._heard.append, watchdog)

    def ready(self) -> TaskReady:
        import ray

        with self._plain_errors():
            worker = self._pool.first_ready()
        self._quarantine = Quarantine(Path(self._folder.name) / FILE, worker.metadata)
        host = f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"
        return TaskReady(ray.get_runtime_context().get_node_id(), host, worker)

    def build(self, modules: tuple[JitModule, ...]) -> tuple[Event, ...]:
        with self._plain_errors():
            self._pool.build(modules)
        return self._news()

    def tune(
        self, units: Mapping[WorkUnit, float], strategy: Strategy, quarantined: tuple[Quarantined, ...]
    ) -> Iterator[tuple[Event, ...]]:
        """Tune ``units``, given with their forecasts in seconds, and give what was heard after each of them."""
        self._quarantine.add(quarantined)
        for unit, seconds in units.items():
            with self._plain_errors():
                self._pool.tune(
                    [Shard((unit,), seconds)], strategy, self._quarantine, units.__getitem__, lambda result: None
                )
            yield self._news()

    def close(self) -> None:
        self._pool.__exit__(None)
        self._folder.cleanup()

    def _news(self) -> tuple[Event, ...]:
        news = tuple(self._heard)
        self._heard.clear()
        return news

    @contextlib.contextmanager
    def _plain_errors(self) -> Iterator[None]:
        try:
            yield
        except PlannerError as error:
            log = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
            end = f"its log on {socket.gethostname()} ends with: {log[-1] if log else 'nothing'}"
            raise RuntimeError(f"{error.message}; {end}") from None


@dataclass
class _Slot:
    """One GPU of the run, whichever of the cluster it is: the task that has it and what that is doing."""

    index: int
    task: Any
    awaited: Any  # what Ray will give next: word that the task is ready, or the next news of its shard
    since: float
    ready: TaskReady | None = None
    bound: int | None = None
    units: dict[WorkUnit, float] = field(default_factory=dict)  # of its shard, that are not finished


class RayExecutor:
    """The GPUs of a cluster that ``connect`` found, one for each of ``specs``. As ``WorkerPool``, over hosts.

    Only hosts with one and the same stamp tune: that of this host if it has the run's GPU and FlashInfer, else of the
    first by name that has. Ends the connection when it is left.
    """

    def __init__(self, specs: Sequence[WorkerSpec], observer: Observer, watchdog: Watchdog) -> None:
        import ray

        self._ray = ray
        self._specs = specs
        self._observer = observer
        self._watchdog = watchdog
        resources = {"num_gpus": 1, "num_cpus": 0} if specs[0].device == "cuda" else {"num_cpus": 1}
        self._task = ray.remote(**resources)(GpuTask)
        self._slots = [self._start(spec.index) for spec in specs]
        self._metadata: Mapping[str, str] = {}
        self._hosts: dict[str, Host] = {}
        self._places: set[tuple[str, int]] = set()  # node and GPU index of every task that has started

    @property
    def gpus(self) -> int:
        return len(self._slots)

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(self._hosts.values())

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, kind: object, error: object = None, *_: object) -> None:
        closing = [slot.task.close.remote() for slot in self._slots if slot.ready and not slot.units]
        if closing:
            self._ray.wait(closing, num_returns=len(closing), timeout=_STOP_SECONDS)
        for slot in self._slots:
            self._ray.kill(slot.task)
        self._ray.shutdown()
        if isinstance(error, SystemError) and error.__cause__ is not None:
            raise error.__cause__ from None  # what a signal raised while Ray waited, wrapped by its compiled code

    def first_ready(self) -> WorkerReady:
        """The stamp of the run. ``NotPossibleHereError`` where no host has the GPU and the FlashInfer of the run."""
        awaited = [slot.awaited for slot in self._slots]
        self._ray.wait(awaited, num_returns=len(awaited), timeout=_START_SECONDS)
        for slot in tuple(self._slots):
            self._hear_ready(slot)
        if not self._slots:
            raise _none_left()
        found = sorted((slot.ready for slot in self._slots if slot.ready), key=self._rank)
        wanted = _wanted(self._specs[0])
        chosen = next((ready for ready in found if not differences(ready.worker.metadata, wanted)), None)
        if chosen is None:
            raise _no_host(wanted, found)
        self._metadata = chosen.worker.metadata
        for slot in tuple(self._slots):
            self._admit(slot)
        return chosen.worker

    def build(self, modules: Iterable[JitModule]) -> None:
        """Build missing modules on every host, at the same time; the slowest is reported."""
        wanted = tuple(modules)
        one_each = {slot.ready.node: slot for slot in self._slots if slot.ready}
        self._observer(Note(f"building what is not compiled yet on {len(one_each)} hosts"))
        building = [(slot, slot.task.build.remote(wanted)) for slot in one_each.values()]
        news = []
        for slot, reference in building:
            try:
                news.append(self._ray.get(reference))
            except self._ray.exceptions.RayError as error:
                raise NotPossibleHereError(
                    _reason(error),
                    code="jit-failed",
                    where=slot.ready.host if slot.ready else None,
                    hint="nvcc, ninja and the CUDA headers are needed on every host, or flashinfer-jit-cache with "
                    "prebuilt modules",
                ) from None
        for event in max(news, key=_build_seconds):
            self._observer(event)

    def tune(
        self,
        shards: Sequence[Shard],
        strategy: Strategy,
        quarantine: Quarantine,
        forecast: Callable[[WorkUnit], float],
        finished: Callable[[UnitResult], None],
    ) -> None:
        """As ``WorkerPool.tune``. The unfinished units of a lost task go to another, three times at most."""
        job = _Job(deque(shards), strategy, quarantine, forecast, finished)
        while job.shards or any(slot.units for slot in self._slots):
            for slot in self._slots:
                if job.shards and slot.ready and not slot.units:
                    self._give(slot, job)
            self._wait(job)

    def _start(self, index: int) -> _Slot:
        task = self._task.remote(self._specs[index], self._watchdog)
        return _Slot(index, task, task.ready.remote(), time.monotonic())

    def _give(self, slot: _Slot, job: _Job) -> None:
        shard = take_shard(job.shards, slot.bound)
        slot.bound = shard.units[0].call.tune_max or slot.bound
        slot.units = {unit: job.forecast(unit) for unit in shard.units}
        stream = slot.task.tune.options(num_returns="streaming")
        slot.awaited = stream.remote(slot.units, job.strategy, job.quarantine.items)

    def _wait(self, job: _Job) -> None:
        """Serve one task that has news; tasks that no host takes in time are given up."""
        if not self._slots:
            raise _none_left()
        waiting = {slot.awaited: slot for slot in self._slots if slot.units or not slot.ready}
        starts = [slot.since for slot in waiting.values() if not slot.ready]
        timeout = max(min(starts) + _START_SECONDS - time.monotonic(), 0.0) if starts else None
        for awaited in self._ray.wait(list(waiting), timeout=timeout, fetch_local=False)[0]:
            slot = waiting[awaited]
            if not slot.ready:
                self._hear_ready(slot)
                self._admit(slot)
            else:
                self._hear_news(slot, job)
        for slot in [slot for slot in self._slots if not slot.ready and time.monotonic() > slot.since + _START_SECONDS]:
            self._hear_ready(slot)

    def _hear_ready(self, slot: _Slot) -> None:
        """Word of a new task, or none: then its GPU is given up."""
        try:
            slot.ready = self._ray.get(slot.awaited, timeout=0)
        except self._ray.exceptions.GetTimeoutError:
            self._leave(slot, f"no host of the cluster started a task for GPU {slot.index} in {_START_SECONDS:.0f} s")
        except self._ray.exceptions.RayError as error:
            self._leave(slot, f"the task for GPU {slot.index} did not start: {_reason(error)}")

    def _hear_news(self, slot: _Slot, job: _Job) -> None:
        try:
            news = self._ray.get(next(slot.awaited))
        except self._ray.exceptions.RayError as error:
            self._lost(slot, _reason(error), job)
            return
        for event in news:
            if isinstance(event, TacticQuarantined):
                job.quarantine.add([event.item])
            if isinstance(event, UnitFinished):
                self._end(slot, event.result, job)
            else:
                self._observer(event)

    def _end(self, slot: _Slot, result: UnitResult, job: _Job) -> None:
        slot.units.pop(result.unit)
        job.finished(result)
        self._observer(UnitFinished(slot.index, result))

    def _lost(self, slot: _Slot, reason: str, job: _Job) -> None:
        """Put the unfinished units of a lost task first in the queue, and start a task in its place."""
        self._observer(WorkerLost(slot.index, next(iter(slot.units)), reason))
        for unit in given_up(slot.units, job.losses):
            failure = f"its task on the cluster was lost {_TRIES} times: {reason}"
            self._end(slot, UnitResult(unit, {}, (), 0.0, None, failure=failure), job)
        if slot.units:
            job.shards.appendleft(Shard(tuple(slot.units), sum(slot.units.values())))
        self._ray.kill(slot.task)
        self._slots[self._slots.index(slot)] = self._start(slot.index)

    def _admit(self, slot: _Slot) -> None:
        """List the host of a new task; one whose stamp is not the run's does not tune."""
        ready = slot.ready
        if ready is None:
            return
        self._places.add((ready.node, slot.index))
        gpus = sum(node == ready.node for node, _ in self._places)
        host = Host(ready.host, gpus, differences(ready.worker.metadata, self._metadata))
        self._hosts[ready.node] = host
        if host.differs:
            self._leave(slot, f"not tuned on {host}")

    def _leave(self, slot: _Slot, why: str) -> None:
        self._slots.remove(slot)
        if slot.ready:
            slot.task.close.remote()  # Ray ends a task that nothing refers to any more
        else:
            self._ray.kill(slot.task)
        self._observer(Note(why))

    def _rank(self, ready: TaskReady) -> tuple[bool, str]:
        return ready.node != self._ray.get_runtime_context().get_node_id(), ready.host


def _wanted(spec: WorkerSpec) -> dict[str, str]:
    """Fields of a stamp that the place of the files depends on, as this run needs them."""
    gpu = spec.gpu.name if spec.device == "cuda" else f"{SIMULATED} {spec.gpu.name}"
    return {"gpu": gpu, "flashinfer_version": internals.installed_version() or _MISSING}


def _no_host(wanted: Mapping[str, str], found: Sequence[TaskReady]) -> NotPossibleHereError:
    listing = {str(Host(ready.host, 1, differences(ready.worker.metadata, wanted))) for ready in found}
    return NotPossibleHereError(
        f"no host of the cluster has {wanted['gpu']} and FlashInfer {wanted['flashinfer_version']}: "
        + "; ".join(sorted(listing)),
        code="gpu-differs",
        where="gpu",
        hint="start the cluster inside the server's image, on hosts with the server's GPU",
    )


def _none_left() -> NotPossibleHereError:
    return NotPossibleHereError(
        "no task runs on the cluster any more; what was finished is in the journal",
        code="cluster-lost",
        hint="ray status shows its hosts; each needs the server's image with autotune-planner[ray] in it, and the same "
        "command continues",
    )


@dataclass
class _Job(Job):
    """``losses`` counts the tasks that each unit has cost."""

    losses: Counter[WorkUnit] = field(default_factory=Counter)


def given_up(units: Iterable[WorkUnit], losses: Counter[WorkUnit]) -> tuple[WorkUnit, ...]:
    """Count one more loss for each of a lost task's units, and give those that are not to be tried again."""
    lost = tuple(units)
    losses.update(lost)
    return tuple(unit for unit in lost if losses[unit] >= _TRIES)


def differences(theirs: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Fields of ``ours`` in which another stamp differs: field -> (theirs, ours). FlashInfer compares no others."""
    return {
        name: (theirs.get(name, _MISSING), value)
        for name, value in sorted(ours.items())
        if theirs.get(name, _MISSING) != value
    }


def _build_seconds(news: Iterable[Event]) -> float:
    return sum(event.seconds for event in news if isinstance(event, ModuleReady))


def _reason(error: Exception) -> str:
    """The line of Ray's long text that says what happened: the last of a traceback, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if "Traceback" in str(error) or "ray::" in lines[0] else lines[0]
