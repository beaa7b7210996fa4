"""The exact cache keys of a plan, without a GPU, by running FlashInfer's own op code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from autotune_planner.engines.resolved import OpUse
from autotune_planner.ops.base import OpCall
from autotune_planner.plan.plan import Plan, WorkUnit
from autotune_planner.tuning import flashinfer_internals as internals
from autotune_planner.tuning.contexts import tuning_contexts


@dataclass(frozen=True)
class PlannedKey:
    """One key that ``run`` publishes. ``tuned_by_server``: the server's own passes would tune it at start; otherwise
    ``beyond`` says why it is tuned all the same."""

    key: str
    policy: tuple[Any, ...]
    tuned_by_server: bool
    beyond: str | None = None


def exact_keys(plan: Plan) -> tuple[PlannedKey, ...]:
    """Keys and profiling policies of every work unit, sorted by key text. Errors as in :func:`keys_by_unit`."""
    found = {key.key: key for keys in keys_by_unit(plan).values() for key in keys}
    return tuple(found[text] for text in sorted(found))


def keys_by_unit(plan: Plan) -> dict[WorkUnit, tuple[PlannedKey, ...]]:
    """What each work unit leaves in the cache: one key for each custom op and bucket.

    Units of one bucket bound share one stand-in module, since FlashInfer keeps the bound on the runner class.
    ``NotPossibleHereError`` where FlashInfer is missing or unknown.
    """
    if not plan.units:
        return {}
    internals.import_flashinfer(quiet=True)
    capability = plan.resolved.gpu.compute_capability
    assert capability is not None, "a plan with work units has a GPU architecture"
    found: dict[WorkUnit, dict[str, tuple[Any, ...]]] = {}
    tuned_by_server: set[str] = set()
    for bound, units in groupby(sorted(plan.units, key=_bound), key=_bound):
        with internals.silenced(), internals.without_gpu(capability, plan.resolved.gpu.name, lambda *_: 1.0):
            for unit in units:
                found[unit] = _unit_keys(unit)
            for use in plan.resolved.ops:
                if _call_bound(use.call) == bound:
                    tuned_by_server.update(_server_keys(use))
    return {
        unit: tuple(
            PlannedKey(text, policy, True)
            if text in tuned_by_server
            else PlannedKey(text, policy, False, _beyond(plan, unit))
            for text, policy in keys.items()
        )
        for unit, keys in found.items()
    }


def _beyond(plan: Plan, unit: WorkUnit) -> str | None:
    planned = (op for op in plan.ops if (op.custom_op, op.call) == (unit.custom_op, unit.call))
    return next((op.beyond for op in planned if op.beyond is not None and unit.bucket in op.buckets), None)


def _call_bound(call: OpCall) -> int:
    return call.tune_max or 0


def _bound(unit: WorkUnit) -> int:
    return _call_bound(unit.call)


def _unit_keys(unit: WorkUnit) -> dict[str, tuple[Any, ...]]:
    with internals.fresh_tuner() as tuner, tuning_contexts(unit):
        unit.call.prepare("meta")(1)()
        return internals.tuned_keys(tuner)


def _server_keys(use: OpUse) -> Iterable[str]:
    """Keys that the server's own passes leave tuned: its call at its dummy's size, with the op's own buckets."""
    keys: set[str] = set()
    for rows in (use.decode_pass_rows, use.extend_pass_rows):
        if rows:
            with internals.fresh_tuner() as tuner, tuning_contexts(None):
                use.call.prepare("meta")(rows)()
                keys.update(internals.tuned_keys(tuner))
    return keys
