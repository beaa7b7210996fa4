"""``autotune-plan compute``: budgets, passes with reasons, buckets, exact keys, cache files. Needs no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune_planner.cli.compute_call import ComputeCall, carry_out
from autotune_planner.cli.options import AssumeRules


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
        int | None,
        typer.Option("--kv-token-capacity", help="With flags after --: KV tokens of a rank.", min=1, max=2**31 - 1),
    ] = None,
) -> None:
    """Work out, per rank, what the server will autotune at start and what is worth tuning before it.

    The deployment is a file, or the server's own flags: autotune-plan compute --gpu H200 -- --model-path ... --tp 8
    """
    carry_out(
        ComputeCall(context.obj, file, keys, explain, json, assume_rules, gpu, engine, model_dir, kv_token_capacity)
    )
