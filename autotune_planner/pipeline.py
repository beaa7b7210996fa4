"""The straight pipeline as functions: a deployment becomes a plan, a plan becomes tuned entries, entries become files.

The commands and the Python API both call these.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from autotune_planner.cache import publish as publishing
from autotune_planner.cache import sglang_layout
from autotune_planner.cache.merge import merged
from autotune_planner.cache.metadata import compare_stamp
from autotune_planner.cache.timings import JOURNAL, WORK_FOLDER, joined_journals
from autotune_planner.cache.v1 import Entry, V1File, entry_of, read_v1, render_v1
from autotune_planner.cache.v2 import environment_directory, render_v2
from autotune_planner.engines.resolved import CachePlace
from autotune_planner.errors import CacheFileError, DeploymentError, NotPossibleHereError, UsageError
from autotune_planner.plan.plan import Plan
from autotune_planner.planning import plan as plan
from autotune_planner.tuning.devices import SIMULATED, DeviceKind, cuda_devices, require_flashinfer
from autotune_planner.tuning.durable import parsed, read_text
from autotune_planner.tuning.lock import tuning_lock
from autotune_planner.tuning.pool import Observer
from autotune_planner.tuning.quarantine import tactic_place
from autotune_planner.tuning.ray_executor import connect
from autotune_planner.tuning.tune import Devices, Options, Tuned, tune

Format = Literal["v1", "v2"]

_SERVER_FORMAT: tuple[Format, ...] = ("v1",)  # SGLang reads no v2 store

_BLOCKLIST = "FLASHINFER_TACTICS_BLOCKLIST"

VIRTUAL_GPUS = 16  # of the simulated device


@dataclass(frozen=True)
class Target:
    """Where a run publishes: one directory, one file for every rank of the deployment.

    ``store_root`` is the root of the v2 store beside it, what FLASHINFER_AUTOTUNE_CACHE_DIR is to be set to.
    """

    directory: Path
    files: tuple[str, ...]

    @property
    def store_root(self) -> Path:
        return self.directory.parents[2]

    @property
    def work_dir(self) -> Path:
        return self.directory / WORK_FOLDER


@dataclass(frozen=True)
class RunOutcome:
    """``published`` are the files written; ``kept`` counts entries of earlier files that were kept beside ours.

    ``store`` is the environment's directory of the v2 store, None where none was asked for.
    """

    target: Target
    tuned: Tuned
    published: tuple[Path, ...]
    kept: int
    store: Path | None = None


def target_of(plan: Plan, *, cache_dir: str | None, flashinfer_version: str) -> Target:
    """The server's own cache place for this plan; ``cache_dir`` stands for SGLANG_CACHE_DIR."""
    place = place_of(plan, cache_dir=cache_dir, flashinfer_version=flashinfer_version)
    names = tuple(dict.fromkeys(sglang_layout.rank_file_name(rank) for rank in place.ranks))
    return Target(Path(sglang_layout.cache_directory(place)), names)


def place_of(plan: Plan, *, cache_dir: str | None, flashinfer_version: str) -> CachePlace:
    place = plan.resolved.cache_place
    return replace(place, cache_dir=cache_dir or place.cache_dir, flashinfer_version=flashinfer_version)


