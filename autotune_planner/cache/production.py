"""Share of production in each state of coverage: the prefill tokens of a sample of traffic, batch by batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from autotune_planner.cache.coverage import STATES, Coverage, State
from autotune_planner.engines.resolved import Resolved
from autotune_planner.plan.prefill_batches import batch_tokens


def prefill_shares(resolved: Resolved, coverage: Iterable[Coverage]) -> list[dict[State, float] | None]:
    """For each coverage, the share of the sample's prefill tokens in each state; None for a pass without prefill and
    for a deployment without traffic.

    A layer on gathered rows is judged as if every DP rank prefilled a batch of the same size.
    """
    batches = batch_tokens(resolved)
    return [_share(resolved, found, batches) if batches else None for found in coverage]


def _share(resolved: Resolved, coverage: Coverage, batches: Counter[int]) -> dict[State, float] | None:
    demand = coverage.demand
    uses = (use for use in resolved.ops if use.layer == demand.layer and demand.custom_op in use.call.custom_ops)
    rows = next((use.prefill_rows for use in uses), None)
    if demand.phase != "extend" or rows is None:
        return None
    ceiling = resolved.arguments.autotune_extend_ceiling
    tokens = dict.fromkeys(STATES, 0)
    for size, times in batches.items():
        tokens[coverage.state_of(-(-size * rows // ceiling))] += size * times
    total = sum(tokens.values())
    return {state: count / total for state, count in tokens.items()}
