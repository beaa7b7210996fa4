"""One GPU worker: a spawned process that tunes one work unit after another and talks only through its pipe."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, Literal

from autotune_planner import profiles
from autotune_planner.ops.base import Bind, JitModule, OpCall
from autotune_planner.ops.numerics import problem_of
from autotune_planner.plan.buckets import size_inside
from autotune_planner.plan.memory import unit_memory
from autotune_planner.plan.plan import WorkUnit
from autotune_planner.tuning import flashinfer_internals as internals
from autotune_planner.tuning.child import flashinfer_child
from autotune_planner.tuning.contexts import tuning_contexts
from autotune_planner.tuning.gpu_state import gpu_state
from autotune_planner.tuning.messages import (
    BuildModules,
    Candidate,
    ModuleBuilding,
    ModuleReady,
    ModulesReady,
    Search,
    TacticStarted,
    TuneUnit,
    UnitResult,
    WorkerReady,
    WorkerSpec,
)
from autotune_planner.tuning.planted import PlantedFault, suffer
from autotune_planner.tuning.quarantine import Fault, Quarantined
from autotune_planner.tuning.race import race
from autotune_planner.tuning.simulated import CostModel
from autotune_planner.tuning.tie_order import tie_order

CONTEXT_LOST = 70  # exit code of a worker whose CUDA context is beyond use
_NO_TACTIC = "FlashInfer found no tactic that runs, or the tensors did not fit into GPU memory"


def main(connection: Connection, spec: WorkerSpec) -> None:
    """Serve requests until ``None`` comes or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    if spec.visible_device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = spec.visible_device
    cost_model = CostModel(spec.gpu, spec.seed) if spec.device == "simulated" else None
    with (
        flashinfer_child(spec.log_path, spec.gpu, cost_model) as device,
        contextlib.suppress(EOFError, BrokenPipeError),
    ):
        tuner = _UnitTuner(spec, device, cost_model, connection.send)
        connection.send(WorkerReady(internals.collect_metadata(), internals.racing_obstacle(), internals.blocklisted()))
        while (request := connection.recv()) is not None:
            if isinstance(request, BuildModules):
                _build(request.modules, connection.send)
            elif isinstance(request, TuneUnit):
                connection.send(tuner.tune(request))


def _build(modules: Iterable[JitModule], send: Callable[[Any], None]) -> None:
    """Build what is missing, so that no compiler runs inside a timing."""
    for module in modules:
        source, function = module.generator.split(":")
        spec = getattr(importlib.import_module(source), function)()
        started = time.monotonic()
        if not spec.is_compiled:
            send(ModuleBuilding(module.name, tuple(map(str, spec.get_object_paths()))))
            spec.build_and_load()
            send(ModuleReady(module.name, time.monotonic() - started))
        else:
            send(ModuleReady(module.name, 0.0))
    send(ModulesReady())


