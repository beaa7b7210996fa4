"""Medians with 95 % intervals, and whether a gain stands out of the noise. Pure functions of samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CONFIDENCE = 0.95

Verdict = Literal["faster", "slower", "no measurable gain"]


@dataclass(frozen=True)
class Interval:
    """A median and its confidence interval, in the samples' unit."""

    median: float
    low: float
    high: float


def median_interval(samples: Sequence[float]) -> Interval:
    """The median and its 95 % interval by order statistics: no assumption on how the samples are distributed.

    The k-th smallest and the k-th largest sample of n miss the true median if fewer than k samples fall on one side of
    it: with probability 2 P(Bin(n, 1/2) < k). The largest k that keeps this within 5 % is taken. ``ValueError`` for
    fewer than 6 samples, whose whole range is too narrow.
    """
    ordered, size = sorted(samples), len(samples)
    missed, rank = 0.0, 0
    while (missed := missed + 2 * math.comb(size, rank) / 2**size) <= 1 - CONFIDENCE:
        rank += 1
    if rank == 0:
        raise ValueError(f"{size} samples are too few for a 95 % interval of their median")
    return Interval(statistics.median(ordered), ordered[rank - 1], ordered[size - rank])


def ratio_interval(slow: Sequence[float], fast: Sequence[float]) -> Interval:
    """How many times faster ``fast`` is, from samples taken in pairs: what disturbs both of a pair cancels out."""
    return median_interval([first / second for first, second in zip(slow, fast, strict=True)])


def verdict(gain: Interval, control: Interval) -> Verdict:
    """Whether a ratio of times is a gain. ``control`` is the same ratio of one thing measured twice: what it shows is
    noise, whatever its own interval is."""
    if gain.low > max(1.0, control.high):
        return "faster"
    if gain.high < min(1.0, control.low):
        return "slower"
    return "no measurable gain"


def weighted_sums(terms: Sequence[tuple[float, Sequence[float]]]) -> list[float]:
    """Sample by sample, the sum of (weight, samples); all have equally many samples."""
    columns = zip(*(samples for _, samples in terms), strict=True)
    return [sum(weight * value for (weight, _), value in zip(terms, column, strict=True)) for column in columns]
