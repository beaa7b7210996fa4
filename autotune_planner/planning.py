"""The first half of the pipeline: a deployment becomes a plan. Imports nothing of tuning, so that it starts fast."""

from __future__ import annotations

from collections.abc import Mapping

from autotune_planner import engines
from autotune_planner.deployment.model import Deployment
from autotune_planner.plan.plan import Plan, make_plan


def plan(deployment: Deployment, environ: Mapping[str, str], assume_rules: str | None = None) -> Plan:
    """Resolve a deployment by its server's rules and plan what is tuned. ``DeploymentError`` if it is rejected."""
    return make_plan(engines.resolve(deployment, environ, assume_rules))
