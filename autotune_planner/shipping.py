"""Carry a tuned cache to where it is served: bundle it, check it against its target, install it.

The commands and the Python API both call these.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from autotune_planner import __version__, pipeline
from autotune_planner.cache import sglang_layout
from autotune_planner.cache.bundle import PLAN, Bundle
from autotune_planner.cache.files import read_regular, unreadable
from autotune_planner.cache.metadata import compare_stamp
from autotune_planner.cache.publish import check_writable, publish_files
from autotune_planner.cache.timings import JOURNAL, QUARANTINE, WORK_FOLDER
from autotune_planner.errors import CacheFileError, PlannerError
from autotune_planner.json_text import json_text
from autotune_planner.plan.plan import Plan
from autotune_planner.report.plan_document import plan_document
from autotune_planner.tuning.devices import SIMULATED
from autotune_planner.tuning.lock import tuning_lock

_UNKNOWN = "unknown"  # how FlashInfer stamps what it cannot tell, such as the GPU where there is none


@dataclass(frozen=True)
class Verdict:
    """Whether a target would load a bundle. ``compared`` are the fields of the environment that could be compared;
    ``problems`` are why it would not, none if it would."""

    compared: tuple[str, ...]
    problems: tuple[str, ...]


def make_bundle(plan: Plan, deployment: Path, cache_dir: str | None, run_command: str) -> Bundle:
    """The tuned cache of a plan, with all that says where it comes from. ``deployment`` is the plan's file, and
    ``run_command`` what would tune it.

    ``CacheFileError`` where a rank has no file that its server would take.
    """
    if plan.resolved.no_autotune_reason:
        raise CacheFileError(
            f"the server reads no cache: {plan.resolved.no_autotune_reason}",
            code="no-cache",
            where=str(deployment),
            hint=f"autotune-plan compute {deployment} shows what the server does instead",
        )
    place = pipeline.place_of(plan, cache_dir=cache_dir, flashinfer_version=_pinned(plan))
    target = pipeline.target_of(plan, cache_dir=cache_dir, flashinfer_version=_pinned(plan))
    files = {}
    for name in target.files:
        path = target.directory / name
        try:
            files[name] = _content(path)
        except FileNotFoundError:
            raise CacheFileError(
                "the rank has no cache file", code="no-rank-file", where=str(path), hint=run_command
            ) from None
    for name in (JOURNAL, QUARANTINE):
        with contextlib.suppress(FileNotFoundError):
            files[name] = _content(target.directory / name)
    document = plan_document(plan, place, keys=None, explain=False)
    files[PLAN] = json_text(document).encode()
    release = plan.resolved.release
    provenance = {
        "tool": f"autotune-plan {__version__}",
        "created_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "deployment": {"file": deployment.name, "sha256": hashlib.sha256(deployment.read_bytes()).hexdigest()},
        "engine": f"{release.name} {release.version}",
        "model_path": plan.resolved.model_path,
    }
    bundle = Bundle(str(target.directory.relative_to(sglang_layout.cache_root(place))), files, provenance)
    if disagreeing := bundle.disagreeing():
        raise CacheFileError(
            f"{' and '.join(disagreeing)} differ from the first rank's file: the server deletes all of them at start",
            code="ranks-differ",
            where=str(target.directory),
            hint=run_command,
        )
    return bundle


def is_simulated(bundle: Bundle) -> bool:
    """Whether a simulated run made it: its stamp names a GPU that no machine has, and no server loads it."""
    return any(str((stamp or {}).get("gpu")).startswith(SIMULATED) for stamp in bundle.stamps)


def judge(bundle: Bundle, directory: Path, plan: Plan | None, stamp: Mapping[str, str] | None) -> Verdict:
    """Whether the server at ``directory`` would load the bundle.

    ``plan`` is the target's, None if none is given; ``stamp`` is what FlashInfer says of this machine, None where it
    is not installed.
    """
    environment = {field: value for field, value in (stamp or {}).items() if value != _UNKNOWN or field != "gpu"}
    problems = []
    if plan is not None:
        environment |= {"flashinfer_version": _pinned(plan), "gpu": plan.resolved.gpu.name}
        problems += _place_problems(bundle, plan)
    for stamp_of_files in bundle.stamps:
        match = compare_stamp(stamp_of_files, environment)
        problems += [
            f"{field.field}: the bundle has {field.saved or 'none'}, the target {field.current}"
            for field in (*match.differing("hard"), *match.differing("soft"))
        ]
    if is_simulated(bundle) and not any(problem.startswith("gpu:") for problem in problems):
        problems.append("gpu: a simulated run made the bundle, and no server loads files of a simulated GPU")
    if disagreeing := bundle.disagreeing():
        problems.append(f"{' and '.join(disagreeing)} differ from the first rank's file")
    try:
        pipeline.check_same_gpu(pipeline.Target(directory, bundle.ranks), str((bundle.metadata or {}).get("gpu")))
    except PlannerError as error:
        problems.append(error.message)
    return Verdict(tuple(environment), tuple(problems))


def install(bundle: Bundle, directory: Path) -> list[Path]:
    """Write every file of the bundle into ``directory``, or none. Returns the paths.

    ``NotPossibleHereError`` where it cannot be written, ``LockedError`` where a run is at work on it.
    """
    check_writable(directory)
    with tuning_lock(directory / WORK_FOLDER):
        return publish_files(directory, bundle.files)


def directory_of(bundle: Bundle, plan: Plan | None, cache_dir: str) -> Path:
    """Where the target's server looks, below ``cache_dir``: by its plan, or else as the bundle says."""
    if plan is None:
        return Path(cache_dir).expanduser() / bundle.directory
    return pipeline.target_of(plan, cache_dir=cache_dir, flashinfer_version=_pinned(plan)).directory


def _place_problems(bundle: Bundle, plan: Plan) -> list[str]:
    place = pipeline.place_of(plan, cache_dir=None, flashinfer_version=_pinned(plan))
    target = pipeline.target_of(plan, cache_dir=None, flashinfer_version=_pinned(plan))
    wanted = str(target.directory.relative_to(sglang_layout.cache_root(place)))
    problems = []
    if plan.resolved.no_autotune_reason:
        problems.append(f"the server reads no cache: {plan.resolved.no_autotune_reason}")
    if wanted != bundle.directory:
        problems.append(f"the server looks in {wanted}, the bundle is of {bundle.directory}")
    if missing := [name for name in target.files if name not in bundle.ranks]:
        problems.append(f"the bundle has no {', '.join(missing)}")
    return problems


def _pinned(plan: Plan) -> str:
    return plan.resolved.release.flashinfer_version


def _content(path: Path) -> bytes:
    """``FileNotFoundError`` where there is none, ``CacheFileError`` where it cannot be read."""
    try:
        return read_regular(path)
    except NotADirectoryError as error:
        raise FileNotFoundError(*error.args) from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable("file", path, error, code="no-rank-file") from None
