"""Which tactic a tie goes to first: the shipped order, and how it is made from oracle tables."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_planner import profiles
from autotune_planner.tuning.tie_order import in_tie_order, tie_order
from benchmarks.tie_order import inside, order, orders
from tests.tuning.plans import qwen3_moe

GEMM1, GEMM2 = "trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2"
TABLES = Path(__file__).resolve().parents[2] / "docs" / "measurements" / "search-h200"
BF16 = "cutlass_fused_moe/MoERunner/bf16"


def test_the_shipped_order_is_that_of_the_published_tables():
    tables = [TABLES / f"moe-{number}.json" for number in (1, 2)]
    assert profiles.table("search")["ties"]["9.0"][BF16] == orders(tables)


def test_an_order_belongs_to_an_op_on_an_architecture():
    call = qwen3_moe(tune_max=8)
    assert tie_order(call.searched_as, (9, 0), GEMM1)[0] == 38
    assert tie_order(call.searched_as, (9, 0), GEMM2)[0] == 83
    assert tie_order(call.searched_as, (10, 0), GEMM1) == ()
    assert tie_order(call.searched_as, None, GEMM1) == ()
    assert tie_order("bmm_fp8/CublasFp8GemmRunner", (9, 0), "fp8_gemm") == ()


def test_the_default_precedes_the_order_and_the_others_follow_in_flashinfer_s():
    # places of -1; 12, 11; 10, 13: tactics that are named but not offered are passed over
    assert in_tie_order([-1, 10, 11, 12, 13], [12, 99, 11]) == [0, 3, 2, 1, 4]
    assert in_tie_order([-1, [1, 2], [3]], []) == [0, 1, 2]  # tactics of other ops are lists


@given(st.integers(0, 30), st.lists(st.integers(-1, 30), unique=True))
def test_every_place_is_there_once_and_the_default_is_first(count, first):
    places = in_tie_order([-1, *range(count)], first)
    assert sorted(places) == list(range(count + 1))
    assert places[0] == 0


def test_what_lies_at_the_edge_is_inside_half_the_time():
    row = {1: 0.006, 2: 0.0, 3: 0.012}
    assert inside(row, 1, 0.006, 0.0015) == 0.5
    # two standard deviations of a difference of two: sqrt(2) * 0.0015 * 2.83 = 0.006
    assert inside(row, 2, 0.006, 0.0015) == pytest.approx(0.5 * (1 + math.erf(2)))
    assert inside(row, 3, 0.006, 0.0015) == pytest.approx(0.5 * (1 - math.erf(2)))
    assert inside(row, 4, 0.006, 0.0015) == 0.0


def test_tactics_that_settle_profiles_go_first_and_doubtful_ones_last():
    far = 0.1
    rows = [
        {-1: far, 1: 0.0, 2: 0.006, 3: far},  # 1 settles it; 2 would be picked every other time
        {-1: far, 1: 0.0, 2: far, 3: 0.0},
        {-1: far, 1: far, 2: far, 3: 0.0},  # only 3
    ]
    assert order(rows, tie=0.006, noise=0.0015) == [1, 3]
    # where the default is the best: 1 is named only for what its 0.2 % of doubt leaves open, 2 is not
    assert order([{-1: 0.0, 1: 0.0, 2: 0.006}], tie=0.006, noise=0.0015) == [1]
