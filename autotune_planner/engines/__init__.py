"""One rule set per server release: a deployment becomes what that server makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune_planner import profiles
from autotune_planner.deployment.model import Deployment
from autotune_planner.engines import sglang_0_5_23
from autotune_planner.engines.resolved import Resolved
from autotune_planner.errors import DeploymentError

_RULES = {"0.5.23": sglang_0_5_23.resolve}
NAME = "sglang"
_NEWEST = "0.5.23"


def resolve(deployment: Deployment, environ: Mapping[str, str] | None = None) -> Resolved:
    """Apply the rules of ``deployment.engine_version``, the newest known by default.

    ``environ`` is the process environment; variables of the deployment file win over it. ``DeploymentError`` for a
    release without rules, and for a deployment that the server refuses.
    """
    if deployment.engine != NAME:
        raise DeploymentError(
            f"no rules for the server {deployment.engine}",
            code="unknown-engine",
            where=deployment.where("engine"),
            hint=f"known: {NAME}",
        )
    return _RULES[_known(deployment.engine_version, deployment.where("engine_version"))](deployment, environ or {})


def flag_table(version: str | None) -> Mapping[str, Any]:
    """Command-line flags of a release: server argument -> type, aliases, choices. The newest known by default."""
    table: Mapping[str, Any] = profiles.load("engines", f"{NAME}-{_known(version, '--engine')}")["flags"]
    return table


def _known(version: str | None, where: str | None) -> str:
    if version is None:
        return _NEWEST
    if version not in _RULES:
        raise DeploymentError(
            f"no rules for {NAME} {version}",
            code="unknown-engine-version",
            where=where,
            hint=f"known: {', '.join(_RULES)}",
        )
    return version
