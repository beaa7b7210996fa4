"""``autotune-plan merge``: one cache of several."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune_planner.errors import UsageError

if TYPE_CHECKING:
    from autotune_planner.cache.v1 import V1File


def merge(
    out: Annotated[
        Path, typer.Option("-o", "--output", help="NAME.json: a v1 file. A directory: the root of a v2 store.")
    ],
    caches: Annotated[list[Path], typer.Argument(help="Cache files, directories of rank files, v2 stores.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Write the union of caches that were tuned in one environment.

    Where two hold different results for one profile, the faster one by the journals beside them stands; without the
    times of both the merge is refused, and the conflicts are listed.
    """
    from autotune_planner.cache.merge import merge as merge_contents
    from autotune_planner.cli.cache_source import content_of
    from autotune_planner.json_text import json_text
    from autotune_planner.report.console import data_console
    from autotune_planner.report.merge_view import merge_document, merge_view

    _require_a_form(out)
    for cache in caches:
        if out.resolve() == cache.resolve():
            raise UsageError(f"{out} is an input too", code="usage", where="-o", hint="give the result another name")
    merged = merge_contents({str(cache): content_of(cache) for cache in caches})
    written = _write(out, merged.file)
    if json:
        print(json_text(merge_document(written, merged)))
    else:
        data_console().print(merge_view(written, merged), soft_wrap=True)


def _require_a_form(out: Path) -> None:
    """``UsageError`` for the name of some other file: a v2 store would become a directory of that name."""
    if re.fullmatch(r"\.[A-Za-z]\w*", out.suffix) and out.suffix != ".json" and not os.path.isdir(out):
        raise UsageError(
            f"{out} is neither NAME.json, a v1 file, nor a directory, the root of a v2 store",
            code="usage",
            where="-o",
            hint=f"-o {out.with_suffix('.json')}, or -o {out.with_suffix('')}",
        )


def _write(out: Path, file: V1File) -> Path:
    """The v1 file, or the environment's directory of the v2 store, that was written."""
    from autotune_planner.cache.publish import publish_files
    from autotune_planner.cache.v1 import render_v1
    from autotune_planner.cache.v2 import render_v2

    entries = {entry.text: entry for entry in file.entries}
    hint = "write it to another place: -o OUT"
    if out.suffix == ".json":
        return publish_files(out.parent, {out.name: render_v1(file.metadata, entries, file.records)}, hint)[0]
    if file.records:
        raise UsageError("a v2 store has no place for _records", code="usage", where="-o", hint="-o NAME.json")
    return publish_files(out, render_v2(file.metadata, entries), hint)[0].parent
