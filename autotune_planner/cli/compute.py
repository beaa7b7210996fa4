"""``autotune-plan compute``: budgets, passes with reasons, buckets, exact keys, cache files. Needs no GPU."""

from __future__ import annotations

import json as jsonlib
import os
from pathlib import Path
from typing import Annotated

import typer

from autotune_planner import pipeline
from autotune_planner.cli.source import AssumeRules, LaunchOptions, deployment_of
from autotune_planner.report.console import data_console, talk_console
from autotune_planner.report.plan_document import plan_document
from autotune_planner.report.plan_view import plan_view, print_notices
from autotune_planner.tuning.keys import exact_keys


def compute(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="Deployment file (YAML); none with flags after --.")] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Add every exact cache key (imports torch and FlashInfer).")] = (
        False
    ),
    explain: Annotated[bool, typer.Option("--explain", help="Add how each number came about.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    assume_rules: AssumeRules = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="With flags after --: the GPU, such as H200.")] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="With flags after --: the server.", metavar="sglang==VERSION")
    ] = None,
    model_dir: Annotated[
        Path | None, typer.Option("--model-dir", help="Folder of model folders with config.json.", metavar="DIR")
    ] = None,
    kv_token_capacity: Annotated[
        int | None, typer.Option("--kv-token-capacity", help="With flags after --: KV tokens of a rank.", min=1)
    ] = None,
) -> None:
    """Work out, per rank, what the server will autotune at start and what is worth tuning before it.

    The deployment is a file, or the server's own flags: autotune-plan compute --gpu H200 -- --model-path ... --tp 8
    """
    options = LaunchOptions(gpu, engine, model_dir, kv_token_capacity)
    plan = pipeline.plan(deployment_of(file, context.obj, options), os.environ, assume_rules)
    place = plan.resolved.cache_place
    exact = exact_keys(plan) if keys else None
    if json:
        print(jsonlib.dumps(plan_document(plan, place, keys=exact, explain=explain), indent=2))
        return
    data_console().print(plan_view(plan, place, keys=exact, explain=explain))
    print_notices(talk_console(), plan.resolved.notices)
