"""``autotune-plan check``: will the server of a deployment use the cache that is there?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune_planner.cli.options import AssumeRules, directory, run_command
from autotune_planner.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from autotune_planner.checking import Checked
    from autotune_planner.plan.plan import Plan

_START_THE_SERVER = "start the server: it tunes at its first start what no plan here can"


def check(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Deployment file (YAML).")],
    cache_dir: Annotated[
        str | None, typer.Option("--cache-dir", help="Stands for SGLANG_CACHE_DIR.", metavar="DIR")
    ] = None,
    env: Annotated[
        Path | None,
        typer.Option("--env", help="The server's environment: doctor --json of its image.", metavar="env.json"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    assume_rules: AssumeRules = None,
) -> None:
    """Say of every rank's cache file what the server will make of it, and which sizes it serves. Exit code 0 or 5."""
    # Imported here, since every command imports this module.
    from autotune_planner.json_text import json_text
    from autotune_planner.report.check_document import check_document
    from autotune_planner.report.check_view import check_view
    from autotune_planner.report.console import data_console
    from autotune_planner.report.evidence import evidence_lines

    if context.obj is not None:
        raise UsageError(
            "check takes a deployment file, no flags after --", code="usage", hint="autotune-plan check FILE"
        )
    plan, checked = checked_cache(file, cache_dir, env, assume_rules)
    if json:
        print(json_text(check_document(checked) | {"evidence": evidence_lines(plan.ops)}))
    else:
        data_console().print(check_view(checked))
        for line in evidence_lines(plan.ops):
            data_console().print(line, markup=False)
    if not checked.used:
        raise typer.Exit(ExitCode.DIFFERENCE)


def checked_cache(
    file: Path, cache_dir: str | None, env: Path | None, assume_rules: str | None
) -> tuple[Plan, Checked]:
    """The plan of a deployment file, and what its server makes of the cache that is there."""
    from autotune_planner import pipeline
    from autotune_planner.checking import check_cache
    from autotune_planner.deployment.load import load_deployment
    from autotune_planner.tuning.environment import read_stamp

    place, stamp = directory(cache_dir), None if env is None else read_stamp(env)
    plan = pipeline.plan(load_deployment(file), os.environ, assume_rules)
    pipeline.require_startable(plan)
    checked = check_cache(
        plan,
        cache_dir=place,
        stamp=stamp,
        environment_name="this machine" if env is None else str(env),
        run_command=_START_THE_SERVER
        if not plan.units and plan.resolved.unplanned
        else run_command(file, place, assume_rules),
    )
    return plan, checked