def choose_devices(plan: Plan, device: DeviceKind, gpus: int | None, cluster: str | None = None) -> Devices:
    """The GPUs of a run. ``gpus`` None means all there are. ``NotPossibleHereError`` lists what is there instead.

    ``cluster`` is the address of a Ray cluster whose GPUs are taken; what they are, its hosts say when they start.
    """
    if device == "simulated":
        if gpus is not None and gpus > VIRTUAL_GPUS:
            raise NotPossibleHereError(
                f"--gpus {gpus}, but the simulated device has {VIRTUAL_GPUS} virtual GPUs, each a process with torch",
                code="too-few-gpus",
                hint=f"--gpus {VIRTUAL_GPUS}",
            )
        return connect(cluster, device, gpus, most=VIRTUAL_GPUS) if cluster else gpus or 1
    if cluster:
        return connect(cluster, device, gpus)
    found = cuda_devices()
    listing = "; ".join(map(str, found)) or "none"
    if not found:
        raise NotPossibleHereError(
            "this machine has no GPU that torch can see",
            code="no-gpu",
            hint="run it on the server's machine, or try the whole path without one: --device simulated",
        )
    if gpus is not None and gpus > len(found):
        raise NotPossibleHereError(
            f"--gpus {gpus}, but there {'is 1' if len(found) == 1 else f'are {len(found)}'}: {listing}",
            code="too-few-gpus",
            hint=f"--gpus {len(found)}, or --gpus all: one GPU is enough, more only take less time",
        )
    chosen = found[:gpus]
    wanted = plan.resolved.gpu
    for candidate in chosen:
        if candidate.compute_capability < (9, 0):
            raise NotPossibleHereError(
                f"{candidate}: SGLang tunes FlashInfer on SM90 and newer only",
                code="gpu-architecture",
                hint="run it on the GPU that the server will have",
            )
        if candidate.name != wanted.name:
            raise NotPossibleHereError(
                f"{candidate}, but the deployment says {wanted.name}: FlashInfer ignores a file made on another GPU",
                code="gpu-differs",
                where="gpu",
                hint="run it on the server's GPU model, or correct gpu: in the deployment file",
            )
    return chosen


def run(
    plan: Plan,
    *,
    device: DeviceKind,
    devices: Devices,
    target: Target,
    observer: Observer,
    options: Options,
    formats: Collection[Format] = _SERVER_FORMAT,
) -> RunOutcome:
    """Tune a plan and publish one identical file for every rank: all of them or none. ``v2``: also, or only, a store.

    ``NotPossibleHereError`` before any tuning where the result could not be published, or where FlashInfer would fail
    over its own blocklist; ``LockedError`` where another run is at work on the same target.
    """
    require_blocklist(os.environ)
    publishing.check_writable(target.directory)
    check_same_gpu(target, f"{SIMULATED} {plan.resolved.gpu.name}" if device == "simulated" else plan.resolved.gpu.name)
    with tuning_lock(target.work_dir):
        tuned = tune(plan, device=device, devices=devices, work_dir=target.work_dir, observer=observer, options=options)
        ours = merged(entry_of(text, value) for text, value in tuned.entries.items())
        kept, published = _Kept({}, {}), list[Path]()
        if "v1" in formats:
            kept = _kept(target, tuned, ours)
            entries = {**kept.entries, **ours}
            if entries:
                content = render_v1(tuned.metadata, entries, kept.records)
                published = publishing.publish(target.directory, target.files, content)
        store = _publish_store(target, tuned, ours) if "v2" in formats else None
    return RunOutcome(target, tuned, tuple(published), len(kept.entries), store)


def _publish_store(target: Target, tuned: Tuned, ours: Mapping[str, Entry]) -> Path:
    """Write our entries into the v2 store, beside those that others tuned, and the journal for ``show``."""
    files = render_v2(tuned.metadata, ours)
    store = environment_directory(target.store_root, tuned.metadata)
    files[str((store / JOURNAL).relative_to(target.store_root))] = joined_journals(
        _content(store / JOURNAL), _content(target.directory / JOURNAL)
    )
    publishing.publish_files(target.store_root, files)
    return store


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _present_files(target: Target) -> list[V1File]:
    """The readable files that are there already; a damaged one is of no use to any rank."""
    files = []
    for name in target.files:
        with contextlib.suppress(CacheFileError, UsageError):
            files.append(read_v1(target.directory / name))
    return files


def check_same_gpu(target: Target, gpu: str) -> None:
    """``NotPossibleHereError`` where another GPU model's files are at the same path: both are SM90, say, and share a
    cache directory. FlashInfer does not overwrite those either. Simulated files give way to real ones, and so do those
    whose writer could not tell the GPU."""
    for file in _present_files(target):
        for field in compare_stamp(file.metadata, {"gpu": gpu}).differing("hard"):
            if str(field.saved).startswith(SIMULATED):
                continue
            raise NotPossibleHereError(
                f"the files there were tuned on {field.saved}, and this run is for {gpu}; the path is the same",
                code="other-gpu",
                where=str(target.directory),
                hint="give each GPU model a place of its own: --cache-dir DIR",
            )


