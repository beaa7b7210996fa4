"""``autotune-plan install``: a bundle's files to where the server looks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune_planner.cli.options import AssumeRules, directory, run_command
from autotune_planner.errors import CacheFileError, UsageError

if TYPE_CHECKING:
    from autotune_planner.plan.plan import Plan

_DEFAULT_CACHE_DIR = "~/.cache/sglang"  # SGLang's own


def install(
    bundle: Annotated[Path, typer.Argument(help="What autotune-plan bundle wrote.")],
    deployment: Annotated[
        Path | None, typer.Option("--for", help="The server's deployment file: is the bundle for it?", metavar="FILE")
    ] = None,
    cache_dir: Annotated[
        str | None, typer.Option("--cache-dir", help="Stands for SGLANG_CACHE_DIR.", metavar="DIR")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Install what the target would not load.")] = False,
    print_k8s: Annotated[
        bool, typer.Option("--print-k8s", help="Print Kubernetes objects that tune, bundle and install; do nothing.")
    ] = False,
    image: Annotated[str | None, typer.Option("--image", help="With --print-k8s: the server's image.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    assume_rules: AssumeRules = None,
) -> None:
    """Verify a bundle and write the files of all ranks, or none.

    Refused where the server would not load them: another environment, GPU or cache path.
    """
    # Imported here, since every command imports this module.
    from autotune_planner import planning
    from autotune_planner.cache.bundle import read_bundle
    from autotune_planner.deployment.load import load_deployment
    from autotune_planner.json_text import json_text
    from autotune_planner.report.bundle_view import install_document, install_view
    from autotune_planner.report.console import data_console
    from autotune_planner.shipping import directory_of, judge
    from autotune_planner.shipping import install as write
    from autotune_planner.tuning.environment import probe_machine

    place = directory(cache_dir)
    if print_k8s:
        print(_kubernetes(bundle, deployment, image), end="")
        return
    plan = planning.plan(load_deployment(deployment), os.environ, assume_rules) if deployment else None
    found = read_bundle(bundle)
    target = directory_of(found, plan, _cache_dir(place, plan))
    verdict = judge(found, target, plan, probe_machine().metadata)
    if verdict.problems and not force:
        listed = "\n".join(f"  {problem}" for problem in verdict.problems)
        raise CacheFileError(
            f"the server would not load this bundle:\n{listed}",
            code="bundle-refused",
            where=str(bundle),
            hint=f"tune where the server runs: {run_command(deployment or Path('FILE'), None)}; or install it all the "
            "same: --force",
        )
    paths = write(found, target)
    if json:
        print(json_text(install_document(target, paths, verdict)))
    else:
        data_console().print(install_view(target, found, verdict), soft_wrap=True)


def _cache_dir(given: str | None, plan: Plan | None) -> str:
    if given or plan:
        return given or plan.resolved.cache_place.cache_dir  # type: ignore[union-attr]
    return os.environ.get("SGLANG_CACHE_DIR") or _DEFAULT_CACHE_DIR


def _kubernetes(bundle: Path, deployment: Path | None, image: str | None) -> str:
    from autotune_planner.deployment.load import load_deployment
    from autotune_planner.report.kubernetes import kubernetes_yaml

    if deployment is None or image is None:
        raise UsageError(
            "--print-k8s needs the deployment file and the server's image",
            code="usage",
            where="--print-k8s",
            hint=f"autotune-plan install {bundle} --for deployment.yaml --image IMAGE --print-k8s",
        )
    load_deployment(deployment)  # an invalid one is said here, not in the cluster
    return kubernetes_yaml(bundle.name, deployment.read_text(encoding="utf-8"), image)
