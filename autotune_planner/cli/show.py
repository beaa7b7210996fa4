"""``autotune-plan show``: cached tactics by op and bucket."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune_planner.cli.options import directory
from autotune_planner.errors import UsageError

if TYPE_CHECKING:
    from autotune_planner.cache.contents import Content, Place


def show(
    path: Annotated[
        Path, typer.Argument(help="A cache file, a directory of rank files, a v2 store, or a deployment file.")
    ],
    op: Annotated[str | None, typer.Option("--op", help="Only custom ops with this in their name.")] = None,
    bucket: Annotated[list[int] | None, typer.Option("--bucket", help="Only this bucket; repeatable.", min=0)] = None,
    rank: Annotated[str | None, typer.Option("--rank", help="Only this rank's file: tp1, or tp1_pp0_dp0.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Entries as CSV on stdout.")] = False,
    cache_dir: Annotated[
        str | None, typer.Option("--cache-dir", help="With a deployment file: for SGLANG_CACHE_DIR.", metavar="DIR")
    ] = None,
) -> None:
    """Show what a FlashInfer cache holds, with measured times where the journal of a run lies beside it.

    In a terminal a heat map of buckets and ops follows the tables.
    """
    # Here and below imported in the function, since every command imports this module.
    from autotune_planner.cache.contents import read_content
    from autotune_planner.cli.cache_source import is_deployment, no_garbage_collection, places_of, plan_of
    from autotune_planner.report.console import talk_console
    from autotune_planner.report.evidence import evidence_lines

    if json and csv:
        raise UsageError("--json and --csv are two forms of one output", code="usage", hint="give one of the two")
    plan = plan_of(path) if is_deployment(path) else None
    places = _of_rank(places_of(path, directory(cache_dir), plan), rank)
    if json and len(places) > 1:
        raise UsageError(
            f"{path} holds {len(places)} different caches, and --json shows one",
            code="ranks-differ",
            where=str(path),
            hint=f"autotune-plan show --json {places[0].files[0]}",
        )
    if len(places) > 1 and places[0].format == "v1":
        talk_console().print(
            f"[yellow]warning:[/] {len(places)} different contents: "
            "a tensor-parallel server deletes all of them at start"
        )
    _note_unreadable_journals(places)
    for line in evidence_lines(plan.ops) if plan else ():
        talk_console().print(f"note: {line}", markup=False)
    with no_garbage_collection():
        contents = (_selected(read_content(place), op, bucket) for place in places)
        _print(contents, json=json, csv=csv)


def _of_rank(places: Sequence[Place], rank: str | None) -> list[Place]:
    if rank is None:
        return list(places)
    from autotune_planner.cache.contents import rank_of

    wanted = rank_of(f"tp{rank}" if rank.isdecimal() else rank)
    if not wanted or not re.fullmatch(r"\d+|(?:rank_)?(?:_?(?:tp|pp|dp)\d+)+", rank):
        raise UsageError(f"--rank takes a rank, not {rank!r}", code="usage", where="--rank", hint="--rank tp1_pp0_dp0")
    chosen = [
        replace(place, files=files)
        for place in places
        if (files := tuple(file for file in place.files if wanted.items() <= rank_of(file.name).items()))
    ]
    if not chosen:
        names = [file.name for place in places for file in place.files]
        ranks = [name.removesuffix(".json").removeprefix("rank_") for name in names if rank_of(name)]
        raise UsageError(
            f"no file of rank {rank} among {' '.join(names)}",
            code="no-such-rank",
            where="--rank",
            hint=f"--rank {ranks[0]}" if ranks else "leave --rank out: these names hold no rank",
        )
    return chosen


def _note_unreadable_journals(places: Sequence[Place]) -> None:
    from autotune_planner.cache.timings import JOURNAL, unreadable_journal
    from autotune_planner.report.console import talk_console

    for folder in dict.fromkeys(place.directory for place in places):
        error = unreadable_journal(folder)
        if error is not None:
            reason = f"{folder / JOURNAL} cannot be read: {error.strerror}"
            talk_console().print(f"note: without times and gains, since {reason}", markup=False)


def _selected(content: Content, op: str | None, buckets: Collection[int] | None) -> Content:
    if (op is None and not buckets) or not content.entries:
        return content
    of_op = [entry for entry in content.entries if op is None or op.lower() in entry.key.custom_op.lower()]
    entries = tuple(entry for entry in of_op if not buckets or entry.key.bucket in buckets)
    if entries:
        return replace(content, entries=entries)
    if not of_op:
        ops = sorted({entry.key.custom_op for entry in content.entries})
        what, hint = f"no entry is of op {op}", f"--op {ops[0]}; ops here: {', '.join(ops)}"
    else:
        there = sorted({entry.key.bucket for entry in of_op})
        what, hint = "no entry is of this bucket", f"--bucket {there[0]}; buckets here: {' '.join(map(str, there))}"
    raise UsageError(what, code="no-such-entry", where=str(content.path), hint=hint)


def _print(contents: Iterator[Content], *, json: bool, csv: bool) -> None:
    from autotune_planner.report.cache_document import cache_csv, cache_json
    from autotune_planner.report.cache_view import cache_view
    from autotune_planner.report.console import data_console
    from autotune_planner.report.heat_map import heat_map

    if csv:
        _write(cache_csv(list(contents)))  # read first: an error comes alone
        return
    console = data_console()
    for content in contents:
        if json:
            _write(cache_json(content))
            continue
        console.print(cache_view(content), soft_wrap=True)
        if console.is_terminal and content.entries:
            console.print()
            console.print(heat_map(content, console.width), soft_wrap=True)


def _write(lines: Iterator[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
