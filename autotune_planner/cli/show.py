"""``autotune-plan show``: cached tactics by op and bucket."""

from __future__ import annotations

import contextlib
import gc
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from autotune_planner.cache.v1 import read_v1
from autotune_planner.errors import CacheFileError, UsageError
from autotune_planner.report.cache_view import cache_document, cache_json, cache_view
from autotune_planner.report.console import data_console, talk_console


def show(
    path: Annotated[Path, typer.Argument(help="A cache file, or a directory of rank files.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Show what a FlashInfer cache holds."""
    groups = _same_content(path)
    if json and len(groups) > 1:
        raise UsageError(
            f"the rank files in {path} differ, and --json shows one cache",
            code="ranks-differ",
            where=str(path),
            hint=f"autotune-plan show --json {groups[0][0]}",
        )
    if len(groups) > 1:
        talk_console().print(
            f"[yellow]warning:[/] {len(groups)} different contents: "
            "a tensor-parallel server deletes all of them at start"
        )
    for files in groups:
        with _located(files[0]), _no_garbage_collection():
            _show_one(files, json)


def _show_one(files: Sequence[Path], json: bool) -> None:
    content = read_v1(files[0])
    if json:
        print(cache_json(cache_document(files[0], content)))
    else:
        ranks = files if len(files) > 1 else ()
        data_console().print(cache_view(files[0], content, ranks), soft_wrap=True)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A large cache is millions of values that all stay in use: collecting would nearly double the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def _located(path: Path) -> Iterator[None]:
    """Errors of a key inside a file name the file."""
    try:
        yield
    except CacheFileError as error:
        error.where = error.where or str(path)
        raise


def _same_content(path: Path) -> list[list[Path]]:
    """The file itself, or the rank files of a directory grouped by equal content."""
    if not path.is_dir():
        return [[path]]
    groups: defaultdict[bytes, list[Path]] = defaultdict(list)
    for file in sorted(path.glob("*.json"), key=_rank_order):
        if file.is_file():
            groups[file.read_bytes()].append(file)
    if not groups:
        below = next(path.rglob("rank_*.json"), None)
        raise UsageError(
            "the directory holds no *.json file",
            code="no-such-file",
            where=str(path),
            hint=f"autotune-plan show {below.parent}" if below else None,
        )
    return list(groups.values())


def _rank_order(path: Path) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d+", path.stem)], path.name
