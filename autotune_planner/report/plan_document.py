"""The ``autotune-plan/plan@1`` document of ``compute --json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from autotune_planner.cache import sglang_layout
from autotune_planner.engines.resolved import CachePlace
from autotune_planner.plan.modules import build_seconds, is_estimate, modules_of
from autotune_planner.plan.plan import Plan
from autotune_planner.plan.workspaces import workspaces
from autotune_planner.report.memory_document import (
    buffers_document,
    memory_document,
    row_checks_document,
    warmup_document,
)

if TYPE_CHECKING:
    from autotune_planner.tuning.keys import PlannedKey

SCHEMA = "autotune-plan/plan@1"


def modules_document(plan: Plan) -> list[dict[str, Any]]:
    """``core_seconds`` is what nvcc takes for a cold build, null where nobody knows; ``estimate``: by another's."""
    return [
        {
            "name": module.name,
            "objects": module.objects,
            "core_seconds": None if (seconds := build_seconds(module.name, 1)) is None else round(seconds),
            "estimate": is_estimate(module.name),
        }
        for module in modules_of(plan)
    ]


def plan_document(plan: Plan, place: CachePlace, *, keys: Sequence[PlannedKey] | None, explain: bool) -> dict[str, Any]:
    """Everything that is known of a plan. ``keys`` only where they were asked for."""
    resolved = plan.resolved
    ranks = () if resolved.gpu.vendor == "amd" else place.ranks  # no FlashInfer, no cache
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "engine": asdict(resolved.release),
        "gpu": asdict(resolved.gpu),
        "model": {
            "name": resolved.model.name,
            "path": resolved.model_path,
            "architecture": resolved.model.architecture,
            "dtype": resolved.dtype,
            "hidden_size": resolved.hidden_size,
            "vocab_size": resolved.vocab_size,
        },
        "resolved": asdict(resolved.arguments),
        "runtime": {
            **asdict(resolved.runtime),
            "flashinfer_autotune_cache_path": str(sglang_layout.rank_file(place, ranks[0])) if ranks else None,
        },
        "passes": [asdict(decision) for decision in resolved.passes],
        "warmups": [warmup_document(warmup) for warmup in resolved.warmups],
        "buffers": buffers_document(resolved),
        "workspaces": [asdict(workspace) for workspace in workspaces(resolved)],
        "tiles": None if plan.tiles is None else asdict(plan.tiles),
        "row_checks": row_checks_document(resolved),
        "memory": memory_document(plan),
        "no_autotune_reason": resolved.no_autotune_reason,
        "ops": [
            {
                "custom_op": op.custom_op,
                "runner": op.call.runner,
                "phase": op.phase,
                "layer": op.layer,
                "shape": op.call.label,
                "buckets": list(op.buckets),
                "covers": op.covers,
                "reason": op.full_reason,
            }
            for op in plan.ops
        ],
        "not_tuned": [asdict(op) for op in resolved.unseen_ops],
        "modules": modules_document(plan),
        "cache_files": [{"rank": asdict(rank), "path": str(sglang_layout.rank_file(place, rank))} for rank in ranks],
        "forecast": {"work_units": len(plan.units)},
        "warnings": [asdict(notice) for notice in resolved.notices],
    }
    if keys is not None:
        document["keys"] = [
            {
                "key": key.key,
                "policy": list(key.policy),
                "tuned_by_server": key.tuned_by_server,
                "reason": "at start" if key.tuned_by_server else key.beyond,
            }
            for key in keys
        ]
    if explain:
        document["derivation"] = [asdict(derivation) for derivation in resolved.derivations]
    return document
