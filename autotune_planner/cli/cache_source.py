"""The cache that a command is given: a path, or a deployment file and the place that its server looks in."""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from autotune_planner.cache.contents import Content, Place, content_at, grouped, places_at, read_content
from autotune_planner.cache.files import is_there
from autotune_planner.cli.options import run_command
from autotune_planner.engines.resolved import Resolved
from autotune_planner.errors import CacheFileError, UsageError
from autotune_planner.plan.plan import Plan

_DEPLOYMENT_SUFFIXES = (".yaml", ".yml")


def is_deployment(path: Path) -> bool:
    return path.suffix in _DEPLOYMENT_SUFFIXES and not os.path.isdir(path)


def plan_of(file: Path) -> Plan:
    """The plan of a deployment file."""
    from autotune_planner import planning
    from autotune_planner.deployment.load import load_deployment

    return planning.plan(load_deployment(file), os.environ)


def rank_files(file: Path, cache_dir: str | None, plan: Plan | None = None) -> tuple[Resolved, list[Path]]:
    """The deployment of a file, and the file that each of its ranks opens. ``plan`` is the file's, if it is known."""
    from autotune_planner.cache import sglang_layout

    resolved = (plan or plan_of(file)).resolved
    place = resolved.cache_place
    place = replace(place, cache_dir=cache_dir or place.cache_dir)
    return resolved, list(dict.fromkeys(sglang_layout.rank_file(place, rank) for rank in place.ranks))


def places_of(path: Path, cache_dir: str | None = None, plan: Plan | None = None) -> list[Place]:
    """Contents at a path, or of the rank files of a deployment file, whose ``plan`` may be known.

    Where there are none: ``UsageError`` at a path that was typed, ``CacheFileError`` for a server whose cache is not
    there.
    """
    if not is_deployment(path):
        return places_at(path)
    resolved, files = rank_files(path, cache_dir, plan)
    present = [file for file in files if is_there(file)]
    if present:
        return grouped(present)
    why = resolved.no_autotune_reason
    raise CacheFileError(
        f"the server reads no cache: {why}" if why else "no rank of the server has a cache file yet",
        code="no-such-file",
        where=str(files[0].parent),
        hint=shlex.join(["autotune-plan", "compute", str(path)]) if why else run_command(path, cache_dir),
    )


def content_of(path: Path, cache_dir: str | None = None) -> Content:
    """The one content of a path or deployment file."""
    if not is_deployment(path):
        return content_at(path)
    places = places_of(path, cache_dir)
    if len(places) > 1:
        raise UsageError(
            "the rank files of the deployment differ",
            code="ranks-differ",
            where=str(places[0].files[0].parent),
            hint=shlex.join(
                ["autotune-plan", "diff", "--ranks", str(path), *(["--cache-dir", cache_dir] if cache_dir else [])]
            ),
        )
    return read_content(places[0])


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A large cache is millions of values that all stay in use: collecting would nearly double the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
