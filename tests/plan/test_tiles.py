"""Tile counts by the arithmetic of the kernel's grid, and admission by a tile budget.

Worked: [8192, 1, 1, 1] at BLOCK_M 64 is 4 x 128 = 512 against 128 + 3 = 131; at 128 it is 4 x 64 = 256 against 67.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.engines.resolved import ExtendAttention, TileBudget
from autotune_planner.plan.prefill_batches import Batch
from autotune_planner.plan.tiles import (
    admitted,
    compact_bound,
    compact_grid_tiles,
    compact_tiles,
    legacy_tiles,
    q_tiles,
    saved_ratio,
    tiles_of,
)

MIXED = (8192, 1, 1, 1)
LENS = st.lists(st.integers(-3, 40_000), max_size=40)
SOME_LENS = st.lists(st.integers(1, 40_000), min_size=1, max_size=40)
BLOCK_M = st.sampled_from((16, 32, 64, 128))
BUDGET = st.integers(-1, 5000)

NO_BUDGET = TileBudget("BUDGET", 0, "compact", block_m=64, page_size=1, counts_earlier=True, inactive=None)
KERNEL = ExtendAttention(
    q_head_dim=192,
    v_head_dim=128,
    block_m=128,
    q_head_dim_after_prefix=576,
    v_head_dim_after_prefix=512,
    block_m_after_prefix=64,
    after_prefix_up_to=0,
    runs_prefill=True,
    compact_grid="this GPU",
    no_compact_grid=None,
    tile_budget=NO_BUDGET,
    chunk_granule=1,
    verify_split_kv_refused=None,
)


@pytest.mark.parametrize(("length", "tiles"), [(-1, 0), (0, 0), (1, 1), (64, 1), (65, 2), (8192, 128)])
def test_tiles_of_one_request(length, tiles):
    assert q_tiles(length, 64) == tiles


@pytest.mark.parametrize(
    ("lens", "block_m", "legacy", "compact"),
    [
        (MIXED, 64, 512, 131),
        (MIXED, 128, 256, 67),
        ((100, 100), 64, 4, 4),
        ((0, 0), 64, 0, 0),
        ((), 64, 0, 0),
        ((128, 0, -5), 64, 6, 2),  # an empty request has a row of the rectangle and no tile of its own
    ],
)
def test_both_grids(lens, block_m, legacy, compact):
    assert (legacy_tiles(lens, block_m), compact_tiles(lens, block_m)) == (legacy, compact)


def test_saved_ratio():
    assert saved_ratio(512, 131) == 381 / 512
    assert saved_ratio(0, 0) is None


def test_bound_without_lengths():
    # floor((8195 + 4 x 63) / 64) = floor(8447 / 64) = 131; floor((8195 + 4 x 127) / 128) = floor(8703 / 128) = 67.
    assert compact_bound(requests=4, longest=8192, total=8195, block_m=64) == 131
    assert compact_bound(requests=4, longest=8192, total=8195, block_m=128) == 67
    assert compact_bound(requests=4, longest=100, total=400, block_m=64) is None


@pytest.mark.parametrize(
    ("lens", "known", "tiles"),
    [
        (MIXED, MIXED, 131),
        (MIXED, None, 131),
        (MIXED, MIXED[:3], None),  # fewer lengths than requests
        ((8192,), (8192,), None),  # one request
        ((100, 100), (100, 100), None),  # nothing is saved
        ((100, 100), None, None),  # uniform
        ((0, 0), (0, 0), None),
        # The bound is not less than the rectangle: floor((3 + 2 x 63) / 64) = 2 = 2 x 1.
        ((1, 2), None, None),
    ],
)
def test_when_the_grid_is_compact(lens, known, tiles):
    found = compact_grid_tiles(requests=len(lens), longest=max(lens), total=sum(lens), block_m=64, extend_lens=known)
    assert found == tiles


@pytest.mark.parametrize(
    ("lens", "budget", "compact", "legacy"),
    [
        (MIXED, 0, 4, 4),  # off
        (MIXED, 130, 3, 1),  # 128, 129, 130, 131 against 128, 256
        (MIXED, 131, 4, 1),
        (MIXED, 256, 4, 2),
        (MIXED, 512, 4, 4),
        (MIXED, 1, 1, 1),  # the first is always admitted
        ((1, 1, 8192), 129, 2, 2),  # 1, 2, 130 against 1, 2, 384
        ((), 10, 0, 0),
    ],
)
def test_admission(lens, budget, compact, legacy):
    assert admitted(lens, block_m=64, budget=budget, compact=True) == compact
    assert admitted(lens, block_m=64, budget=budget, compact=False) == legacy


def test_admission_that_forgets_the_requests_in_the_batch():
    # Only the candidate counts: 1 tile each, so 1 of compact and n of legacy, never the 128 of the first.
    assert admitted(MIXED, block_m=64, budget=2, compact=True, counts_earlier=False) == 4
    assert admitted(MIXED, block_m=64, budget=2, compact=False, counts_earlier=False) == 2
    assert admitted((1, 8192), block_m=64, budget=127, compact=True, counts_earlier=False) == 1


def test_sample_of_one_batch():
    tiles = tiles_of([Batch(MIXED)], KERNEL, "extend_lens")
    assert (tiles.batches, tiles.request_count, tiles.max_extend_len, tiles.sum_extend_len) == (1, 4, 8192, 8195)
    assert (tiles.legacy_q_tiles_per_head, tiles.compact_q_tiles_per_head) == (256, 67)
    assert (tiles.saved_q_tiles_per_head, tiles.saved_q_tile_ratio) == (189, 189 / 256)
    assert tiles.mean_saved_q_tile_ratio == tiles.saved_q_tile_ratio
    assert tiles.without_lens_q_tiles_per_head == 67
    assert tiles.launched_q_tiles_per_head == 67
    assert tiles.compact_grid.applies
    assert tiles.compact_grid.reason == "this GPU, and it has fewer tiles"
    assert not tiles.admission.active


def test_batches_after_a_prefix_have_their_own_block_m():
    batches = [Batch(MIXED), Batch(MIXED, after_prefix=True, times=3)]
    tiles = tiles_of(batches, KERNEL, "histogram")
    assert tiles.batches == 4
    assert tiles.request_count == 16
    assert tiles.legacy_q_tiles_per_head == 256 + 3 * 512
    assert tiles.compact_q_tiles_per_head == 67 + 3 * 131
    assert tiles.mean_saved_q_tile_ratio == pytest.approx((189 / 256 + 3 * 381 / 512) / 4)
    in_graphs = tiles_of([Batch(MIXED)], replace(KERNEL, after_prefix_up_to=8195), "extend_lens")
    assert in_graphs.legacy_q_tiles_per_head == 512


def test_only_batches_that_save_are_compacted():
    tiles = tiles_of([Batch(MIXED), Batch((64, 64)), Batch((8192,), times=2)], KERNEL, "histogram")
    assert tiles.compact_grid.batches == 1
    assert tiles.compact_grid.reason.endswith("fewer tiles in 1 of 4 batches")
    # 64 of the three rectangles: 2 x 1, and 2 x 64 of the long prompts
    assert tiles.launched_q_tiles_per_head == 67 + 2 + 128


@pytest.mark.parametrize(
    ("lens", "reason"), [((8192,), "one request"), ((64, 64), "nothing is saved"), ((0, 0), "nothing is saved")]
)
def test_why_nothing_is_compacted(lens, reason):
    grid = tiles_of([Batch(lens)], KERNEL, "extend_lens").compact_grid
    assert not grid.applies
    assert reason in grid.reason


def test_a_gpu_without_the_compact_grid():
    tiles = tiles_of([Batch(MIXED)], replace(KERNEL, no_compact_grid="not here"), "extend_lens")
    assert (tiles.compact_grid.applies, tiles.compact_grid.batches, tiles.compact_grid.reason) == (False, 0, "not here")
    assert tiles.launched_q_tiles_per_head == tiles.legacy_q_tiles_per_head == 256
    assert tiles.compact_q_tiles_per_head == 67


def test_a_backend_with_a_kernel_of_its_own_launches_none_of_them():
    tiles = tiles_of([Batch(MIXED)], replace(KERNEL, runs_prefill=False, no_compact_grid="not here"), "extend_lens")
    assert tiles.launched_q_tiles_per_head is None
    assert tiles.legacy_q_tiles_per_head == 256


def test_budget_over_batches():
    budget = replace(NO_BUDGET, tiles=130, counts_earlier=False, page_size=128)
    tiles = tiles_of([Batch(MIXED, times=2)], replace(KERNEL, tile_budget=budget), "histogram")
    admission = tiles.admission
    assert (admission.active, admission.reason) == (True, "BUDGET=130")
    assert (admission.compact_requests, admission.legacy_requests) == (2 * 3, 2 * 1)
    # A page of 128 tokens is 2 tiles: each candidate alone is within 130.
    assert admission.release_requests == 2 * 4


@given(lens=LENS, block_m=BLOCK_M)
def test_compact_never_exceeds_legacy(lens, block_m):
    legacy, compact = legacy_tiles(lens, block_m), compact_tiles(lens, block_m)
    assert 0 <= compact <= legacy
    assert compact == sum(q_tiles(length, block_m) for length in lens)
    ratio = saved_ratio(legacy, compact)
    assert ratio is None if legacy == 0 else 0 <= ratio < 1


@given(lens=SOME_LENS, block_m=BLOCK_M, more=st.integers(0, 1000), at=st.integers(0, 39))
def test_longer_requests_never_have_fewer_tiles(lens, block_m, more, at):
    longer = list(lens)
    longer[at % len(lens)] += more
    assert legacy_tiles(longer, block_m) >= legacy_tiles(lens, block_m)
    assert compact_tiles(longer, block_m) >= compact_tiles(lens, block_m)
    assert compact_tiles([*lens, more], block_m) >= compact_tiles(lens, block_m)


@given(lens=SOME_LENS, block_m=BLOCK_M)
def test_the_bound_holds(lens, block_m):
    bound = compact_bound(requests=len(lens), longest=max(lens), total=sum(lens), block_m=block_m)
    assert bound is None or bound >= compact_tiles(lens, block_m)


@given(lens=SOME_LENS, block_m=BLOCK_M, budget=BUDGET, more=st.integers(0, 1000))
def test_admission_is_monotone_and_compact_admits_no_fewer(lens, block_m, budget, more):
    compact = admitted(lens, block_m=block_m, budget=budget, compact=True)
    legacy = admitted(lens, block_m=block_m, budget=budget, compact=False)
    assert 1 <= legacy <= compact <= len(lens)
    if budget > 0:
        for mode in (True, False):
            wider = admitted(lens, block_m=block_m, budget=budget + more, compact=mode)
            assert wider >= (compact if mode else legacy)
        assert compact == 1 or compact_tiles(lens[:compact], block_m) <= budget
        assert legacy == 1 or legacy_tiles(lens[:legacy], block_m) <= budget
        forgetful = admitted(lens, block_m=block_m, budget=budget, compact=True, counts_earlier=False)
        assert forgetful >= compact
