"""``autotune-plan prove``: load every rank's file as the server does, and make its calls."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from autotune_planner.cli.options import AssumeRules, Device, directory, run_command
from autotune_planner.errors import ExitCode, UsageError


def prove(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Deployment file (YAML).")],
    cache_dir: Annotated[
        str | None, typer.Option("--cache-dir", help="Stands for SGLANG_CACHE_DIR.", metavar="DIR")
    ] = None,
    device: Annotated[Device, typer.Option("--device", help="simulated: no GPU, for files of a simulated run.")] = (
        Device.CUDA
    ),
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    assume_rules: AssumeRules = None,
) -> None:
    """Load every rank's cache file in fresh processes as the server does, make its calls, and count what they hit and
    miss. Exit code 0, or 5 if the server would tune anything."""
    # Imported here, since every command imports this module.
    from autotune_planner import pipeline
    from autotune_planner.deployment.load import load_deployment
    from autotune_planner.json_text import json_text
    from autotune_planner.proving import prove_cache
    from autotune_planner.report.console import data_console, talk_console
    from autotune_planner.report.evidence import evidence_lines
    from autotune_planner.report.prove_document import prove_document
    from autotune_planner.report.prove_view import prove_view

    if context.obj is not None:
        raise UsageError(
            "prove takes a deployment file, no flags after --", code="usage", hint="autotune-plan prove FILE"
        )
    place = directory(cache_dir)
    plan = pipeline.plan(load_deployment(file), os.environ, assume_rules)
    pipeline.require_startable(plan)
    options = ("--device", "simulated") if device is Device.SIMULATED else ()
    proof = prove_cache(
        plan,
        cache_dir=place,
        device=device.kind,
        run_command=run_command(file, place, assume_rules, *options),
        said=lambda text: talk_console().print(text, markup=False),
    )
    if json:
        print(json_text(prove_document(proof) | {"evidence": evidence_lines(plan.ops)}))
    else:
        data_console().print(prove_view(proof))
        for line in evidence_lines(plan.ops):
            data_console().print(line, markup=False)
    if not proof.proved:
        raise typer.Exit(ExitCode.DIFFERENCE)
