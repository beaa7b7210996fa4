"""Where a command's deployment comes from: a file, or the server's own flags after ``--``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotune_planner import engines
from autotune_planner.deployment.model import Deployment
from autotune_planner.errors import UsageError
from autotune_planner.values import dataclass


@dataclass(frozen=True)
class LaunchOptions:
    """What the flags of a server do not say. ``engine`` is ``NAME==VERSION`` or ``NAME``."""

    gpu: str | None
    engine: str | None
    model_dir: Path | None
    kv_token_capacity: int | None


def deployment_of(file: Path | None, flags: Sequence[str] | None, options: LaunchOptions) -> Deployment:
    """The deployment of one call. ``UsageError`` unless it is given exactly once."""
    if flags is None:
        if file is None:
            raise UsageError(
                "no deployment is given",
                code="usage",
                hint="autotune-plan compute deployment.yaml, or autotune-plan compute --gpu H200 -- <server flags>",
            )
        _only_for_launch_lines(options)
        from autotune_planner.deployment.load import load_deployment

        return load_deployment(file, str(options.model_dir) if options.model_dir else None)
    if file is not None:
        raise UsageError(f"both {file} and flags after --", code="usage", hint="give one of the two")
    if options.gpu is None:
        raise UsageError(
            "a launch line does not say which GPU it is for",
            code="usage",
            where="--gpu",
            hint="--gpu H200 before the --",
        )
    from autotune_planner.deployment.gpus import load_gpu
    from autotune_planner.deployment.launch_line import deployment_of_launch_line

    name, _, version = (options.engine or engines.NAME).partition("==")
    if name != engines.NAME:
        raise UsageError(f"--engine {name} is not known", code="usage", hint=f"--engine {engines.NAME}")
    return deployment_of_launch_line(
        flags,
        gpu=load_gpu(options.gpu),
        model_dir=str(options.model_dir) if options.model_dir else None,
        engine_version=version or None,
        kv_token_capacity=options.kv_token_capacity,
    )


def _only_for_launch_lines(options: LaunchOptions) -> None:
    for flag, value, field in (
        ("--gpu", options.gpu, "gpu"),
        ("--engine", options.engine, "engine"),
        ("--kv-token-capacity", options.kv_token_capacity, "kv_token_capacity"),
    ):
        if value is not None:
            raise UsageError(
                f"{flag} goes with a launch line after --; a deployment file has {field}:",
                code="usage",
                where=flag,
                hint=f"write {field}: {value} into the file",
            )
