"""``autotune-plan bundle``: a tuned cache in one file, to be installed elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from autotune_planner.cli.options import AssumeRules, directory, run_command


def bundle(
    file: Annotated[Path, typer.Argument(help="Deployment file (YAML).")],
    out: Annotated[Path, typer.Option("-o", "--output", help="NAME.tar.zst, NAME.tar.gz, or a directory.")],
    cache_dir: Annotated[
        str | None, typer.Option("--cache-dir", help="Stands for SGLANG_CACHE_DIR.", metavar="DIR")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The bundle's manifest on stdout.")] = False,
    assume_rules: AssumeRules = None,
) -> None:
    """Pack the cache files of every rank with journal, plan, quarantine, sums and provenance.

    A directory lies as below SGLANG_CACHE_DIR: a server can be started on it as it is.
    """
    # Imported here, since every command imports this module.
    from autotune_planner import planning
    from autotune_planner.cache.archive import form_of
    from autotune_planner.cache.bundle import write_bundle
    from autotune_planner.deployment.load import load_deployment
    from autotune_planner.json_text import json_text
    from autotune_planner.report.bundle_view import bundle_view
    from autotune_planner.report.console import data_console, talk_console
    from autotune_planner.shipping import is_simulated, make_bundle

    form_of(out)
    place = directory(cache_dir)
    plan = planning.plan(load_deployment(file), os.environ, assume_rules)
    made = make_bundle(plan, file, place, run_command(file, place, assume_rules))
    write_bundle(made, out)
    if is_simulated(made):
        talk_console().print(
            "[yellow]warning:[/] a simulated run made these files: no server loads them, and install refuses them "
            "without --force"
        )
    if json:
        print(json_text({**made.manifest(), "written": str(out)}))
    else:
        data_console().print(bundle_view(made, out), soft_wrap=True)
