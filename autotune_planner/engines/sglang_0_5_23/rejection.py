"""How a rule of the server says no: the flag, the rule, and what to write instead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from autotune_planner import profiles
from autotune_planner.deployment.model import Deployment
from autotune_planner.engines.sglang_0_5_23.arguments import PROFILE
from autotune_planner.errors import DeploymentError


def rejected(flag: str, rule: str, hint: str, *, source: str) -> DeploymentError:
    """An error for a deployment that the server refuses at start. ``source`` is the server's own function."""
    return DeploymentError(f"{rule} (SGLang: {source})", code="server-rejects", where=flag, hint=hint)


@contextlib.contextmanager
def located(deployment: Deployment) -> Iterator[None]:
    """Say in which line of the deployment file the flag of a rejection was written, if it came from one."""
    try:
        yield
    except DeploymentError as error:
        flag = error.where or ""
        if flag.startswith("--"):
            name = flag.removeprefix("--").replace("-", "_")
            fields = {known: field for field, known in profiles.load("engines", PROFILE)["field_flags"].items()}
            path = tuple(fields[name].split(".")) if name in fields else ("flags", name)
            if path in deployment.marks or (len(path) > 1 and path[:1] in deployment.marks and path[0] != "flags"):
                error.where = f"{deployment.where(*path)}: {'.'.join(path)} ({flag})"
            elif deployment.launch is not None and ("launch",) in deployment.marks:
                error.where = f"{deployment.marks[('launch',)]}: launch ({flag})"
        elif ("env", flag) in deployment.marks:
            error.where = f"{deployment.marks['env', flag]}: env.{flag}"
        raise
