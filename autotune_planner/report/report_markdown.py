"""A report as Markdown for a pull request: the tables of the page, without its charts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from autotune_planner import __version__
from autotune_planner.report import report_tables as tables
from autotune_planner.report.charts import layer_title
from autotune_planner.report.check_view import verdict
from autotune_planner.report.plan_view import headline
from autotune_planner.report.report_tables import Table
from autotune_planner.reporting import RankGroup, Report

_SPECIAL = re.compile(r"[\\`*{}\[\]<>|#~&@]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")  # a_b is no emphasis


def report_markdown(report: Report) -> str:
    """GitHub's Markdown; long parts are folded."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    found = report.checked.report
    yield f"## {_text(headline(report.plan.resolved))}"
    yield from ("", f"**{_text(verdict(report.checked))}**")
    if report.simulated:
        yield from ("", f"**{_text(tables.SIMULATED_NOTE)}**")
    for group in report.groups:
        yield from _section(f"Result{tables.whose(report.groups, group)}", tables.facts(report, group))
    yield from _section("Checks", tables.findings(report))
    yield from _section("Files", tables.files(report))
    for served in found.served:
        if served.coverage:
            whose = tables.whose(found.served, served)
            yield from _section(f"Sizes M (tokens of one call) by what serves them{whose}", tables.sizes(served))
            yield from _section(f"Gaps{whose}", tables.gaps(served))
    for group in report.groups:
        yield from _heat(report, group)
    yield from _section("Quarantine", tables.quarantined(report))
    for group in report.groups:
        for layer in group.layers:
            title = f"Picks of {layer_title(layer)}{tables.whose(report.groups, group)}"
            yield from _folded(title, tables.picks(layer))
    yield from _folded("Environment", tables.environment(report))
    yield from _folded("Budgets", tables.budgets(report))
    yield from _folded("Passes that the server runs at start", tables.passes(report))
    yield from _folded("Warnings", tables.notices(report))
    yield from _folded("How the numbers came about", tables.derivation(report))
    yield from ("", f"Written by autotune-plan {__version__}")


def _heat(report: Report, group: RankGroup) -> Iterator[str]:
    rows = tuple((str(bucket), *(cell.text for cell in cells)) for bucket, cells in tables.heat_rows(group))
    labels = [f"[{place}]" for place in range(1, len(group.layers) + 1)]
    title = f"Times faster than the default tactic, by bucket{tables.whose(report.groups, group)}"
    yield from _section(title, Table(("bucket", *labels), rows, tuple(range(len(labels) + 1))))
    for label, layer in zip(labels, group.layers, strict=True):
        yield from ("", f"{_text(label)} {_text(layer_title(layer))}")


def _section(title: str, table: Table) -> Iterator[str]:
    if table.rows:
        yield from ("", f"### {_text(title)}", "", *_table(table))


def _folded(title: str, table: Table) -> Iterator[str]:
    if table.rows:
        yield from ("", f"<details><summary>{_text(title)}</summary>", "", *_table(table), "", "</details>")


def _table(table: Table) -> Iterator[str]:
    yield _row(table.header)
    yield f"|{'|'.join('---:' if i in table.right else '---' for i in range(len(table.header)))}|"
    yield from map(_row, table.rows)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(map(_text, cells))} |"


def _text(text: str) -> str:
    """As plain text: no markup, mention or HTML of what a file or flag holds."""
    return _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", text)
