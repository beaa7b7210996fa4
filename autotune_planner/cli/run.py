"""``autotune-plan run``: tune the plan and publish the cache for every rank."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune_planner.cli.options import AssumeRules, Device, directory
from autotune_planner.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from autotune_planner.pipeline import Format


class Search(str, Enum):
    """How a tactic is found."""

    RACE = "race"
    STOCK = "stock"


class Executor(str, Enum):
    """On which machines."""

    LOCAL = "local"
    RAY = "ray"


_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def _seconds(text: str | None) -> float | None:
    """``90``, ``90s``, ``5m``, ``1.5h`` in seconds."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smh]?)", text)
    if match is None or float(match[1]) == 0:
        raise UsageError(f"--time-budget takes a time, not {text!r}", code="usage", hint="--time-budget 90s, or 5m")
    return float(match[1]) * _SECONDS[match[2]]


def _gpu_count(text: str) -> int | None:
    """``all`` is None."""
    if text == "all":
        return None
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise UsageError(f"--gpus takes a count or all, not {text!r}", code="usage", hint="--gpus 1, or --gpus all")


def _formats(text: str) -> list[Format]:
    known: list[Format] = ["v1", "v2"]
    words = text.split(",")
    chosen = [name for name in known if name in words]
    if len(chosen) != len(words):
        raise UsageError(f"--format takes v1, v2 or both, not {text!r}", code="usage", hint="--format v1,v2")
    return chosen


def run(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Deployment file (YAML).")],
    gpus: Annotated[str, typer.Option("--gpus", metavar="N|all", help="GPUs to tune on; one is enough.")] = "all",
    device: Annotated[Device, typer.Option("--device", help="simulated: no GPU, timings from a cost model.")] = (
        Device.CUDA
    ),
    cache_dir: Annotated[
        str | None, typer.Option("--cache-dir", help="Stands for SGLANG_CACHE_DIR.", metavar="DIR")
    ] = None,
    flashinfer_version: Annotated[
        str | None,
        typer.Option("--flashinfer-version", help="FlashInfer of the server, if not the release's pin.", metavar="V"),
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", help="v1: the server's rank files; v2: FlashInfer's store.", metavar="v1[,v2]")
    ] = "v1",
    strategy: Annotated[
        Search, typer.Option("--strategy", help="race: our search; stock: FlashInfer's own loop, untouched.")
    ] = Search.RACE,
    time_budget: Annotated[
        str | None,
        typer.Option("--time-budget", help="Tune the most valuable buckets within this time.", metavar="5m"),
    ] = None,
    events: Annotated[
        str | None,
        typer.Option("--events", help="Append what happens to a file, a JSON object a line.", metavar="FILE"),
    ] = None,
    executor: Annotated[
        Executor, typer.Option("--executor", help="local: this machine; ray: a Ray cluster that runs already.")
    ] = Executor.LOCAL,
    address: Annotated[
        str | None, typer.Option("--address", help="The Ray cluster, auto by default.", metavar="auto|HOST:PORT")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be tuned and written, and end.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an earlier run has finished.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    assume_rules: AssumeRules = None,
) -> None:
    """Tune every planned op on real GPUs, without weights, and write the cache that the server loads at start."""
    # Imported here, since every command imports this module and only this one tunes.
    from autotune_planner import pipeline
    from autotune_planner.deployment.load import load_deployment
    from autotune_planner.json_text import json_text
    from autotune_planner.report.console import data_console, talk_console
    from autotune_planner.report.events import events_observer
    from autotune_planner.report.plan_view import nothing_to_tune_reason, print_notices
    from autotune_planner.report.progress import progress_observer
    from autotune_planner.report.run_view import dry_run_view, nothing_document, run_document, run_view
    from autotune_planner.tuning.planted import planted_faults
    from autotune_planner.tuning.tune import Options

    count, place, wanted = _gpu_count(gpus), directory(cache_dir), _formats(formats)
    options = Options(
        strategy=strategy.value,
        fresh=fresh,
        time_budget=_seconds(time_budget),
        planted=planted_faults(os.environ),
    )
    if context.obj is not None:
        raise UsageError("run takes a deployment file, no flags after --", code="usage", hint="autotune-plan run FILE")
    if address is not None and executor is not Executor.RAY:
        raise UsageError("--address is a Ray cluster's", code="usage", where="--address", hint="--executor ray")
    cluster = (address or "auto") if executor is Executor.RAY else None
    kind = device.kind
    plan = pipeline.plan(load_deployment(file), os.environ, assume_rules)
    pipeline.require_startable(plan)
    if not plan.units:
        pipeline.require_tunable_architecture(plan)
        pipeline.require_planned(plan)
        reason = nothing_to_tune_reason(plan)
        print(json_text(nothing_document(reason)) if json else f"Nothing to tune: {reason}")
        return
    version = pipeline.flashinfer_version(plan, flashinfer_version)
    target = pipeline.target_of(plan, cache_dir=place, flashinfer_version=version)
    talk = talk_console()
    print_notices(talk, plan.resolved.notices)
    if dry_run:
        data_console().print(dry_run_view(plan, target, wanted))
        return
    devices = pipeline.choose_devices(plan, kind, count, cluster)
    workers = devices if isinstance(devices, int) else len(devices)
    with (
        contextlib.redirect_stdout(sys.stderr),  # Ray prints to stdout, where only the result belongs
        progress_observer(talk, plan, workers) as progress,
        events_observer(events, progress) as observer,
    ):
        outcome = pipeline.run(
            plan, device=kind, devices=devices, target=target, observer=observer, options=options, formats=wanted
        )
    if json:
        print(json_text(run_document(plan, outcome, device=kind)))
    else:
        data_console().print(run_view(plan, outcome, device=kind))
    if outcome.tuned.failures or outcome.tuned.quarantined:
        raise typer.Exit(ExitCode.PARTIAL)
