"""``autotune-plan bench``: what the cache of a deployment gains, measured over whole ops."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from autotune_planner.cli.options import AssumeRules, Device, directory, run_command
from autotune_planner.errors import UsageError


def bench(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Deployment file (YAML).")],
    cache_dir: Annotated[
        str | None, typer.Option("--cache-dir", help="Stands for SGLANG_CACHE_DIR.", metavar="DIR")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", help="A cache that stock FlashInfer tuned, to compare with.", metavar="FILE|DIR"),
    ] = None,
    sizes: Annotated[
        str | None, typer.Option("--sizes", help="Tokens to measure; production's sizes by default.", metavar="M,M,..")
    ] = None,
    device: Annotated[Device, typer.Option("--device", help="simulated: no GPU, timings from a cost model.")] = (
        Device.CUDA
    ),
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    assume_rules: AssumeRules = None,
) -> None:
    """Time whole ops with FlashInfer's default tactics, with stock's and with the cache's: CUDA graphs, hot and cold
    L2, medians with 95 % intervals, and the gain of a pass."""
    # Imported here, since every command imports this module.
    from autotune_planner import pipeline
    from autotune_planner.benching import bench_cache
    from autotune_planner.deployment.load import load_deployment
    from autotune_planner.json_text import json_text
    from autotune_planner.report.bench_document import bench_document
    from autotune_planner.report.bench_view import bench_view
    from autotune_planner.report.console import data_console, talk_console
    from autotune_planner.report.evidence import evidence_lines

    if context.obj is not None:
        raise UsageError(
            "bench takes a deployment file, no flags after --", code="usage", hint="autotune-plan bench FILE"
        )
    place, wanted = directory(cache_dir), _sizes(sizes)
    plan = pipeline.plan(load_deployment(file), os.environ, assume_rules)
    pipeline.require_startable(plan)
    result = bench_cache(
        plan,
        cache_dir=place,
        against=against,
        sizes=wanted,
        device=device.kind,
        run_command=run_command(file, place, assume_rules),
        said=lambda text: talk_console().print(text, markup=False),
    )
    if json:
        print(json_text(bench_document(result) | {"evidence": evidence_lines(plan.ops)}))
    else:
        data_console().print(bench_view(result))
        for line in evidence_lines(plan.ops):
            data_console().print(line, markup=False)


def _sizes(text: str | None) -> tuple[int, ...] | None:
    """``1,64,1024`` in tokens."""
    if text is None:
        return None
    words = text.split(",")
    if not all(word.isascii() and word.isdecimal() and int(word[:9]) > 0 and len(word) < 10 for word in words):
        raise UsageError(f"--sizes takes tokens, not {text!r}", code="usage", hint="--sizes 1,64,1024,8192")
    return tuple(int(word) for word in words)
