"""The cost model: seeded, ordered as hardware is, and never better than the roofline."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.tuning.simulated import CostModel
from tests.tuning.plans import H200

LAUNCH_MS = 0.003


def linear(m, n=4096, k=4096):
    return ((1, m, k), (1, k, n), (1,), (1,), (1, m, n), (41943040,))


def best(model, m):
    return min(range(8), key=lambda tactic: model("CublasFp8GemmRunner", linear(m), tactic, 0, 1))


def test_same_seed_same_times():
    first, second, other = (CostModel(H200, seed) for seed in (0, 0, 1))
    arguments = ("CublasFp8GemmRunner", linear(64), 3, 0, 1)
    assert first(*arguments) == second(*arguments) != other(*arguments)


def test_time_does_not_depend_on_the_order_of_the_work():
    forwards, backwards = CostModel(H200, 0), CostModel(H200, 0)
    sizes = (1, 64, 1024)
    there = {m: forwards("CublasFp8GemmRunner", linear(m), 2, 0, 1) for m in sizes}
    back = {m: backwards("CublasFp8GemmRunner", linear(m), 2, 0, 1) for m in reversed(sizes)}
    assert there == back


@given(st.integers(1, 16384), st.integers(0, 44))
def test_never_faster_than_the_roofline(m, tactic):
    # One FP8 weight of 4096 x 4096 over 4800 GB/s, or 2 m n k over 1979 TFLOP/s; 5 sigma of 0.5 % noise below it.
    floor_ms = max(4096 * 4096 / 4800e6, 2 * m * 4096 * 4096 / 1979e9)
    assert CostModel(H200, 0)("CublasFp8GemmRunner", linear(m), tactic, 0, 1) > floor_ms * 0.975


@pytest.mark.parametrize("m", [1, 64, 1024, 8192])
def test_the_default_tactic_is_beaten(m):
    model = CostModel(H200, 0)
    tuned = model("CublasFp8GemmRunner", linear(m), best(model, m), 0, 1)
    assert model("CublasFp8GemmRunner", linear(m), -1, 0, 1) > 1.5 * tuned


def test_small_and_large_sizes_prefer_different_tactics():
    model = CostModel(H200, 0)
    assert best(model, 1) != best(model, 8192)


def test_gemm1_and_gemm2_of_a_moe_are_told_apart():
    shapes = ((1024, 2048), (128, 1536, 2048), (0,), (128, 2048, 768), (0,))
    model = CostModel(H200, 0)
    gemm1, gemm2 = (model("MoERunner", shapes, 5, gemm, 8) - LAUNCH_MS for gemm in (1, 2))
    assert math.isclose(gemm1 / gemm2, 2, rel_tol=0.35)  # twice the weights and the work


def test_the_clock_counts_what_stock_tuning_would_spend():
    model = CostModel(H200, 0)
    time = model("CublasFp8GemmRunner", linear(64), 3, 0, 1)
    assert math.isclose(model.elapsed_ms, 5.0 + 13 * time)
