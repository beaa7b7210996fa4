"""Query tiles of ragged EXTEND attention: the work of a batch, and how many of its requests a tile budget admits.

A tile is ``BLOCK_M`` query rows of one request and one head; all counts here are per head. The rectangular (legacy)
grid gives each request of a batch as many tiles as the longest has; the compact grid gives each request its own.
``BLOCK_M`` is the kernel's own choice, which only ``engines/`` knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from autotune_planner.engines.resolved import ExtendAttention, Resolved, TileBudget
from autotune_planner.plan.prefill_batches import Batch, PrefillLimits, prefill_batches, requests_of
from autotune_planner.values import dataclass

Source = Literal["extend_lens", "histogram"]


def q_tiles(extend_len: int, block_m: int) -> int:
    """Tiles of one request of ``extend_len`` new tokens; 0 where it has none."""
    return -(-extend_len // block_m) if extend_len > 0 else 0


def legacy_tiles(extend_lens: Sequence[int], block_m: int) -> int:
    """Tiles of the rectangular grid: requests times the longest."""
    return len(extend_lens) * q_tiles(max(extend_lens, default=0), block_m)


def compact_tiles(extend_lens: Sequence[int], block_m: int) -> int:
    """Tiles that hold query rows."""
    # Floor division of negated lengths, since a batch has thousands of them.
    return -sum([-length // block_m for length in extend_lens if length > 0])


def saved_ratio(legacy: int, compact: int) -> float | None:
    """Part of the rectangular grid that holds no query rows; None where there is no grid."""
    return (legacy - compact) / legacy if legacy else None


def compact_bound(*, requests: int, longest: int, total: int, block_m: int) -> int | None:
    """Upper bound of the compact tiles where the length of each request is not known; None where all are equal.

    ``longest`` and ``total`` are tokens. Each request wastes at most ``block_m - 1`` rows.
    """
    if total == requests * longest:
        return None
    return (total + requests * (block_m - 1)) // block_m


def compact_grid_tiles(
    *, requests: int, longest: int, total: int, block_m: int, extend_lens: Sequence[int] | None = None
) -> int | None:
    """Tiles of the compact grid for one launch; None where it keeps the rectangular grid.

    It does so for a single request, where fewer lengths are known than there are requests, and where nothing is saved.
    Without lengths the bound stands for them.
    """
    if requests <= 1 or longest <= 0:
        return None
    if extend_lens is None:
        tiles = compact_bound(requests=requests, longest=longest, total=total, block_m=block_m)
    elif len(extend_lens) < requests:
        tiles = None
    else:
        tiles = compact_tiles(extend_lens[:requests], block_m)
    if tiles is None or not 0 < tiles < requests * q_tiles(longest, block_m):
        return None
    return tiles


def admitted(
    extend_lens: Sequence[int], *, block_m: int, budget: int, compact: bool, counts_earlier: bool = True
) -> int:
    """How many requests of a batch, in order, a budget of tiles admits. A budget of 0 or less is off.

    A request is refused, and all after it, if the batch with it has more tiles than the budget; the first never is.
    ``counts_earlier`` False: requests that are in the batch already count as empty.
    """
    if budget <= 0:
        return len(extend_lens)
    total = longest = 0
    for earlier, length in enumerate(extend_lens):
        tiles = q_tiles(length, block_m)
        total, longest = (total + tiles, max(longest, tiles)) if counts_earlier else (tiles, tiles)
        if earlier and (total if compact else (earlier + 1) * longest) > budget:
            return earlier
    return len(extend_lens)


@dataclass(frozen=True)
class CompactGrid:
    """Whether this server launches the compact grid. ``batches`` counts those of the sample where it does."""

    applies: bool
    batches: int
    reason: str


@dataclass(frozen=True)
class Admission:
    """Requests of the sample that enter the batch they are in, by how the budget counts tiles.

    ``active`` is whether this server enforces the budget (tiles; 0 is off), ``mode`` how it counts.
    ``release_requests`` is what the release admits in that mode, which departs from its own rule: see the warnings.
    """

    active: bool
    reason: str
    budget: int
    mode: Literal["compact", "legacy"]
    block_m: int
    compact_requests: int
    legacy_requests: int
    release_requests: int


@dataclass(frozen=True)
class Tiles:
    """Tiles per head of a sample of traffic, summed over its batches; lengths in tokens.

    Names are those of ``schedule_policy.estimate_prefill_extend_tile_metrics``. ``request_count`` counts requests of
    batches: a prompt that is prefilled in three chunks counts three times. The second ``BLOCK_M`` is that of batches
    with a cached prefix. ``saved_q_tile_ratio`` is of the sums, the mean is over batches. ``launched`` is what this
    server launches; ``without_lens`` what the compact grid would take if it knew no length of a single request.
    """

    source: Source
    q_head_dim: int
    v_head_dim: int
    block_m: int
    q_head_dim_after_prefix: int
    v_head_dim_after_prefix: int
    block_m_after_prefix: int
    batches: int
    request_count: int
    max_extend_len: int
    sum_extend_len: int
    legacy_q_tiles_per_head: int
    compact_q_tiles_per_head: int
    saved_q_tiles_per_head: int
    saved_q_tile_ratio: float | None
    mean_saved_q_tile_ratio: float | None
    without_lens_q_tiles_per_head: int
    launched_q_tiles_per_head: int | None  # None: prefill runs in another backend's kernel
    compact_grid: CompactGrid
    admission: Admission
    verify_split_kv_refused: str | None  # why the split-KV fast path of verification refuses this model


def sample_tiles(resolved: Resolved) -> Tiles | None:
    """Tiles of a deployment's traffic; None where it has none. ``extend_lens`` is exactly one batch."""
    traffic, kernel = resolved.traffic, resolved.extend_attention
    if traffic.extend_lens is not None:
        return tiles_of([Batch(traffic.extend_lens)], kernel, "extend_lens")
    if traffic.rows is None:
        return None
    limits = PrefillLimits(
        chunk=resolved.arguments.chunked_prefill_size,
        max_tokens=resolved.arguments.max_prefill_tokens,
        max_requests=resolved.runtime.max_running_requests_per_dp_worker,
        granule=kernel.chunk_granule,
    )
    return tiles_of(prefill_batches(requests_of(traffic.rows), limits), kernel, "histogram")


