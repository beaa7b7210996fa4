"""Shards, their order, and what a time budget leaves out: arithmetic with figures shown."""

import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.ops.cutlass_fused_moe import CutlassFusedMoe
from autotune_planner.plan.forecast import UnitForecast
from autotune_planner.plan.plan import WorkUnit
from autotune_planner.plan.schedule import Shard, makespan, shards, take_shard, within_budget


def unit(n, bucket):
    return WorkUnit("fp8_gemm", BmmFp8(n=n, k=64), bucket)


def found(n, bucket, seconds):
    return UnitForecast(unit(n, bucket), candidates=8, launch_seconds=0.001, seconds=seconds)


def test_the_longest_shard_comes_first_and_shapes_stay_apart():
    made = shards([found(16, 1, 1.0), found(16, 2, 1.0), found(32, 1, 5.0)], gpus=2)
    # 7 s over 2 x 8 shards: none above 0.44 s but for single units
    assert [shard.seconds for shard in made] == [5.0, 1.0, 1.0]
    assert all(len({one.call for one in shard.units}) == 1 for shard in made)


def test_a_shard_starts_with_its_smallest_bucket():
    forecasts = [found(16, bucket, 0.25) for bucket in (1, 2, 4, 8)] + [found(32, 1, 7.0)]
    made = shards(forecasts, gpus=2)
    # 8 s / 16 = 0.5 s: pairs, from the smallest up
    assert [tuple(one.bucket for one in shard.units) for shard in made] == [(1,), (1, 2), (4, 8)]


def test_one_gpu_keeps_the_tensors_of_each_shape():
    made = shards([found(n, bucket, 1.0) for bucket in range(1, 22) for n in (16, 32)], gpus=1)
    assert [[one.call.n for one in shard.units] for shard in made] == [[16] * 21, [32] * 21]


def test_a_process_takes_the_longest_shard_of_its_own_bucket_bound():
    moes = [
        CutlassFusedMoe(
            num_experts=8,
            local_experts=8,
            hidden_size=64,
            intermediate_size=64,
            top_k=2,
            tp_size=1,
            ep_size=1,
            tune_max_num_tokens=bound,
        )
        for bound in (4096, 8192)
    ]
    first, second = (Shard((WorkUnit("trtllm::fused_moe::gemm1", moe, 1),), 2.0) for moe in moes)
    free = Shard((unit(16, 1),), 1.0)  # a linear has no bound of its own
    waiting = deque([first, second, free])
    assert take_shard(waiting, 8192) == second
    assert take_shard(waiting, 8192) == free
    assert take_shard(waiting, 8192) == first  # another process, then
    assert take_shard(deque([first, free]), None) == first


def test_makespan_by_hand():
    # 5 | 3, then 2 to the second (free at 3), 2 to either at 5
    assert makespan([5.0, 3.0, 2.0, 2.0], gpus=2) == 7.0
    assert makespan([5.0, 3.0, 2.0, 2.0], gpus=1) == 12.0
    assert makespan([], gpus=3) == 0.0


def test_a_budget_keeps_what_is_worth_most_per_second():
    forecasts = [found(16, 1, 2.0), found(16, 2, 1.0), found(16, 4, 1.0)]
    values = {unit(16, 1): 4.0, unit(16, 2): 3.0, unit(16, 4): 1.0}  # 2, 3 and 1 per second
    kept, left = within_budget(forecasts, values, seconds=3.0, gpus=1)
    assert [one.unit.bucket for one in kept] == [1, 2]
    assert [one.unit.bucket for one in left] == [4]
    assert within_budget(forecasts, values, seconds=1.5, gpus=3)[1] == ()  # 4.5 GPU seconds hold all 4


seconds = st.floats(0.01, 100.0)


@given(st.lists(seconds, min_size=1, max_size=60), st.integers(1, 8))
def test_every_unit_is_in_one_shard(times, gpus):
    forecasts = [found(16 + 16 * (place % 3), 2 ** (place % 20) + place, time) for place, time in enumerate(times)]
    made = shards(forecasts, gpus)
    assert sorted(one.id for shard in made for one in shard.units) == sorted(one.unit.id for one in forecasts)
    limit = sum(times) / (8 * gpus if gpus > 1 else 1)
    assert all(shard.seconds <= limit * 1.0001 or len(shard.units) == 1 for shard in made)
    assert [shard.seconds for shard in made] == sorted((shard.seconds for shard in made), reverse=True)


@given(st.lists(seconds, min_size=1, max_size=60), st.integers(1, 8))
def test_no_gpu_waits_longer_than_the_longest_shard(times, gpus):
    """Graham's bound: at most the fair share and the longest piece together; never less than either."""
    longest, fair = max(times), sum(times) / gpus
    spent = makespan(sorted(times, reverse=True), gpus)
    assert max(longest, fair) <= spent * 1.0001
    assert spent <= (fair + longest) * 1.0001


@given(st.lists(seconds, min_size=1, max_size=30), st.floats(0.0, 500.0), st.integers(1, 4))
def test_a_budget_is_never_exceeded(times, budget, gpus):
    forecasts = [found(16, place + 1, time) for place, time in enumerate(times)]
    kept, left = within_budget(forecasts, {one.unit: 1.0 for one in forecasts}, budget, gpus)
    assert sum(one.seconds for one in kept) <= budget * gpus * 1.0001
    assert sorted([*kept, *left], key=lambda one: one.unit.bucket) == forecasts


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_four_equal_shapes_scale(gpus):
    """4 shapes of 21 equal buckets: 84 s of work; on 8 GPUs 11 s, an eighth rounded up: 7.6 times faster."""
    forecasts = [found(n, bucket, 1.0) for n in (16, 32, 64, 128) for bucket in range(1, 22)]
    spent = makespan((shard.seconds for shard in shards(forecasts, gpus)), gpus)
    assert spent <= math.ceil(84 / gpus)
