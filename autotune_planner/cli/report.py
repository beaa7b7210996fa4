"""``autotune-plan report``: plan, coverage, times and checks of a deployment's cache on one page."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from autotune_planner.cli.check import checked_cache
from autotune_planner.cli.options import AssumeRules
from autotune_planner.errors import NotPossibleHereError, UsageError


class Form(str, Enum):
    """What is written."""

    HTML = "html"
    MD = "md"


def report(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Deployment file (YAML).")],
    out: Annotated[Path | None, typer.Option("-o", "--output", help="The page; stdout without it.")] = None,
    cache_dir: Annotated[
        str | None, typer.Option("--cache-dir", help="Stands for SGLANG_CACHE_DIR.", metavar="DIR")
    ] = None,
    form: Annotated[
        Form | None, typer.Option("--format", help="html, or md for a pull request. Default: as -o ends, else html.")
    ] = None,
    env: Annotated[
        Path | None,
        typer.Option("--env", help="The server's environment: doctor --json of its image.", metavar="env.json"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, beside the page of -o.")] = False,
    assume_rules: AssumeRules = None,
) -> None:
    """Write one self-contained page: plan, coverage, times against tokens, picks, quarantine, environment, checks.

    The exit code is 0 whatever the checks say; autotune-plan check is for scripts.
    """
    # Imported here, since every command imports this module.
    from autotune_planner.json_text import json_text
    from autotune_planner.report.check_view import verdict
    from autotune_planner.report.console import talk_console
    from autotune_planner.report.report_document import report_document
    from autotune_planner.report.report_markdown import report_markdown
    from autotune_planner.report.report_page import report_page, require_libraries
    from autotune_planner.reporting import make_report

    if context.obj is not None:
        raise UsageError(
            "report takes a deployment file, no flags after --", code="usage", hint="autotune-plan report FILE"
        )
    written = out is not None or not json
    chosen = form or (Form.MD if out is not None and out.suffix == ".md" else Form.HTML)
    if written and chosen is Form.HTML:
        require_libraries()
    plan, checked = checked_cache(file, cache_dir, env, assume_rules)
    made = make_report(plan, checked)
    if written:
        text = report_page(made) if chosen is Form.HTML else report_markdown(made)
        if out is None:
            print(text, end="")
        else:
            _write(out, text)
            talk_console().print(f"Wrote {out}", markup=False)
    if json:
        print(json_text(report_document(made)))
    talk_console().print(verdict(checked))


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NotPossibleHereError(
            f"the report cannot be written: {error.strerror}", code="output", where=str(out), hint=_place_hint(out)
        ) from None


def _place_hint(out: Path) -> str:
    if out.is_dir():
        return f"-o {quote(str(out / 'report.html'))}"
    if not out.parent.exists():
        return f"mkdir -p {quote(str(out.parent))}"
    return "write it to another place: -o FILE"