class _Measured(NamedTuple):
    """One batch: lengths in tokens, tiles per head, requests that the budget admits."""

    times: int
    requests: int
    longest: int
    tokens: int
    legacy: int
    compact: int
    without_lens: int
    compacted: bool
    admitted_compact: int
    admitted_legacy: int
    admitted_by_release: int


def tiles_of(batches: Iterable[Batch], kernel: ExtendAttention, source: Source) -> Tiles:
    """Tiles of batches, each at the ``BLOCK_M`` that the kernel takes for it."""
    measured = [_measured(batch, kernel) for batch in batches]
    legacy = sum(one.times * one.legacy for one in measured)
    compact = sum(one.times * one.compact for one in measured)
    saved_by_grid = sum(one.times * (one.legacy - one.compact) for one in measured if one.compacted)
    ratios = [(one.times, saved_ratio(one.legacy, one.compact)) for one in measured]
    weight = sum(times for times, ratio in ratios if ratio is not None)
    grid = _compact_grid(measured, kernel)
    return Tiles(
        source=source,
        q_head_dim=kernel.q_head_dim,
        v_head_dim=kernel.v_head_dim,
        block_m=kernel.block_m,
        q_head_dim_after_prefix=kernel.q_head_dim_after_prefix,
        v_head_dim_after_prefix=kernel.v_head_dim_after_prefix,
        block_m_after_prefix=kernel.block_m_after_prefix,
        batches=sum(one.times for one in measured),
        request_count=sum(one.times * one.requests for one in measured),
        max_extend_len=max((one.longest for one in measured), default=0),
        sum_extend_len=sum(one.times * one.tokens for one in measured),
        legacy_q_tiles_per_head=legacy,
        compact_q_tiles_per_head=compact,
        saved_q_tiles_per_head=legacy - compact,
        saved_q_tile_ratio=saved_ratio(legacy, compact),
        mean_saved_q_tile_ratio=sum(times * (ratio or 0) for times, ratio in ratios) / weight if weight else None,
        without_lens_q_tiles_per_head=sum(one.times * one.without_lens for one in measured),
        launched_q_tiles_per_head=legacy - saved_by_grid * grid.applies if kernel.runs_prefill else None,
        compact_grid=grid,
        admission=_admission(measured, kernel.tile_budget),
        verify_split_kv_refused=kernel.verify_split_kv_refused,
    )


