"""One rule set per server release: a deployment becomes what that server makes of it."""

from __future__ import annotations

from collections.abc import Mapping

from autotune_planner.deployment.model import Deployment
from autotune_planner.engines import sglang_0_5_23
from autotune_planner.engines.resolved import Resolved
from autotune_planner.errors import DeploymentError

_RULES = {"0.5.23": sglang_0_5_23.resolve}
_ENGINE = "sglang"
_NEWEST = "0.5.23"


def resolve(deployment: Deployment, environ: Mapping[str, str] | None = None) -> Resolved:
    """Apply the rules of ``deployment.engine_version``, the newest known by default.

    ``environ`` is the process environment; variables of the deployment file win over it. ``DeploymentError`` for a
    release without rules, and for a deployment that the server refuses.
    """
    if deployment.engine != _ENGINE:
        raise DeploymentError(
            f"no rules for the server {deployment.engine}",
            code="unknown-engine",
            where=deployment.where("engine"),
            hint=f"known: {_ENGINE}",
        )
    version = deployment.engine_version or _NEWEST
    rules = _RULES.get(version)
    if rules is None:
        raise DeploymentError(
            f"no rules for {deployment.engine} {version}",
            code="unknown-engine-version",
            where=deployment.where("engine_version"),
            hint=f"known: {', '.join(_RULES)}",
        )
    return rules(deployment, environ or {})
