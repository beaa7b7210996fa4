"""A report as one self-contained HTML page: no script, nothing fetched, every text escaped by the template engine."""

from __future__ import annotations

import importlib.util
from importlib.resources import files
from typing import Any

from autotune_planner import __version__
from autotune_planner.errors import NotPossibleHereError
from autotune_planner.report import report_tables as tables
from autotune_planner.report.check_view import verdict
from autotune_planner.report.plan_view import headline
from autotune_planner.reporting import RankGroup, Report

_LIBRARIES = ("jinja2", "matplotlib")  # of the extra [report]


def require_libraries() -> None:
    """``NotPossibleHereError`` where the libraries of the page are missing."""
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise NotPossibleHereError(
            f"the page is drawn with {' and '.join(missing)}, not installed here",
            code="report-libraries",
            hint="pip install 'autotune-planner[report]', or --format md, which needs neither",
        )


def report_page(report: Report) -> str:
    """The page. Equal reports give equal bytes. ``require_libraries`` says whether it can be made here."""
    import jinja2

    here = files("autotune_planner.report")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(here.joinpath("report_page.html").read_text(encoding="utf-8"))
    style = here.joinpath("report_page.css").read_text(encoding="utf-8")
    return template.render(page={**_values(report), "style": style}) + "\n"


def _values(report: Report) -> dict[str, Any]:
    found = report.checked.report
    return {
        "title": headline(report.plan.resolved),
        "version": __version__,
        "used": report.checked.used,
        "verdict": verdict(report.checked),
        "note": tables.SIMULATED_NOTE if report.simulated else None,
        "groups": [_group(report, group, number) for number, group in enumerate(report.groups)],
        "findings": tables.findings(report),
        "files": tables.files(report),
        "served": [
            {
                "whose": tables.whose(found.served, served),
                "sizes": tables.sizes(served),
                "gaps": tables.gaps(served),
            }
            for served in found.served
            if served.coverage
        ],
        "quarantined": tables.quarantined(report),
        "environment": tables.environment(report),
        "budgets": tables.budgets(report),
        "passes": tables.passes(report),
        "notices": tables.notices(report),
        "derivation": tables.derivation(report),
    }


def _group(report: Report, group: RankGroup, number: int) -> dict[str, Any]:
    from autotune_planner.report import charts

    layers = [
        {
            "label": f"[{place}]",
            "title": charts.layer_title(layer),
            "picks": tables.picks(layer),
            "chart": charts.time_chart(f"time-{number}-{place}", layer),
        }
        for place, layer in enumerate(group.layers, start=1)
    ]
    labelled = [(f"[{place}] {layer.custom_op} {layer.layer}", layer) for place, layer in enumerate(group.layers, 1)]
    starts = range(0, len(labelled), charts.GAINS_PER_CHART)
    gains = (
        charts.gain_chart(f"gain-{number}-{start}", labelled[start : start + charts.GAINS_PER_CHART])
        for start in starts
    )
    return {
        "whose": tables.whose(report.groups, group),
        "facts": tables.facts(report, group),
        "layers": layers,
        "heat": list(tables.heat_rows(group)),
        "gain_charts": [chart for chart in gains if chart],
    }
