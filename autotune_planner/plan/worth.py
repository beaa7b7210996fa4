"""What each unit is worth to production: the share of a layer's time that is spent at sizes which its bucket serves.

Traffic gives the shares of prefill sizes where it is known. Else half of all prefill is taken to be full chunks and the
rest to be spread evenly over the smaller buckets; decode is spread evenly over the buckets that it reaches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from autotune_planner.engines.resolved import OpUse, Resolved
from autotune_planner.plan.buckets import bucket_of, reachable_buckets
from autotune_planner.plan.forecast import UnitForecast
from autotune_planner.plan.plan import Plan, WorkUnit
from autotune_planner.plan.prefill_batches import batch_tokens

_FULL_CHUNKS = 0.5


def worth(plan: Plan, forecasts: Sequence[UnitForecast]) -> dict[WorkUnit, float]:
    """Seconds of kernels, at the roofline, of one launch weighted by how often production makes it; 0 for a unit that
    only the server's own passes reach."""
    resolved = plan.resolved
    batches = batch_tokens(resolved)
    shares: defaultdict[tuple[object, int], float] = defaultdict(float)
    for use in resolved.ops:
        for bucket, share in (*decode_weights(use).items(), *prefill_weights(use, resolved, batches).items()):
            shares[use.call, bucket] += share
    return {found.unit: shares[found.unit.call, found.unit.bucket] * found.launch_seconds for found in forecasts}


def decode_weights(use: OpUse) -> Mapping[int, float]:
    """Share of DECODE batches by the bucket that serves them; empty for a worker that never decodes."""
    if not use.decode_rows:
        return {}
    buckets = reachable_buckets(use.decode_rows, use.call.tune_max)
    return dict.fromkeys(buckets, 1 / len(buckets))


def prefill_weights(use: OpUse, resolved: Resolved, batches: Mapping[int, int]) -> Mapping[int, float]:
    """Share of EXTEND batches by bucket. ``batches`` counts those of the sample by their tokens; empty without one."""
    if not use.prefill_rows:
        return {}
    shares: defaultdict[int, float] = defaultdict(float)
    if batches:
        total = sum(batches.values())
        for tokens, times in batches.items():
            rows = -(-tokens * use.prefill_rows // resolved.arguments.autotune_extend_ceiling)
            shares[bucket_of(rows, use.call.tune_max)] += times / total
        return shares
    *smaller, largest = reachable_buckets(use.prefill_rows, use.call.tune_max)
    shares.update(dict.fromkeys(smaller, (1 - _FULL_CHUNKS) / max(len(smaller), 1)))
    shares[largest] += _FULL_CHUNKS if smaller else 1.0
    return shares
