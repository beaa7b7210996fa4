"""Compiled modules that a plan's ops load, and how long a cold build takes."""

from __future__ import annotations

from autotune_planner import profiles
from autotune_planner.ops.base import JitModule
from autotune_planner.plan.plan import Plan


def modules_of(plan: Plan | None) -> tuple[JitModule, ...]:
    """Compiled modules that the ops of a plan load, each once."""
    if plan is None or not plan.ops:
        return ()
    capability = plan.resolved.gpu.compute_capability
    assert capability is not None, "a plan with ops has a GPU architecture"
    return tuple(dict.fromkeys(module for op in plan.ops for module in op.call.jit_modules(capability)))


def build_seconds(module: str, cores: int) -> float | None:
    """Wall time of a cold build on so many cores, None where nobody measured or estimated it."""
    known = profiles.table("builds").get(module)
    return None if known is None else known["core_seconds"] / min(cores, known["objects"])


def is_estimate(module: str) -> bool:
    """Whether a build time was worked out from another module's."""
    return str(profiles.table("builds").get(module, {}).get("source", "")).startswith("estimate")
