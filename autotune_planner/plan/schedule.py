"""In which order units are tuned, and on how many GPUs: shards, longest first. Pure arithmetic on a forecast."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from autotune_planner.plan.forecast import UnitForecast
from autotune_planner.plan.plan import WorkUnit
from autotune_planner.values import dataclass

_SHARDS_PER_GPU = 8  # so that the last shard is short beside the whole


@dataclass(frozen=True)
class Shard:
    """Units of one custom op and one call, smallest bucket first, tuned one after another on one GPU.

    Large sizes draw so much power that the clock falls, and what is timed right after them runs at the lowered clock.
    """

    units: tuple[WorkUnit, ...]
    seconds: float


def shards(forecasts: Sequence[UnitForecast], gpus: int) -> tuple[Shard, ...]:
    """The work in shards, longest first. A shard keeps one call's tensors; among several GPUs a long one is cut.

    Then none is longer than an eighth of one GPU's fair share, unless it is a single unit.
    """
    whole = sum(found.seconds for found in forecasts)
    limit = whole / (_SHARDS_PER_GPU * gpus) if gpus > 1 else whole
    groups: dict[tuple[object, str], list[UnitForecast]] = {}
    for found in forecasts:
        groups.setdefault((found.unit.call, found.unit.custom_op), []).append(found)
    cut = [piece for group in groups.values() for piece in _cut(group, limit)]
    made = [Shard(tuple(f.unit for f in piece), sum(f.seconds for f in piece)) for piece in cut]
    return tuple(sorted(made, key=lambda shard: -shard.seconds))


def makespan(shard_seconds: Iterable[float], gpus: int) -> float:
    """Seconds until the last GPU is done, each taking the next shard when it is free."""
    free = [0.0] * gpus
    for seconds in shard_seconds:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free)


def take_shard(waiting: deque[Shard], bound: int | None) -> Shard:
    """Take out the first shard that a process with this bucket bound can tune as it is, else the first.

    ``waiting`` is not empty and comes longest first. A process keeps the first bound that it meets (None: none yet).
    """
    fitting = (shard for shard in waiting if bound is None or shard.units[0].call.tune_max in (None, bound))
    chosen = next(fitting, waiting[0])
    waiting.remove(chosen)
    return chosen


def within_budget(
    forecasts: Sequence[UnitForecast], values: Mapping[WorkUnit, float], seconds: float, gpus: int
) -> tuple[tuple[UnitForecast, ...], tuple[UnitForecast, ...]]:
    """(kept, left out) under a time budget: the most valuable per second first, until ``gpus`` times it is spent.

    Both come in the order of ``forecasts``. Nothing is worth a negative amount; units of no value come last.
    """
    ranked = sorted(forecasts, key=lambda found: (-values.get(found.unit, 0.0) / found.seconds, found.unit.id))
    left, kept = seconds * gpus, set()
    for found in ranked:
        if found.seconds <= left:
            left -= found.seconds
            kept.add(found.unit)
    inside = tuple(found for found in forecasts if found.unit in kept)
    return inside, tuple(found for found in forecasts if found.unit not in kept)


def _cut(group: Sequence[UnitForecast], limit: float) -> Iterable[list[UnitForecast]]:
    """Runs of a group, none longer than ``limit`` but for single units."""
    piece: list[UnitForecast] = []
    for found in sorted(group, key=lambda found: found.unit.bucket):
        if piece and sum(f.seconds for f in piece) + found.seconds > limit:
            yield piece
            piece = []
        piece.append(found)
    if piece:
        yield piece
