"""The commands, as Typer reads them."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune_planner import __version__
from autotune_planner.cli.bench import bench
from autotune_planner.cli.bundle import bundle
from autotune_planner.cli.check import check
from autotune_planner.cli.compute import compute
from autotune_planner.cli.diff import diff
from autotune_planner.cli.doctor import doctor
from autotune_planner.cli.install import install
from autotune_planner.cli.merge import merge
from autotune_planner.cli.prove import prove
from autotune_planner.cli.report import report
from autotune_planner.cli.run import run
from autotune_planner.cli.schema import schema
from autotune_planner.cli.show import show

app = typer.Typer(
    name="autotune-plan",
    help="Plan and run the FlashInfer kernel autotuning of an LLM server before the server starts.",
    pretty_exceptions_enable=False,
)
app.command()(compute)
app.command()(run)
app.command()(show)
app.command()(check)
app.command()(prove)
app.command()(bench)
app.command()(doctor)
app.command()(report)
app.command()(diff)
app.command()(merge)
app.command()(bundle)
app.command()(install)
app.command()(schema)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autotune-plan {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and end.")] = (
        False
    ),
) -> None:
    pass
