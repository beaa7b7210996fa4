"""The straight pipeline as functions: a deployment becomes a plan, a plan becomes tuned entries, entries become files.

The commands and the Python API both call these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune_planner import engines
from autotune_planner.cache import publish as publishing
from autotune_planner.cache import sglang_layout
from autotune_planner.deployment.model import Deployment
from autotune_planner.engines.resolved import CachePlace
from autotune_planner.errors import NotPossibleHereError
from autotune_planner.plan.plan import Plan, make_plan
from autotune_planner.tuning.devices import CudaDevice, DeviceKind, cuda_devices, require_flashinfer
from autotune_planner.tuning.lock import tuning_lock
from autotune_planner.tuning.pool import Observer
from autotune_planner.tuning.tune import Tuned, tune

WORK_FOLDER = ".autotune-plan"  # journal, lock and worker logs, inside the target directory


def plan(deployment: Deployment, environ: Mapping[str, str]) -> Plan:
    """Resolve a deployment by its server's rules and plan what is tuned. ``DeploymentError`` if the server rejects it."""
    return make_plan(engines.resolve(deployment, environ=environ))


@dataclass(frozen=True)
class Target:
    """Where a run publishes: one directory, one file for every rank of the deployment."""

    directory: Path
    files: tuple[str, ...]

    @property
    def work_dir(self) -> Path:
        return self.directory / WORK_FOLDER


@dataclass(frozen=True)
class RunOutcome:
    """``tuned`` is None where there was nothing to tune. ``kept`` counts entries of earlier files that were kept."""

    target: Target
    tuned: Tuned | None
    published: tuple[Path, ...]
    kept: int


def target_of(plan: Plan, *, cache_dir: str | None, flashinfer_version: str) -> Target:
    """The server's own cache place for this plan; ``cache_dir`` stands for SGLANG_CACHE_DIR."""
    place = place_of(plan, cache_dir=cache_dir, flashinfer_version=flashinfer_version)
    names = tuple(dict.fromkeys(sglang_layout.rank_file_name(rank) for rank in place.ranks))
    return Target(Path(sglang_layout.cache_directory(place)), names)


def place_of(plan: Plan, *, cache_dir: str | None, flashinfer_version: str) -> CachePlace:
    place = plan.resolved.cache_place
    return replace(place, cache_dir=cache_dir or place.cache_dir, flashinfer_version=flashinfer_version)


def choose_devices(plan: Plan, device: DeviceKind, gpus: int | None) -> Sequence[CudaDevice] | int:
    """The GPUs of a run. ``gpus`` None means all there are. ``NotPossibleHereError`` lists what is there instead."""
    if device == "simulated":
        return gpus or 1
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
            f"--gpus {gpus}, but there are {len(found)}: {listing}",
            code="too-few-gpus",
            where="--gpus",
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
    gpus: int | None,
    target: Target,
    fresh: bool,
    observer: Observer,
) -> RunOutcome:
    """Tune a plan and publish one identical file for every rank: all of them or none.

    ``NotPossibleHereError`` before any tuning where the result could not be published.
    """
    devices = choose_devices(plan, device, gpus)
    publishing.check_writable(target.directory)
    with tuning_lock(target.work_dir):
        tuned = tune(plan, device=device, devices=devices, work_dir=target.work_dir, fresh=fresh, observer=observer)
        content, kept = publishing.content_of(target.directory, target.files, tuned.metadata, tuned.entries)
        published = publishing.publish(target.directory, target.files, content)
    return RunOutcome(target, tuned, tuple(published), kept)


def flashinfer_version(plan: Plan, stated: str | None) -> str:
    """FlashInfer version of the cache path, checked against the installed one."""
    release = plan.resolved.release
    return require_flashinfer(release.flashinfer_version, f"{release.name} {release.version}", stated)
