"""What this machine has against what a plan needs, item by item."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autotune_planner.cache import sglang_layout
from autotune_planner.ops.base import JitModule
from autotune_planner.plan.modules import build_seconds, modules_of
from autotune_planner.plan.plan import Plan
from autotune_planner.tuning.environment import Machine
from autotune_planner.tuning.known_issues import known_issues

Status = Literal["ok", "note", "missing"]


@dataclass(frozen=True)
class Item:
    """One thing of the machine. ``missing``: the plan cannot be tuned here without it."""

    topic: str
    status: Status
    text: str
    hint: str | None = None


def items(machine: Machine, plan: Plan | None) -> tuple[Item, ...]:
    """Every item. Without a plan nothing is needed: what is not there is a note."""
    found = (
        *_gpus(machine, plan),
        *_packages(machine, plan),
        *_stamp(machine),
        *_modules(machine, plan),
        *_folders(machine, plan),
        *_issues(machine, plan),
    )
    if plan is not None and plan.units:
        return found
    return tuple(Item(item.topic, "note", item.text, item.hint) if item.status == "missing" else item for item in found)


def _gpus(machine: Machine, plan: Plan | None) -> Iterator[Item]:
    if machine.driver is None:
        yield Item("driver", "note", "nvidia-smi does not answer: no NVIDIA driver, or not in this container")
    else:
        yield Item("driver", "ok", machine.driver)
    wanted = plan.resolved.gpu.name if plan else None
    if not machine.gpus:
        hint = "run inside the server's image on its GPU (docker run --gpus all)"
        yield Item("GPU", "missing", f"none that torch can see{f'; the plan is for {wanted}' if wanted else ''}", hint)
    for gpu in machine.gpus:
        if gpu.compute_capability < (9, 0):
            yield Item("GPU", "missing", f"{gpu}: SGLang tunes FlashInfer on SM90 and newer only")
        elif wanted not in (None, gpu.name):
            hint = "correct gpu: in the deployment file, or run on that GPU model"
            yield Item("GPU", "missing", f"{gpu}; the plan is for {wanted}, and files of another GPU are ignored", hint)
        else:
            yield Item("GPU", "ok", str(gpu))


def _packages(machine: Machine, plan: Plan | None) -> Iterator[Item]:
    yield Item("Python", "ok", machine.python)
    pinned = plan.resolved.release.flashinfer_version if plan else None
    if machine.torch is None:
        yield Item("torch", "missing", "not installed", "use the server's image")
    else:
        yield Item("torch", "ok", f"{machine.torch}, CUDA {machine.torch_cuda or 'none'}")
    if machine.flashinfer is None:
        yield Item(
            "FlashInfer", "missing", "not installed", f"pip install flashinfer-python{f'=={pinned}' if pinned else ''}"
        )
    elif pinned not in (None, machine.flashinfer):
        text = f"{machine.flashinfer}, but the release pins {pinned}: the server would look elsewhere"
        yield Item("FlashInfer", "missing", text, f"use the server's image, or pip install flashinfer-python=={pinned}")
    else:
        yield Item("FlashInfer", "ok", machine.flashinfer)
    if machine.problem is not None:
        yield Item(
            "FlashInfer", "missing", f"does not answer: {machine.problem}", "python -c 'import torch, flashinfer'"
        )


def _stamp(machine: Machine) -> Iterator[Item]:
    for field, value in (machine.metadata or {}).items():
        if value == "unknown":
            text = "unknown: a file whose writer knew it is ignored here, and the other way round"
            yield Item(f"stamp {field}", "note", text)
        else:
            yield Item(f"stamp {field}", "ok", value)


def _modules(machine: Machine, plan: Plan | None) -> Iterator[Item]:
    missing = [module for module in modules_of(plan) if not machine.compiled.get(module.name, False)]
    for module in modules_of(plan):
        yield _module(module, machine) if module in missing else Item(f"module {module.name}", "ok", "compiled")
    for name, program in (("nvcc", machine.nvcc), ("ninja", machine.ninja)):
        if program is not None:
            yield Item(name, "ok", f"{program.path} {program.version}".strip())
        elif missing:
            hint = "use an image with the CUDA toolkit, or install flashinfer-jit-cache with prebuilt modules"
            yield Item(name, "missing", f"not found, and {missing[0].name} has to be compiled", hint)
        else:
            yield Item(name, "note", "not found; nothing that this asks about has to be compiled")
    if machine.prebuilt is not None:
        yield Item("flashinfer-jit-cache", "ok", machine.prebuilt)


def _module(module: JitModule, machine: Machine) -> Item:
    seconds = build_seconds(module.name, machine.cores)
    time = "a time that was not measured" if seconds is None else f"about {_duration(seconds)} on {machine.cores} cores"
    text = f"not compiled: {module.objects} objects, {time}; run compiles it first, the server at its start otherwise"
    return Item(f"module {module.name}", "note", text)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _folders(machine: Machine, plan: Plan | None) -> Iterator[Item]:
    if plan is not None and plan.resolved.gpu.vendor == "nvidia":
        place = plan.resolved.cache_place
        hint = "autotune-plan run FILE --cache-dir DIR, and SGLANG_CACHE_DIR=DIR for the server"
        yield _folder("cache directory", sglang_layout.cache_directory(place), "missing", hint)
    if machine.compiled_folder is not None:
        hint = "FLASHINFER_WORKSPACE_BASE=DIR for this and for the server"
        yield _folder("compiled modules", Path(machine.compiled_folder), "note", hint)


def _folder(topic: str, path: Path, status: Status, hint: str) -> Item:
    """Judged without making anything: the nearest folder that exists must be writable."""
    nearest = next(folder for folder in (path, *path.parents) if os.path.exists(folder))
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return Item(topic, "ok", f"{path} {'is writable' if nearest == path else 'can be made'}")
    return Item(topic, status, f"{path} cannot be written: {nearest} is read-only here", hint)


def _issues(machine: Machine, plan: Plan | None) -> Iterator[Item]:
    stamp = machine.metadata or {}
    versions = {"cudnn_frontend": stamp.get("cudnn_frontend_version"), "flashinfer": machine.flashinfer}
    if plan is not None:
        versions[plan.resolved.release.name] = plan.resolved.release.version
    sm = {10 * gpu.compute_capability[0] + gpu.compute_capability[1] for gpu in machine.gpus}
    if not sm and plan is not None and plan.resolved.gpu.compute_capability is not None:
        sm = {10 * plan.resolved.gpu.compute_capability[0] + plan.resolved.gpu.compute_capability[1]}
    known = {package: version for package, version in versions.items() if version is not None}
    for issue in known_issues(known, sm):
        fixed = f"; not in {issue.fixed_in}" if issue.fixed_in else ""
        text = f"{issue.package} {issue.version}: {issue.text}{fixed} ({issue.source}, {issue.date})"
        yield Item("known issue", "note", text)
