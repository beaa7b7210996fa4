"""What a cache gains: whole ops under FlashInfer's defaults, stock's picks and ours, by size and over a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autotune_planner.engines.resolved import OpUse, Resolved
from autotune_planner.ops.base import OpCall
from autotune_planner.plan.buckets import reachable_buckets
from autotune_planner.plan.plan import Phase, Plan
from autotune_planner.plan.prefill_batches import batch_tokens
from autotune_planner.plan.worth import decode_weights, prefill_weights
from autotune_planner.proof.fresh import process_log
from autotune_planner.proof.medians import Interval, Verdict, median_interval, ratio_interval, verdict, weighted_sums
from autotune_planner.proof.sessions import call_at, reached
from autotune_planner.proof.whole_op import L2, L2_STATES, Machine, Timed, Variant, time_ops
from autotune_planner.tuning.devices import DeviceKind

FALLBACK, CONTROL, STOCK, OURS = "fallback", "control", "stock", "ours"
"""Variants. The control is the fallback once more: how much it differs from itself is the noise of a measurement."""

Baseline = Literal["fallback", "stock"]


@dataclass(frozen=True)
class Gain:
    """How many times faster ours is than ``over``."""

    over: Baseline
    ratio: Interval
    verdict: Verdict


@dataclass(frozen=True)
class SizeResult:
    """One op at M = m tokens in one L2 state: microseconds by variant, and (custom op, tactic) by variant."""

    layers: tuple[str, ...]
    call: OpCall
    m: int
    l2: L2
    times: Mapping[str, Interval]
    gains: tuple[Gain, ...]
    tactics: Mapping[str, tuple[tuple[str, Any], ...]]


@dataclass(frozen=True)
class PassResult:
    """The tuned ops of one decoder layer in one pass, weighted by how often production meets each size."""

    phase: Phase
    l2: L2
    times: Mapping[str, Interval]
    gains: tuple[Gain, ...]


@dataclass(frozen=True)
class PassLeftOut:
    """A pass of which only ``measured`` of the ``planned`` sizes that production meets were measured: what it gains is
    not known, since the others would be weighed with times that are not theirs."""

    phase: Phase
    measured: int
    planned: int


@dataclass(frozen=True)
class Bench:
    """``path`` is the file that was measured, ``against`` stock's, None where there was none."""

    device: DeviceKind
    path: str
    against: str | None
    machine: Machine
    sizes: tuple[SizeResult, ...]
    passes: tuple[PassResult, ...]
    passes_left_out: tuple[PassLeftOut, ...] = ()


def bench(
    plan: Plan,
    path: str,
    *,
    against: str | None,
    sizes: Sequence[int] | None,
    device: DeviceKind,
    said: Callable[[str], None],
) -> Bench:
    """Measure the cache file ``path``, and stock's if there is one, at production's sizes or at ``sizes`` (tokens).

    Sizes above what an op reaches are left out for it, and passes of which a size is missing. ``CacheFileError`` for a
    file that FlashInfer does not load.
    """
    variants = [Variant(FALLBACK, None), Variant(CONTROL, None), Variant(OURS, path)]
    if against is not None:
        variants.append(Variant(STOCK, against))
    resolved = plan.resolved
    planned = {use.call: measured_sizes(use, None) for use in resolved.ops}
    wanted = planned if sizes is None else {use.call: measured_sizes(use, sizes) for use in resolved.ops}
    by_bound: dict[int | None, list[tuple[OpCall, int]]] = {}
    for call, chosen in wanted.items():
        for m in chosen:
            made = call_at(resolved, call, m)
            by_bound.setdefault(made.tune_max, []).append((made, m))
    timed: dict[tuple[OpCall, int], Timed] = {}
    machine = Machine({}, None)
    with process_log("bench") as log:
        said(f"Measuring {sum(map(len, wanted.values()))} sizes of {len(wanted)} ops; log: {log}")
        for group in by_bound.values():  # a process keeps the first bound that it meets
            found, machine = time_ops(group, variants, device=device, gpu=resolved.gpu, log_path=log)
            timed.update({(one.call, one.m): one for one in found})
    at = {(call, m): timed[call_at(resolved, call, m), m] for call, chosen in wanted.items() for m in chosen}
    terms = _weighed(resolved, planned)
    left_out = tuple(_left_out(terms, wanted))
    skipped = {each.phase for each in left_out}
    return Bench(
        device=device,
        path=path,
        against=against,
        machine=machine,
        sizes=tuple(_by_size(resolved, at)),
        passes=tuple(_by_pass({phase: terms[phase] for phase in terms if phase not in skipped}, at)),
        passes_left_out=left_out,
    )


