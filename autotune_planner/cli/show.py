"""``autotune-plan show``: cached tactics by op and bucket."""

from __future__ import annotations

import json as jsonlib
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer

from autotune_planner.cache.v1 import read_v1
from autotune_planner.errors import UsageError
from autotune_planner.report.cache_view import cache_document, cache_view
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
        content = read_v1(files[0])
        if json:
            print(jsonlib.dumps(cache_document(files[0], content), indent=2))
        else:
            data_console().print(cache_view(files[0], content, ranks=files if len(files) > 1 else ()))


def _same_content(path: Path) -> list[list[Path]]:
    """The file itself, or the rank files of a directory grouped by equal content."""
    if not path.is_dir():
        return [[path]]
    groups: defaultdict[bytes, list[Path]] = defaultdict(list)
    for file in sorted(path.glob("*.json")):
        groups[file.read_bytes()].append(file)
    if not groups:
        raise UsageError(f"{path} holds no *.json file", code="no-such-file", where=str(path))
    return list(groups.values())