class _UnitTuner:
    """Tunes units; keeps the tensors of one call between its units and frees them before the next call's."""

    def __init__(
        self, spec: WorkerSpec, device: str, cost_model: CostModel | None, send: Callable[[Any], None]
    ) -> None:
        self._spec = spec
        self._device = device
        self._cost_model = cost_model
        self._send = send
        self._call: OpCall | None = None
        self._prepared: Bind | None = None

    def tune(self, request: TuneUnit) -> UnitResult:
        """Search one profile, prove the winner's arithmetic, and give FlashInfer's own entry for it."""
        started = time.monotonic()
        clock = self._cost_model.elapsed_ms if self._cost_model else 0.0
        found = self._attempt(request)
        while found.entries and (wrong := self._wrong(request.unit, found)) is not None:
            blocked = (*request.blocked, *((item.runner, item.tactic) for item in (*found.quarantined, wrong)))
            again = self._attempt(replace(request, blocked=blocked))
            found = replace(again, quarantined=(*found.quarantined, wrong, *again.quarantined))
        return UnitResult(
            unit=request.unit,
            entries=found.entries,
            skipped=found.skipped,
            seconds=time.monotonic() - started,
            device_seconds=self._device_seconds(request, clock),
            failure=found.failure,
            search=found.search,
            quarantined=found.quarantined,
            gpu=gpu_state() if self._device == "cuda" else None,
        )

    def _device_seconds(self, request: TuneUnit, clock: float) -> float | None:
        """Time of a virtual GPU since ``clock``: its kernels by the cost model, and what a profile costs on a real one
        beside them."""
        if self._cost_model is None:
            return None
        beside: float = profiles.table("search")["strategies"][request.strategy]["per_profile"]
        return (self._cost_model.elapsed_ms - clock) / 1e3 + beside

    def _attempt(self, request: TuneUnit) -> _Found:
        """One search. One that runs out of memory in a tactic is made again carefully, so that the tactic is named."""
        unit = request.unit
        too_large = self._too_large(unit)
        if too_large is not None:
            return _Found(failure=too_large)
        found = self._search(request)
        if found.entries or found.failure is not None or request.careful:
            return found
        self._release()
        return self._search(replace(request, careful=True))

    def _search(self, request: TuneUnit) -> _Found:
        from flashinfer.autotuner import AutoTuner

        unit, tuner = request.unit, AutoTuner.get()
        tuner.clear_cache()  # save_configs dumps the whole in-memory table
        tuner.reset_statistics()
        internals.block_tactics(tuner, unit.custom_op, request.blocked)
        failure, raced, timed, starved = None, [], [], []
        try:
            launch = self._bind(unit.call)(1)
            with self._planted(unit), contextlib.ExitStack() as watching:
                if request.careful:
                    timed = watching.enter_context(
                        internals.watched_tactics(
                            before=lambda runner, tactic: self._send(TacticStarted(runner, tactic)),
                            on_no_memory=lambda runner, tactic: starved.append((runner, tactic)),
                            on_error=self._end_if_lost,
                        )
                    )
                else:
                    timed = watching.enter_context(internals.watched_tactics())
                    if request.strategy == "race":
                        capability = self._spec.gpu.compute_capability
                        first_of = functools.partial(tie_order, unit.call.searched_as, capability)
                        raced = watching.enter_context(internals.racing(race, first_of))
                with tuning_contexts(unit):
                    launch()
        except Exception as error:  # reported, listed and left untuned; the other units go on
            failure = _first_line(error)
        self._end_if_lost()
        entries = _saved_entries(tuner) if failure is None else {}
        if not entries:
            self._release()
            failure = failure or (_NO_TACTIC if request.careful else None)
        return _Found(
            entries=entries,
            skipped=tuple(sorted(str(t) for tactics in tuner.stats.failed_tactics.values() for t in tactics)),
            failure=failure,
            search=_searched(entries, raced, timed, careful=request.careful),
            quarantined=tuple(
                _quarantined(unit, runner, tactic, "out of memory", "while it was timed") for runner, tactic in starved
            )
            if entries
            else (),
        )

    def _wrong(self, unit: WorkUnit, found: _Found) -> Quarantined | None:
        """The winner, if what it computes is not finite or not what float32 gives, at the bucket and at a size inside.

        The default tactic (-1) cannot be blocked: nothing is said of it.
        """
        ((runner, tactic, *_),) = found.entries.values()
        if tactic == -1:
            return None
        if self._device != "cuda":
            nan = any(fault.fault == "nan" for fault in self._faults(unit, tactic))
            return _quarantined(unit, runner, tactic, "not finite", "planted") if nan else None
        for m in (unit.bucket, size_inside(unit.bucket)):
            if m is None:
                continue
            with self._planted(unit):
                problem = problem_of(self._bind(unit.call)(m))
            self._end_if_lost()
            if problem is not None:
                fault: Fault = "not finite" if "finite" in problem else "wrong result"
                return _quarantined(unit, runner, tactic, fault, f"{problem} at M = {m}")
        return None

    def _too_large(self, unit: WorkUnit) -> str | None:
        needed, free = unit_memory(unit).total, self._free_bytes()
        if free is None or needed <= free:
            return None
        return f"does not fit: it takes {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; smaller sizes go on"

    def _free_bytes(self) -> int | None:
        """Device memory that this process can have: what is free, and what its allocator holds; None if unknown."""
        if self._device != "cuda":
            memory = self._spec.gpu.memory_mib
            return None if memory is None else memory << 20
        import torch

        return int(torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved())

    def _faults(self, unit: WorkUnit, tactic: Any) -> list[PlantedFault]:
        return [fault for fault in self._spec.planted if fault.hits(unit.custom_op, tactic, unit.bucket)]

    def _planted(self, unit: WorkUnit) -> contextlib.AbstractContextManager[None]:
        if not self._spec.planted:
            return contextlib.nullcontext()

        def before(tactic: Any) -> Callable[[Any], Any] | None:
            change = None
            for fault in self._faults(unit, tactic):
                suffer(fault, self._device)
                if fault.fault == "nan":
                    change = _not_a_number
            return change

        return internals.launches_watched(before, on_gpu=self._device == "cuda")

    def _end_if_lost(self) -> None:
        """A lost context cannot be mended: the parent starts another process."""
        if self._device == "cuda" and internals.context_lost():
            os._exit(CONTEXT_LOST)

    def _bind(self, call: OpCall) -> Bind:
        if self._prepared is None or call != self._call:
            self._release()
            self._prepared, self._call = call.prepare(self._device), call
        return self._prepared

    def _release(self) -> None:
        self._prepared = self._call = None
        if self._device == "cuda":
            import torch

            with contextlib.suppress(RuntimeError):
                torch.cuda.empty_cache()


