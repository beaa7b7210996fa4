"""Intervals of medians and what counts as a gain. Expected coverages are sums of binomial coefficients, by hand."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.proof.medians import Interval, median_interval, ratio_interval, verdict, weighted_sums

times = st.floats(min_value=0.1, max_value=1e6)


@pytest.mark.parametrize(
    ("size", "rank"),
    [
        # The k-th smallest and largest of n miss the median with probability 2 (C(n,0) + .. + C(n,k-1)) / 2^n.
        (6, 1),  # 2 x 1 / 64 = 0.031; with k = 2: 2 x 7 / 64 = 0.219
        (8, 1),  # k = 2: 2 x 9 / 256 = 0.070
        (9, 2),  # 2 x 10 / 512 = 0.039; k = 3: 2 x 46 / 512 = 0.180
        (10, 2),  # 2 x 11 / 1024 = 0.021; k = 3: 2 x 56 / 1024 = 0.109
        (12, 3),  # 2 x 79 / 4096 = 0.039; k = 4: 2 x 299 / 4096 = 0.146
        (20, 6),  # 2 x 21700 / 1048576 = 0.041; k = 7: 2 x 60460 / 1048576 = 0.115
    ],
)
def test_ranks_of_the_interval(size, rank):
    samples = list(range(1, size + 1))
    random.Random(size).shuffle(samples)
    assert median_interval(samples) == Interval((size + 1) / 2, rank, size + 1 - rank)


@pytest.mark.parametrize("size", range(6))
def test_too_few_samples(size):
    # Of 5, even the whole range misses the median with probability 2 / 32 = 0.0625.
    with pytest.raises(ValueError, match="too few"):
        median_interval([1.0] * size)


@given(st.lists(times, min_size=6, max_size=60))
def test_the_median_lies_inside(samples):
    found = median_interval(samples)
    assert found.low <= found.median <= found.high
    assert found.median == statistics.median(samples)
    assert {found.low, found.high} <= set(samples)


@given(st.lists(times, min_size=6, max_size=40), st.integers(0, 2**32))
def test_order_does_not_matter(samples, seed):
    shuffled = list(samples)
    random.Random(seed).shuffle(shuffled)
    assert median_interval(shuffled) == median_interval(samples)


def test_the_interval_covers_the_median_as_often_as_it_says():
    # Of 2000 intervals of 31 samples at least 95 % hold the true median, here 0; three standard deviations below is
    # 0.95 - 3 sqrt(0.95 x 0.05 / 2000) = 0.935.
    draw = random.Random(7)
    covering = 0
    for _ in range(2000):
        found = median_interval([draw.gauss(0, 1) ** 3 for _ in range(31)])
        covering += found.low <= 0 <= found.high
    assert covering >= 0.935 * 2000


def test_what_disturbs_both_of_a_pair_cancels():
    # A clock that halves in the middle: every pair still has the ratio 2.
    slow = [20.0] * 5 + [40.0] * 5
    assert ratio_interval(slow, [value / 2 for value in slow]) == Interval(2.0, 2.0, 2.0)


STILL = Interval(1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("gain", "control", "word"),
    [
        (Interval(1.50, 1.49, 1.51), STILL, "faster"),
        (Interval(1.01, 0.99, 1.03), STILL, "no measurable gain"),  # 1 lies inside
        (Interval(0.90, 0.89, 0.91), STILL, "slower"),
        # The same tactics measured twice differ by up to 2 %: less than that is no gain, and no loss.
        (Interval(1.015, 1.012, 1.018), Interval(1.01, 1.0, 1.02), "no measurable gain"),
        (Interval(1.03, 1.021, 1.04), Interval(1.01, 1.0, 1.02), "faster"),
        (Interval(0.985, 0.982, 0.988), Interval(0.99, 0.98, 1.0), "no measurable gain"),
        (Interval(0.97, 0.96, 0.979), Interval(0.99, 0.98, 1.0), "slower"),
        # A control that is off to one side makes a loss of a gain no easier.
        (Interval(0.97, 0.96, 0.979), Interval(1.01, 1.005, 1.02), "slower"),
    ],
)
def test_a_gain_within_the_noise_is_none(gain, control, word):
    assert verdict(gain, control) == word


def test_weighted_sums_go_sample_by_sample():
    # 0.25 x 4 + 2 x 1 = 3, 0.25 x 8 + 2 x 3 = 8
    assert weighted_sums([(0.25, [4.0, 8.0]), (2.0, [1.0, 3.0])]) == [3.0, 8.0]
