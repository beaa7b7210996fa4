"""The Python API: what the commands do, as typed functions.

    from autotune_planner import api

    plan = api.plan(api.load_deployment("deployment.yaml"))
    api.tune(plan, device="simulated", cache_dir="cache")
    assert api.prove(plan, device="simulated", cache_dir="cache").proved

Errors are :class:`autotune_planner.errors.PlannerError` and its subclasses: each has a message, a stable ``code``,
``where`` and a ``hint``; a wrong argument is a ``UsageError``. Processes are started by ``spawn``: a script is a file
and keeps its calls below ``if __name__ == "__main__":``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import get_args

from autotune_planner import pipeline, planning
from autotune_planner.benching import bench_cache
from autotune_planner.checking import Checked, check_cache
from autotune_planner.deployment import load
from autotune_planner.deployment.model import Deployment
from autotune_planner.errors import NotPossibleHereError, UsageError
from autotune_planner.pipeline import Format, RunOutcome
from autotune_planner.plan.plan import Plan
from autotune_planner.proof.bench import Bench
from autotune_planner.proof.prove import Proof
from autotune_planner.proving import prove_cache
from autotune_planner.tuning.devices import DeviceKind
from autotune_planner.tuning.messages import Event, Strategy
from autotune_planner.tuning.tune import Options

__all__ = ["Bench", "Checked", "Deployment", "Plan", "Proof", "RunOutcome", "bench", "check", "load_deployment", "plan",
           "prove", "tune"]  # fmt: skip

_RUN = "autotune-plan run"


def load_deployment(path: str | Path, model_dir: str | None = None) -> Deployment:
    """Read a deployment file (YAML). ``model_dir`` is where the models' folders lie on this machine.

    ``DeploymentError`` says where the file is wrong and what to write instead.
    """
    _require(isinstance(path, (str, Path)), "path", path, "the path of a deployment file")
    return load.load_deployment(Path(path), model_dir)


def plan(deployment: Deployment, *, environ: Mapping[str, str] | None = None, assume_rules: str | None = None) -> Plan:
    """What the server of a deployment will do at start, and what is tuned for it: ``compute`` as a value.

    ``environ`` is the server's environment, this process's by default; ``assume_rules`` a release whose rules stand in
    for those of an unknown one. Needs no GPU, torch or FlashInfer. ``DeploymentError`` if the server would refuse it.
    """
    _require(isinstance(deployment, Deployment), "deployment", deployment, "load_deployment(FILE)")
    return planning.plan(deployment, os.environ if environ is None else environ, assume_rules)


def tune(
    plan: Plan,
    *,
    device: DeviceKind = "cuda",
    gpus: int | None = None,
    cache_dir: str | Path | None = None,
    flashinfer_version: str | None = None,
    strategy: Strategy = "race",
    fresh: bool = False,
    time_budget: float | None = None,
    formats: tuple[Format, ...] = ("v1",),
    observer: Callable[[Event], None] | None = None,
) -> RunOutcome:
    """Tune a plan and publish one file for every rank: ``run``.

    ``gpus`` None takes all there are; ``cache_dir`` stands for SGLANG_CACHE_DIR; ``time_budget`` is in seconds;
    ``observer`` hears each event of the run. What an earlier run finished is kept unless ``fresh``.
    ``NotPossibleHereError`` without the deployment's GPU, FlashInfer or anything to tune; ``LockedError`` where another
    run is at work on the same cache.
    """
    _require_call(plan, device)
    _require(gpus is None or _is_count(gpus), "gpus", gpus, "1 or more, or None for all there are")
    _require(strategy in get_args(Strategy), "strategy", strategy, _one_of(get_args(Strategy)))
    known = get_args(Format)
    _require(
        isinstance(formats, (tuple, list)) and bool(formats) and all(each in known for each in formats),
        "formats",
        formats,
        f"a tuple of {_one_of(known)}",
    )
    _require(
        time_budget is None or (isinstance(time_budget, (int, float)) and time_budget > 0),
        "time_budget",
        time_budget,
        "seconds, more than 0, or None",
    )
    pipeline.require_startable(plan)
    if not plan.units:
        raise NotPossibleHereError(
            f"nothing to tune: {plan.resolved.no_autotune_reason or 'this deployment reaches no op that is tuned'}",
            code="nothing-to-tune",
        )
    version = pipeline.flashinfer_version(plan, flashinfer_version)
    return pipeline.run(
        plan,
        device=device,
        devices=pipeline.choose_devices(plan, device, gpus),
        target=pipeline.target_of(plan, cache_dir=_text(cache_dir), flashinfer_version=version),
        observer=observer or (lambda event: None),
        options=Options(strategy=strategy, fresh=fresh, time_budget=time_budget),
        formats=formats,
    )


def check(plan: Plan, *, cache_dir: str | Path | None = None, environment: Mapping[str, str] | None = None) -> Checked:
    """What the server will make of its ranks' files, field by field and size by size. ``used`` is the verdict.

    ``environment`` is FlashInfer's stamp of the server's machine (``metadata`` of ``doctor --json``), this machine's by
    default. ``NotPossibleHereError`` where FlashInfer is missing.
    """
    _require_call(plan)
    return check_cache(
        plan,
        cache_dir=_text(cache_dir),
        stamp=environment,
        environment_name="this machine" if environment is None else "the given environment",
        run_command=_RUN,
    )


def prove(plan: Plan, *, cache_dir: str | Path | None = None, device: DeviceKind = "cuda") -> Proof:
    """Load every rank's file in fresh processes as the server does, and make its calls. ``proved`` is the verdict.

    Nothing is written. ``NotPossibleHereError`` without the deployment's GPU (on ``cuda``) and without FlashInfer.
    """
    _require_call(plan, device)
    return prove_cache(plan, cache_dir=_text(cache_dir), device=device, run_command=_RUN, said=lambda text: None)


def bench(
    plan: Plan,
    *,
    cache_dir: str | Path | None = None,
    against: str | Path | None = None,
    sizes: Sequence[int] | None = None,
    device: DeviceKind = "cuda",
) -> Bench:
    """Times of whole ops with FlashInfer's default tactics, with those of ``against`` (a cache that stock FlashInfer
    tuned) and with the plan's cache, at production's sizes or at ``sizes`` (tokens). Errors as of :func:`prove`."""
    _require_call(plan, device)
    _require(
        sizes is None or (isinstance(sizes, Sequence) and bool(sizes) and all(map(_is_count, sizes))),
        "sizes",
        sizes,
        "tokens, 1 or more each, such as [1, 64, 8192], or None for production's",
    )
    return bench_cache(
        plan,
        cache_dir=_text(cache_dir),
        against=None if against is None else Path(against),
        sizes=sizes,
        device=device,
        run_command=_RUN,
        said=lambda text: None,
    )


def _text(path: str | Path | None) -> str | None:
    return None if path is None else str(path)


def _require_call(plan: Plan, device: DeviceKind = "cuda") -> None:
    """What all functions that start processes need; each of those reads the caller's script once more."""
    _require(isinstance(plan, Plan), "plan", plan, "plan(load_deployment(FILE))")
    _require(device in get_args(DeviceKind), "device", device, _one_of(get_args(DeviceKind)))
    if getattr(sys.modules["__main__"], "__file__", None) == "<stdin>":
        raise UsageError(
            "the script was read from stdin, where the processes that it starts cannot read it",
            code="usage",
            hint='save it as a file, with its calls below if __name__ == "__main__":',
        )


def _require(fits: bool, name: str, value: object, wanted: str) -> None:
    if not fits:
        raise UsageError(f"{name} does not take {value!r}", code="usage", where=name, hint=f"{name}: {wanted}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value > 0


def _one_of(names: tuple[str, ...]) -> str:
    return " or ".join(map(repr, names))