@dataclass(frozen=True)
class _Kept:
    entries: Mapping[str, Entry]
    records: Mapping[str, Any]


def _kept(target: Target, tuned: Tuned, ours: Mapping[str, Entry]) -> _Kept:
    """What the ranks' present files hold beside ours, if all ranks agree and the environment is the same.

    A server or an earlier run tuned it; the server itself would merge it too. What is blocked by now is left out.
    """
    files = _present_files(target)
    same = len(files) == len(target.files) and all(
        file.metadata == tuned.metadata and file.entries == files[0].entries for file in files
    )
    if not same:
        return _Kept({}, {})
    try:
        others = merged(entry for entry in files[0].entries if entry.text not in ours)
        profiles = {(entry.key.custom_op, entry.key.profile) for entry in ours.values()}
        entries = {
            text: entry
            for text, entry in others.items()
            if (entry.key.custom_op, entry.key.profile) not in profiles
            and tactic_place(entry.key.custom_op, entry.runner, entry.tactic) not in tuned.blocked
        }
    except CacheFileError:
        return _Kept({}, {})
    return _Kept(entries, files[0].records)


def require_blocklist(environ: Mapping[str, str]) -> None:
    """``NotPossibleHereError`` for a blocklist that ends every process of FlashInfer which tunes.

    Source: FlashInfer 0.7.2, ``AutoTuner.__init__`` and ``tactics_blocklist.py``; a missing file is only logged.
    """
    path = environ.get(_BLOCKLIST)
    if not path or not os.path.isfile(path):
        return
    content = parsed(read_text(Path(path)) or "")
    blocked = content.get("invalid_tactics") if isinstance(content, dict) else None
    if not isinstance(blocked, dict) or not all(isinstance(tactics, list) for tactics in blocked.values()):
        raise NotPossibleHereError(
            f"{_BLOCKLIST} names a file that is no blocklist: FlashInfer would fail over it",
            code="blocklist",
            where=path,
            hint=f'unset {_BLOCKLIST}, or {{"_metadata": {{}}, "invalid_tactics": {{"OP::RUNNER": [TACTIC]}}}}',
        )


def require_startable(plan: Plan) -> None:
    """``DeploymentError`` where the server would accept its arguments and then fail while it builds the model."""
    for notice in plan.resolved.notices:
        if notice.code in ("shapes-do-not-divide", "ep-does-not-divide-tp"):
            raise DeploymentError(
                notice.message, code=notice.code, hint="autotune-plan compute shows the sizes per rank"
            )


def require_tunable_architecture(plan: Plan) -> None:
    """``NotPossibleHereError`` for an NVIDIA GPU that the server never tunes on; on AMD there is nothing to tune."""
    gpu = plan.resolved.gpu
    if gpu.vendor == "amd":
        return
    if gpu.compute_capability is None or gpu.compute_capability < (9, 0):
        raise NotPossibleHereError(
            f"{gpu.name} cannot be tuned: {plan.resolved.no_autotune_reason}",
            code="gpu-architecture",
            where="gpu",
            hint="autotune-plan compute shows what the server does instead",
        )


def require_planned(plan: Plan) -> None:
    """``NotPossibleHereError`` where the server tunes at start, and nothing of it is known to this version."""
    unplanned = plan.resolved.unplanned
    if unplanned is not None and not plan.units:
        raise NotPossibleHereError(
            f"nothing can be tuned ahead of time: {unplanned}",
            code="op-not-planned",
            hint="start the server as ever: it tunes at its first start and keeps the result in its own cache",
        )


def flashinfer_version(plan: Plan, stated: str | None) -> str:
    """FlashInfer version of the cache path, checked against the installed one."""
    release = plan.resolved.release
    return require_flashinfer(release.flashinfer_version, f"{release.name} {release.version}", stated)