def _measured(batch: Batch, kernel: ExtendAttention) -> _Measured:
    lens = batch.extend_lens
    requests, longest, total = len(lens), max(lens, default=0), sum(lens)
    after_prefix = batch.after_prefix or total <= kernel.after_prefix_up_to
    block_m = kernel.block_m_after_prefix if after_prefix else kernel.block_m
    legacy = requests * q_tiles(longest, block_m)
    grid = compact_grid_tiles(requests=requests, longest=longest, total=total, block_m=block_m, extend_lens=lens)
    bound = compact_grid_tiles(requests=requests, longest=longest, total=total, block_m=block_m)
    return _Measured(
        batch.times,
        requests,
        longest,
        total,
        legacy,
        compact_tiles(lens, block_m) if grid is None else grid,
        legacy if bound is None else bound,
        grid is not None,
        *_admitted_by_mode(lens, kernel.tile_budget),
    )


def _admitted_by_mode(extend_lens: Sequence[int], budget: TileBudget) -> tuple[int, int, int]:
    """In compact mode, in legacy mode, and by the release in its own mode."""
    if budget.tiles <= 0:
        return (len(extend_lens),) * 3
    charged = [-(-length // budget.page_size) * budget.page_size for length in extend_lens]
    return (
        admitted(extend_lens, block_m=budget.block_m, budget=budget.tiles, compact=True),
        admitted(extend_lens, block_m=budget.block_m, budget=budget.tiles, compact=False),
        admitted(
            charged,
            block_m=budget.block_m,
            budget=budget.tiles,
            compact=budget.mode == "compact",
            counts_earlier=budget.counts_earlier,
        ),
    )


def _compact_grid(measured: Sequence[_Measured], kernel: ExtendAttention) -> CompactGrid:
    if kernel.no_compact_grid is not None:
        return CompactGrid(False, 0, kernel.no_compact_grid)
    batches = sum(one.times for one in measured)
    compacted = sum(one.times for one in measured if one.compacted)
    if compacted:
        where = "" if batches == 1 else f" in {compacted} of {batches} batches"
        return CompactGrid(True, compacted, f"{kernel.compact_grid}, and it has fewer tiles{where}")
    if all(one.requests <= 1 for one in measured):
        return CompactGrid(False, 0, "a batch of one request has nothing to compact")
    return CompactGrid(False, 0, "nothing is saved: the requests of a batch have equally many tiles")


def _admission(measured: Sequence[_Measured], budget: TileBudget) -> Admission:
    off = f"{budget.variable} is not set: every request is admitted" if budget.tiles <= 0 else None
    return Admission(
        active=off is None and budget.inactive is None,
        reason=off or budget.inactive or f"{budget.variable}={budget.tiles}",
        budget=budget.tiles,
        mode=budget.mode,
        block_m=budget.block_m,
        compact_requests=sum(one.times * one.admitted_compact for one in measured),
        legacy_requests=sum(one.times * one.admitted_legacy for one in measured),
        release_requests=sum(one.times * one.admitted_by_release for one in measured),
    )
