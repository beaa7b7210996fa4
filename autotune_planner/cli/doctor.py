"""``autotune-plan doctor``: what this machine has against what a plan needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from autotune_planner.cli.options import AssumeRules
from autotune_planner.errors import ExitCode, UsageError


def doctor(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="Deployment file (YAML); without one nothing is needed.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, for check --env.")] = False,
    assume_rules: AssumeRules = None,
) -> None:
    """Look at this machine: driver, GPUs, FlashInfer and its stamp, compilers, compiled modules, directories.

    With a deployment file, exit code 4 says that its plan cannot be tuned here.
    """
    # Imported here, since every command imports this module.
    from autotune_planner import planning
    from autotune_planner.deployment.load import load_deployment
    from autotune_planner.json_text import json_text
    from autotune_planner.plan.modules import modules_of
    from autotune_planner.report.console import data_console
    from autotune_planner.report.doctor_view import doctor_document, doctor_view
    from autotune_planner.tuning.environment import probe_machine
    from autotune_planner.tuning.needs import items

    if context.obj is not None:
        raise UsageError("doctor takes no flags after --", code="usage", hint="autotune-plan doctor FILE")
    plan = None if file is None else planning.plan(load_deployment(file), os.environ, assume_rules)
    machine = probe_machine([module.name for module in modules_of(plan)])
    found = items(machine, plan)
    if json:
        print(json_text(doctor_document(machine, found)))
    else:
        data_console().print(doctor_view(found))
    if any(item.status == "missing" for item in found):
        raise typer.Exit(ExitCode.NOT_POSSIBLE_HERE)
