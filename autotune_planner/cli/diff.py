"""``autotune-plan diff``: two caches, or the ranks of one deployment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune_planner.cli.options import directory
from autotune_planner.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from autotune_planner.cache.diff import RankReport


def diff(
    a: Annotated[Path | None, typer.Argument(help="A cache file, a directory of rank files, or a v2 store.")] = None,
    b: Annotated[Path | None, typer.Argument(help="Another one.")] = None,
    ranks: Annotated[
        Path | None, typer.Option("--ranks", help="Compare its rank files instead.", metavar="DIR|FILE")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    cache_dir: Annotated[
        str | None, typer.Option("--cache-dir", help="With a deployment file: for SGLANG_CACHE_DIR.", metavar="DIR")
    ] = None,
) -> None:
    """Compare two caches: keys on one side, tactics with the times of both, policies, environments. 5 if they differ.

    With --ranks, the rank files of one deployment: 5 if tensor-parallel ranks differ, which makes the server delete
    all of them. Pipeline stages may differ.
    """
    from autotune_planner.cache.diff import diff as compare
    from autotune_planner.cli.cache_source import content_of
    from autotune_planner.json_text import json_text
    from autotune_planner.report.console import data_console
    from autotune_planner.report.diff_view import diff_document, diff_view, rank_document, rank_view

    place = directory(cache_dir)
    if ranks is not None:
        if a is not None:
            raise UsageError(
                "--ranks takes the place of A and B", code="usage", hint=f"autotune-plan diff --ranks {ranks}"
            )
        report = _rank_report(ranks, place)
        document, view, differs = rank_document(report), rank_view(report), report.failed
    elif a is not None and b is not None:
        difference = compare(content_of(a, place), content_of(b, place))
        document, view, differs = diff_document(difference), diff_view(a, b, difference), not difference.empty
    else:
        raise UsageError("diff takes two caches", code="usage", hint="autotune-plan diff A B")
    if json:
        print(json_text(document))
    else:
        data_console().print(view, soft_wrap=True)
    if differs:
        raise typer.Exit(ExitCode.DIFFERENCE)


def _rank_report(path: Path, cache_dir: str | None) -> RankReport:
    from autotune_planner.cache.diff import diff_ranks
    from autotune_planner.cli.cache_source import is_deployment, places_of, rank_files

    places = places_of(path, cache_dir)
    if places[0].format == "v2":
        raise UsageError("a v2 store has no rank files", code="usage", where=str(path), hint="autotune-plan diff A B")
    expected = rank_files(path, cache_dir)[1] if is_deployment(path) else []
    return diff_ranks(expected, places)
