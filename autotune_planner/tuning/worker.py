"""One GPU worker: a spawned process that tunes one work unit after another and talks only through its pipe."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any

from autotune_planner.ops.base import Bind, JitModule, OpCall
from autotune_planner.plan.plan import WorkUnit
from autotune_planner.tuning import flashinfer_internals as internals
from autotune_planner.tuning.child import flashinfer_child
from autotune_planner.tuning.contexts import tuning_contexts
from autotune_planner.tuning.messages import (
    BuildModules,
    ModuleBuilding,
    ModuleReady,
    ModulesReady,
    TuneUnit,
    UnitResult,
    WorkerReady,
    WorkerSpec,
)
from autotune_planner.tuning.simulated import CostModel


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
        tuner = _UnitTuner(device, cost_model)
        connection.send(WorkerReady(internals.collect_metadata()))
        while (request := connection.recv()) is not None:
            if isinstance(request, BuildModules):
                _build(request.modules, connection.send)
            elif isinstance(request, TuneUnit):
                connection.send(tuner.tune(request.unit))


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

    def __init__(self, device: str, cost_model: CostModel | None) -> None:
        self._device = device
        self._cost_model = cost_model
        self._call: OpCall | None = None
        self._prepared: Bind | None = None

    def tune(self, unit: WorkUnit) -> UnitResult:
        from flashinfer.autotuner import AutoTuner

        started = time.monotonic()
        clock = self._cost_model.elapsed_ms if self._cost_model else 0.0
        tuner = AutoTuner.get()
        tuner.clear_cache()  # save_configs dumps the whole in-memory table
        tuner.reset_statistics()
        failure = None
        try:
            launch = self._bind(unit.call)(1)
            with tuning_contexts(unit):
                launch()
        except Exception as error:  # reported, listed and left untuned; the other units go on
            failure = (
                f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no text'}"
            )
            self._release()
        entries = _saved_entries(tuner)
        if not entries and failure is None:
            failure = "FlashInfer found no tactic that runs, or the tensors did not fit into GPU memory"
        return UnitResult(
            unit=unit,
            entries=entries if failure is None else {},
            skipped=tuple(sorted(str(t) for tactics in tuner.stats.failed_tactics.values() for t in tactics)),
            seconds=time.monotonic() - started,
            device_seconds=(self._cost_model.elapsed_ms - clock) / 1e3 if self._cost_model else None,
            failure=failure,
        )

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


def _saved_entries(tuner: Any) -> dict[str, list[Any]]:
    """What FlashInfer itself would write for the tuner's present contents."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "unit.json")
        tuner.save_configs(path)
        with open(path, encoding="utf-8") as file:
            saved = json.load(file)
    return {key: value for key, value in saved.items() if not key.startswith("_")}