def measured_sizes(use: OpUse, sizes: Sequence[int] | None) -> tuple[int, ...]:
    """Sizes of one op, ascending: those asked for that it reaches, else each bucket that production reaches (its top
    clipped to the largest M) and the largest M of each phase."""
    largest = reached(use)
    if sizes is not None:
        return tuple(sorted({m for m in sizes if m <= largest}))
    limits = [rows for rows in (use.decode_rows, use.prefill_rows) if rows]
    buckets = {bucket for rows in limits for bucket in reachable_buckets(rows, use.call.tune_max)}
    return tuple(sorted({min(m, max(limits)) for m in (*buckets, *limits)}))


def weights_at(weights: Mapping[int, float], sizes: Sequence[int]) -> dict[int, float]:
    """The weight of each bucket given to a size that was measured: the next one above it, or else the largest."""
    found = dict.fromkeys(sizes, 0.0)
    for bucket, weight in weights.items():
        found[next((m for m in sizes if m >= bucket), sizes[-1])] += weight
    return found


def _by_size(resolved: Resolved, timed: Mapping[tuple[OpCall, int], Timed]) -> Iterator[SizeResult]:
    for (call, m), one in timed.items():
        layers = tuple(use.layer for use in resolved.ops if use.call == call)
        for state in L2_STATES:
            samples = one.samples[state]
            yield SizeResult(layers, call, m, state, _intervals(samples), _gains(samples), one.tactics)


_Term = tuple[float, OpCall, int]
"""A weight, and what is weighed: a call with M = m tokens."""


def _weighed(resolved: Resolved, planned: Mapping[OpCall, Sequence[int]]) -> dict[Phase, list[_Term]]:
    """What production makes of each pass; a pass without a tuned op is left out."""
    batches = batch_tokens(resolved)
    found: dict[Phase, list[_Term]] = {"decode": [], "extend": []}
    for phase, terms in found.items():
        for use in resolved.ops:
            weights = decode_weights(use) if phase == "decode" else prefill_weights(use, resolved, batches)
            if weights and planned[use.call]:
                placed = weights_at(weights, planned[use.call])
                terms += [(weight, use.call, m) for m, weight in placed.items() if weight]
    return {phase: terms for phase, terms in found.items() if terms}


def _left_out(terms: Mapping[Phase, Sequence[_Term]], wanted: Mapping[OpCall, Sequence[int]]) -> Iterator[PassLeftOut]:
    for phase, weighed in terms.items():
        sizes = {(call, m) for _, call, m in weighed}
        measured = sum(m in wanted[call] for call, m in sizes)
        if measured < len(sizes):
            yield PassLeftOut(phase, measured, len(sizes))


def _by_pass(terms: Mapping[Phase, Sequence[_Term]], timed: Mapping[tuple[OpCall, int], Timed]) -> Iterator[PassResult]:
    for phase, weighed in terms.items():
        measured = [(weight, timed[call, m]) for weight, call, m in weighed]
        for state in L2_STATES:
            names = measured[0][1].samples[state]
            samples = {name: weighted_sums([(w, one.samples[state][name]) for w, one in measured]) for name in names}
            yield PassResult(phase, state, _intervals(samples), _gains(samples))


def _intervals(samples: Mapping[str, Sequence[float]]) -> dict[str, Interval]:
    return {name: median_interval(values) for name, values in samples.items() if name != CONTROL}


def _gains(samples: Mapping[str, Sequence[float]]) -> tuple[Gain, ...]:
    control = ratio_interval(samples[FALLBACK], samples[CONTROL])
    baselines: tuple[Baseline, ...] = ("fallback", "stock")
    ratios = [(name, ratio_interval(samples[name], samples[OURS])) for name in baselines if name in samples]
    return tuple(Gain(name, ratio, verdict(ratio, control)) for name, ratio in ratios)
