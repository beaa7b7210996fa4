"""``bench`` as a function: a plan and its cache become times with and without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from autotune_planner import pipeline
from autotune_planner.cache.contents import content_at
from autotune_planner.cache.rank_files import read_rank_files
from autotune_planner.cache.v1 import TUNE_AGAIN
from autotune_planner.engines.resolved import CachePlace
from autotune_planner.errors import CacheFileError, NotPossibleHereError, PlannerError, UsageError
from autotune_planner.plan.plan import Plan
from autotune_planner.proof.bench import Bench, bench
from autotune_planner.proof.sessions import reached
from autotune_planner.tuning.devices import DeviceKind, require_flashinfer
from autotune_planner.tuning.flashinfer_internals import installed_version


def bench_cache(
    plan: Plan,
    *,
    cache_dir: str | None,
    against: Path | None,
    sizes: Sequence[int] | None,
    device: DeviceKind,
    run_command: str,
    said: Callable[[str], None],
) -> Bench:
    """Measure the cache of a plan's server on one GPU.

    ``cache_dir`` stands for SGLANG_CACHE_DIR. ``against`` is a cache that stock FlashInfer tuned: a file, a directory
    of rank files, or another cache directory. ``NotPossibleHereError`` without the deployment's GPU or without an op
    to measure, ``UsageError`` where no op reaches a size, ``CacheFileError`` where the ranks have no one content.
    """
    if not plan.resolved.ops:
        reason = plan.resolved.no_autotune_reason or "this deployment reaches no op that is tuned here"
        raise NotPossibleHereError(
            f"there is nothing to measure: {reason}", code="nothing-to-measure", hint="autotune-plan compute"
        )
    largest = max(map(reached, plan.resolved.ops))
    if sizes is not None and min(sizes) > largest:
        raise UsageError(
            f"this deployment calls no op with more than {largest} tokens",
            code="usage",
            where="--sizes",
            hint=f"--sizes {largest}",
        )
    release = plan.resolved.release
    version = require_flashinfer(release.flashinfer_version, release.name, installed_version())
    pipeline.choose_devices(plan, device, 1)
    place = pipeline.place_of(plan, cache_dir=cache_dir, flashinfer_version=version)
    path = _file_of(place)
    if path is None:
        raise CacheFileError("no rank has a cache file", code="no-file", where=place.cache_dir, hint=run_command)
    stock = None if against is None else _against(place, against)
    return bench(plan, path, against=stock, sizes=sizes, device=device, said=said)


def _file_of(place: CachePlace) -> str | None:
    """The first rank's file; all that are there must hold the same."""
    present = [file for file in read_rank_files(place) if not file.absent]
    for file in present:
        if file.problem is not None:
            raise CacheFileError(
                f"the cache file {file.problem}",
                code="cache-file",
                where=str(file.path),
                hint=file.remedy or TUNE_AGAIN,
            )
        if file.digest != present[0].digest:
            raise CacheFileError(
                "the files of the ranks differ, so no one of them can be measured for all",
                code="ranks-differ",
                where=str(file.path),
                hint="autotune-plan check FILE says in what",
            )
    return str(present[0].path) if present else None


def _against(place: CachePlace, against: Path) -> str:
    try:
        return _stock_file(place, against)
    except PlannerError as error:
        if error.code == "no-such-file" or error.hint == TUNE_AGAIN:  # the file is no cache of ours to make anew
            error.hint = "--against takes a cache that stock FlashInfer tuned: a rank_*.json, or its directory"
        raise


def _stock_file(place: CachePlace, against: Path) -> str:
    if against.is_dir():
        below = _file_of(replace(place, cache_dir=str(against)))
        if below is not None:
            return below
    content = content_at(against)
    if content.place.format != "v1":
        raise UsageError(
            f"{against} is a v2 store, which SGLang does not read",
            code="usage",
            where="--against",
            hint="give rank files: those of a run with --format v1",
        )
    return str(content.path)
