"""``autotune-plan compute``: budgets, passes with reasons, buckets, exact keys, cache files. Needs no GPU."""

from __future__ import annotations

import json as jsonlib
import os
from pathlib import Path
from typing import Annotated

import typer

from autotune_planner import pipeline
from autotune_planner.deployment.load import load_deployment
from autotune_planner.report.console import data_console, talk_console
from autotune_planner.report.plan_document import plan_document
from autotune_planner.report.plan_view import plan_view, print_notices
from autotune_planner.tuning.keys import exact_keys


def compute(
    file: Annotated[Path, typer.Argument(help="Deployment file (YAML).")],
    keys: Annotated[bool, typer.Option("--keys", help="Add every exact cache key (imports torch and FlashInfer).")] = (
        False
    ),
    explain: Annotated[bool, typer.Option("--explain", help="Add how each number came about.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Work out, per rank, what the server will autotune at start and what is worth tuning before it."""
    plan = pipeline.plan(load_deployment(file), os.environ)
    place = plan.resolved.cache_place
    exact = exact_keys(plan) if keys else None
    if json:
        print(jsonlib.dumps(plan_document(plan, place, keys=exact, explain=explain), indent=2))
        return
    data_console().print(plan_view(plan, place, keys=exact, explain=explain))
    print_notices(talk_console(), plan.resolved.notices)
