"""Bucket arithmetic. Expected lists are section 3 of FlashInfer's contract as measured with 0.7.2."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.plan.buckets import (
    bucket_capped,
    bucket_of,
    bucket_uncapped,
    hybrid_grid,
    next_power_of_two,
    reachable_buckets,
    server_buckets,
)

GRID_8192 = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 8192)
TOKENS = st.integers(1, 200_000)


@pytest.mark.parametrize(
    ("largest", "grid"),
    [
        (1, (1,)),
        (1000, (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1000)),
        (8192, GRID_8192),
        (16384, (*GRID_8192, 16384)),
        (32768, (*GRID_8192, 16384, 32768)),
        (8184, (*GRID_8192[:-1], 8184)),
        (0, ()),
        (-1, ()),
    ],
)
def test_grid(largest, grid):
    assert hybrid_grid(largest) == grid


@pytest.mark.parametrize(
    ("m", "capped_1000", "capped_8192", "uncapped"),
    [
        (3, 4, 4, 4),
        (200, 256, 256, 256),
        (257, 512, 512, 512),
        (700, 768, 768, 768),
        (900, 1000, 1024, 1024),
        (1000, 1000, 1024, 1024),
        (1001, 1000, 1024, 1024),
        (1025, 1000, 1280, 1280),
        (3000, 1000, 3072, 3072),
        (5000, 1000, 8192, 8192),
        (8193, 1000, 8192, 16384),
        (40000, 1000, 8192, 65536),
    ],
)
def test_mappers(m, capped_1000, capped_8192, uncapped):
    assert bucket_capped(m, 1000) == capped_1000
    assert bucket_capped(m, 8192) == capped_8192
    assert bucket_uncapped(m) == uncapped


@pytest.mark.parametrize(
    ("largest_m", "tune_max", "top"),
    [
        (4096, 1000, 1000),  # a bounded op: the bound itself, even off the grid
        (16384, 8184, 8184),
        (3906, None, 4096),  # an unbounded op: rounded up
        (3125, None, 3584),
        (300, None, 512),
        (8192, 8192, 8192),
    ],
)
def test_top_bucket_is_what_the_mapper_returns(largest_m, tune_max, top):
    assert reachable_buckets(largest_m, tune_max)[-1] == top


@pytest.mark.parametrize(("rows", "count"), [(3906, 20), (3125, 19), (300, 10), (25000, 23), (16386, 23), (8192, 21)])
def test_counts_of_an_unbounded_op(rows, count):
    assert len(server_buckets(rows, None)) == count


@pytest.mark.parametrize(
    ("tune_max", "count"), [(512, 10), (1000, 12), (5000, 21), (4096, 20), (2048, 16), (32768, 23)]
)
def test_a_bounded_op_is_tuned_up_to_its_bound_whatever_the_rows(tune_max, count):
    assert len(server_buckets(4096, tune_max)) == count
    assert server_buckets(1, tune_max) == server_buckets(4096, tune_max)


def test_powers_of_two_are_not_clamped_to_the_bound():
    # FlashInfer's mapper: M = 70 under a bound of 100 is served by 128, which hybrid_grid(100) = (.. 64, 100) lacks.
    assert bucket_capped(70, 100) == 128
    assert 128 not in server_buckets(100, 100)
    assert reachable_buckets(100, 100) == (1, 2, 4, 8, 16, 32, 64, 100, 128)


@pytest.mark.parametrize(("value", "power"), [(0, 1), (1, 1), (2, 2), (3, 4), (300, 512), (512, 512), (32768, 32768)])
def test_next_power_of_two(value, power):
    assert next_power_of_two(value) == power


@given(TOKENS, st.one_of(st.none(), TOKENS))
def test_every_reachable_size_is_served(largest_m, tune_max):
    buckets = reachable_buckets(largest_m, tune_max)
    assert list(buckets) == sorted(set(buckets))
    for m in {1, largest_m, largest_m // 2 or 1, largest_m // 7 or 1}:
        assert bucket_of(m, tune_max) in buckets


@given(TOKENS)
def test_the_uncapped_bucket_is_never_smaller_and_maps_to_itself(m):
    bucket = bucket_uncapped(m)
    assert bucket >= m
    assert bucket_uncapped(bucket) == bucket


@given(TOKENS, TOKENS)
def test_more_tokens_never_mean_fewer_buckets(first, second):
    small, large = sorted((first, second))
    assert set(reachable_buckets(small, None)) <= set(reachable_buckets(large, None))


@pytest.mark.flashinfer
def test_equal_to_flashinfer():
    utils = pytest.importorskip("flashinfer.fused_moe.utils")
    for bound in (*range(1, 9000, 37), 1000, 8184, 8192, 12000, 16384, 32768):
        assert hybrid_grid(bound) == utils.get_hybrid_num_tokens_buckets(bound)
        mapper = utils.make_hybrid_bucket_mapper(bound)
        assert all(mapper(m) == bucket_capped(m, bound) for m in (*range(1, 9000, 131), 20000, 70000))
    assert all(utils.map_to_hybrid_bucket_uncapped(m) == bucket_uncapped(m) for m in range(1, 70000, 3))
