"""One rule set per server release: a deployment becomes what that server makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autotune_planner.deployment.flag_table import unknown_server
from autotune_planner.deployment.model import Deployment
from autotune_planner.engines import sglang_0_5_23
from autotune_planner.engines.resolved import Notice, Resolved
from autotune_planner.errors import DeploymentError, UsageError

_RULES = {"0.5.23": sglang_0_5_23.resolve}
NAME = "sglang"
_NEWEST = "0.5.23"


def resolve(
    deployment: Deployment, environ: Mapping[str, str] | None = None, assume_rules: str | None = None
) -> Resolved:
    """Apply the rules of ``deployment.engine_version``, the newest known by default.

    ``environ`` is the process environment; variables of the deployment file win over it. ``assume_rules`` stands in for
    a release without rules, with a warning. ``DeploymentError`` for such a release without it, and for a deployment
    that the server refuses; ``UsageError`` where there are no rules of ``assume_rules``.
    """
    if assume_rules is not None and assume_rules not in _RULES:
        raise UsageError(
            f"no rules for {NAME} {assume_rules}",
            code="unknown-rules",
            where="--assume-rules",
            hint=f"known: {', '.join(_RULES)}",
        )
    if deployment.engine != NAME:
        raise unknown_server(deployment.engine, deployment.where("engine"))
    version = deployment.engine_version or _NEWEST
    if assume_rules is None or version in _RULES:
        return _RULES[_known(version, deployment.where("engine_version"))](deployment, environ or {})
    resolved = _RULES[assume_rules](deployment, environ or {})
    return replace(resolved, notices=(_assumed(version, assume_rules), *resolved.notices))


def _assumed(version: str, rules: str) -> Notice:
    return Notice(
        "rules-assumed",
        "warning",
        f"there are no rules for {NAME} {version}: every number is what {NAME} {rules} would compute, its FlashInfer "
        "version and cache path included; the server may differ",
    )


def _known(version: str, where: str | None) -> str:
    if version not in _RULES:
        raise DeploymentError(
            f"no rules for {NAME} {version}",
            code="unknown-engine-version",
            where=where,
            hint=f"known: {', '.join(_RULES)}; with --assume-rules {_NEWEST} its rules stand in",
        )
    return version
