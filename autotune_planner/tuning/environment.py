"""The machine as a server would find it: driver, GPUs, torch, FlashInfer's stamp, compilers, compiled modules."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune_planner.cache.files import read_regular
from autotune_planner.errors import NotPossibleHereError, UsageError
from autotune_planner.json_text import parse_json
from autotune_planner.plan.plan import Plan, WorkUnit
from autotune_planner.tuning import flashinfer_internals as internals
from autotune_planner.tuning import keys as exact
from autotune_planner.tuning.asking import ask
from autotune_planner.tuning.devices import CudaDevice, visible_devices
from autotune_planner.tuning.keys import PlannedKey

SCHEMA = "autotune-plan/doctor@1"

_PROGRAM_SECONDS = 10.0  # for nvcc, ninja and nvidia-smi to name their version


@dataclass(frozen=True)
class Program:
    """A program that compiling needs. ``version`` is the line in which it names it."""

    path: str
    version: str


@dataclass(frozen=True)
class Machine:
    """What is installed here. None where it is missing.

    ``metadata`` is the stamp that FlashInfer writes into cache files here; ``compiled`` says which of the modules that
    were asked for are there, ``compiled_folder`` where new ones go. ``problem`` is why FlashInfer could not be asked.
    """

    python: str
    cores: int
    driver: str | None
    gpus: tuple[CudaDevice, ...]
    torch: str | None
    torch_cuda: str | None
    flashinfer: str | None
    prebuilt: str | None  # version of flashinfer-jit-cache
    metadata: Mapping[str, str] | None
    compiled: Mapping[str, bool]
    compiled_folder: str | None
    nvcc: Program | None
    ninja: Program | None
    problem: str | None


def probe_machine(modules: Sequence[str] = ()) -> Machine:
    """Look at this machine. ``modules`` are names of compiled modules. Never raises for what is missing."""
    asked: dict[str, Any] = {}
    problem = None
    try:
        asked = ask(_inside, tuple(modules))
    except NotPossibleHereError as error:
        problem = error.message
    return Machine(
        python=platform.python_version(),
        cores=len(os.sched_getaffinity(0)),
        driver=_driver(),
        gpus=asked.get("gpus", ()),
        torch=_version("torch"),
        torch_cuda=asked.get("torch_cuda"),
        flashinfer=_version("flashinfer-python"),
        prebuilt=_version("flashinfer-jit-cache"),
        metadata=asked.get("metadata"),
        compiled=asked.get("compiled", {}),
        compiled_folder=asked.get("compiled_folder"),
        nvcc=_program(_nvcc(), "release"),
        ninja=_program(shutil.which("ninja"), ""),
        problem=problem,
    )


def stamp_and_keys(plan: Plan) -> tuple[dict[str, str], dict[WorkUnit, tuple[PlannedKey, ...]]]:
    """FlashInfer's stamp of this machine and the exact keys of a plan, from one child process."""
    return ask(_stamp_and_keys, plan)


def read_stamp(path: Path) -> dict[str, str]:
    """The stamp in a document of ``doctor --json``. ``UsageError`` for anything else."""
    try:
        document = parse_json(read_regular(path))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise _no_stamp(path, f"cannot be read: {reason}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise _no_stamp(path, f"is no {SCHEMA} document")
    stamp = document.get("metadata")
    if not isinstance(stamp, dict) or not all(isinstance(value, str) for value in stamp.values()) or not stamp:
        raise _no_stamp(path, "has no metadata: FlashInfer could not be asked where it was written")
    return stamp


def _no_stamp(path: Path, what: str) -> UsageError:
    return UsageError(
        f"the environment {what}",
        code="bad-environment",
        where=str(path),
        hint="write it inside the server's image: autotune-plan doctor --json > env.json",
    )


def _inside(modules: tuple[str, ...]) -> dict[str, Any]:
    internals.import_flashinfer(quiet=True)
    import torch

    return {
        "torch_cuda": torch.version.cuda,
        "gpus": visible_devices(),
        "metadata": internals.collect_metadata(),
        "compiled": {module: internals.is_compiled(module) for module in modules},
        "compiled_folder": internals.compiled_folder(),
    }


def _stamp_and_keys(plan: Plan) -> tuple[dict[str, str], dict[WorkUnit, tuple[PlannedKey, ...]]]:
    internals.import_flashinfer(quiet=True)
    return internals.collect_metadata(), exact.keys_by_unit(plan)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _nvcc() -> str | None:
    """The compiler that FlashInfer takes. Source: FlashInfer 0.7.2, ``jit/cpp_ext.py:get_cuda_path``."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    path = Path(home, "bin", "nvcc") if home else Path(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    return str(path) if path.is_file() else None


def _program(path: str | None, word: str) -> Program | None:
    """A program and the first line of ``--version`` that holds ``word``."""
    if path is None:
        return None
    lines = _output(path, "--version")
    return Program(path, next((line.strip() for line in lines if word in line), "")) if lines else None


def _driver() -> str | None:
    lines = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return lines[0].strip() if lines else None


def _output(*command: str) -> list[str]:
    """Lines of a program's output, none where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROGRAM_SECONDS, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()