@dataclass(frozen=True)
class _Found:
    """What one attempt gave: as in ``UnitResult``."""

    entries: Mapping[str, list[Any]] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    failure: str | None = None
    search: Search | None = None
    quarantined: tuple[Quarantined, ...] = ()


def _searched(
    entries: Mapping[str, list[Any]],
    raced: Sequence[internals.Raced],
    timed: Sequence[internals.TimedTactic],
    *,
    careful: bool,
) -> Search | None:
    """What is known of the one profile that a unit has."""
    if not entries:
        return None
    ((_, pick, *_),) = entries.values()
    if not raced:
        times = [Candidate(_as_json(found.tactic), found.ms * 1e3) for found in timed if found.ms is not None]
        strategy: Literal["careful", "stock"] = "careful" if careful else "stock"
        return Search(strategy, pick, tuple(sorted(times, key=lambda found: found.us)))
    (profile,) = raced
    result = profile.result
    ranked = sorted((ms * 1e3, place) for place, ms in result.times.items())
    return Search(
        strategy="race",
        pick=pick,
        candidates=tuple(Candidate(_as_json(profile.tactics[place]), us) for us, place in ranked),
        spread=result.spread,
        tied=len(result.tied),
        launches=result.launches,
    )


def _quarantined(unit: WorkUnit, runner: str, tactic: Any, fault: Fault, reason: str) -> Quarantined:
    return Quarantined(unit.custom_op, runner, _as_json(tactic), fault, reason, unit.bucket, unit.call.label)


def _as_json(tactic: Any) -> Any:
    """A tactic as an entry of a cache file has it: a tuple is a list there."""
    return json.loads(json.dumps(tactic))


def _not_a_number(output: Any) -> Any:
    return output.fill_(float("nan")) if hasattr(output, "fill_") else output


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no text'}"


def _saved_entries(tuner: Any) -> dict[str, list[Any]]:
    """What FlashInfer itself would write for the tuner's present contents."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "unit.json")
        tuner.save_configs(path)
        with open(path, encoding="utf-8") as file:
            saved = json.load(file)
    return {key: value for key, value in saved.items() if not key.startswith("_")}
