"""The ``race`` search: the fastest tactic of one profile from as few launches as the noise allows.

Pure search: what is timed, and how, belongs to the callable that it is given. See docs/search.md for where the time of
an exhaustive search goes and for the measurements behind the numbers of ``Rules``.

1. Look: one launch of every tactic. Only those near the best go on; the average tactic takes twice as long. The default
   gets a second look before it falls.
2. Narrow: a few launches of the rest, one by one in turn (a second look where kernels are short).
3. Final: bursts over a whole ``cycle`` of the op's inputs, in rounds, forwards and backwards in turn so that a drifting
   clock meets all alike. Within a round only ratios count. Only those whose place still matters go on: the best, the
   one that would be chosen, and those before it in order that may yet count as equal to the best.
4. Ties: a tactic within ``Rules.tie`` of the best counts as equal to it, and of equals the first in order wins. That is
   the default tactic, so it keeps its place unless it is beaten by more than the noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

_HELD_UP = 0.015  # the passes of a round show alike how a tactic stands to the others, unless something held it up


class Stopwatch(Protocol):
    """Time bursts in the given order, each of ``launches`` launches of one tactic back to back.

    ``warm`` untimed launches of the same tactic come right before each burst, and a pause of at least ``rest_ms``
    before the first. Gives milliseconds per launch for each burst, or the error that the tactic raised in its place.
    """

    def __call__(
        self, bursts: Sequence[Any], launches: int, *, warm: int = 0, rest_ms: float = 0.0
    ) -> Sequence[float | Exception]: ...


@dataclass(frozen=True)
class Rules:
    """Limits of the search. Ratios are relative to the best tactic; times in milliseconds per launch.

    ``short_ms`` parts short kernels from long ones. Where kernels are short, the gap between two events and what ran
    before weigh as much as the tactic, and few tokens make the inputs of a cycle differ: looks are wider and repeated,
    bursts have a warm launch, span whole cycles and last at least ``burst_ms``. Where they are long a burst is
    ``slice_launches`` of the cycle, the tactics take turns within it, and ``rest`` of the busy time is a pause that
    keeps the GPU off its power limit. From ``large_ms`` on the clock falls within a look, so that it is wider too. Ops
    without a cycle have bursts of ``burst_ms``, from ``least_launches`` to ``most_launches``, below ``large_ms``.

    A default that is slower than ``default_ratio`` at first is not looked at again. ``tie`` is how far behind the best
    a tactic still counts as equal to it. The final goes on until every tactic that could yet be chosen is clear of that
    edge by ``clear`` standard deviations, for at most ``most_rounds`` and ``final_ms`` of kernels; ``noise`` is the
    standard deviation of the ratio of a round of ``noise_ms`` and more before it is known, shorter ones having more.
    """

    short_ms: float = 0.175
    large_ms: float = 0.45
    look_ratio: float = 1.08
    short_look_ratio: float = 1.22
    large_look_ratio: float = 1.12
    second_look_launches: int = 4
    second_look_ratio: float = 1.1
    default_ratio: float = 3.0
    narrow_ratio: float = 1.03
    slice_launches: int = 4
    burst_ms: float = 0.3
    least_launches: int = 3
    most_launches: int = 32
    rest: float = 0.25
    tie: float = 0.006
    noise: float = 0.0025
    noise_ms: float = 1.0
    clear: float = 2.0
    most_rounds: int = 14
    final_ms: float = 60.0


@dataclass(frozen=True)
class RaceResult:
    """Outcome of one race.

    ``winner`` is None where no tactic ran. ``times`` has every tactic that ran, in milliseconds per launch: finalists
    by their ratios, the others as last seen. ``tied`` are the tactics that could not be told from the best, the winner
    first; ``spread`` is the standard deviation of one final round as a ratio; ``margin`` how far the best finalist
    outside the tie is behind (both None where there was no final, or no such finalist). ``launches`` and ``busy_ms``
    are what was timed.
    """

    winner: Any | None
    times: Mapping[Any, float]
    errors: Mapping[Any, Exception]
    tied: tuple[Any, ...]
    spread: float | None
    margin: float | None
    launches: int
    busy_ms: float
    rounds: int


@dataclass(frozen=True)
class _Shape:
    """How a round is made: ``repeats`` bursts of ``launches`` after ``warm`` untimed ones, for every tactic."""

    launches: int
    repeats: int = 1
    warm: int = 0

    def noise(self, launch_ms: float, rules: Rules) -> float:
        """Standard deviation of such a round's ratio before it is known."""
        return rules.noise * math.sqrt(max(1.0, rules.noise_ms / (self.launches * self.repeats * launch_ms)))


@dataclass
class _Field:
    """The tactics still racing, in order, and what is known of all."""

    stopwatch: Stopwatch
    racing: list[Any]
    times: dict[Any, float] = field(default_factory=dict)
    errors: dict[Any, Exception] = field(default_factory=dict)
    launches: int = 0
    busy_ms: float = 0.0

    def round(self, shape: _Shape, *, backwards: bool = False, rest_ms: float = 0.0) -> dict[Any, float]:
        """Time every tactic, in ``shape.repeats`` passes: milliseconds per launch. One that fails leaves the race."""
        order = self.racing[::-1] if backwards else list(self.racing)
        bursts = interleaved(order, shape.repeats)
        outcomes = self.stopwatch(bursts, shape.launches, warm=shape.warm, rest_ms=rest_ms)
        passes: list[dict[Any, float]] = [{} for _ in range(shape.repeats)]
        for number, (tactic, outcome) in enumerate(zip(bursts, outcomes, strict=True)):
            self.launches += shape.launches + shape.warm
            if not isinstance(outcome, Exception) and not 0 < outcome < math.inf:
                outcome = RuntimeError(f"it was timed at {outcome} ms")
            if isinstance(outcome, Exception):
                self.errors[tactic] = outcome
                self.times.pop(tactic, None)
            else:
                passes[number // len(order)][tactic] = outcome
                self.busy_ms += (shape.launches + shape.warm) * outcome
        self.racing = [tactic for tactic in self.racing if tactic not in self.errors]
        return _settled(passes, self.racing)

    def keep_within(self, ratio: float) -> None:
        """Let those go that are slower than ``ratio`` times the best."""
        best = min((self.times[tactic] for tactic in self.racing), default=0.0)
        self.racing = [tactic for tactic in self.racing if self.times[tactic] <= best * ratio]

    @property
    def best_ms(self) -> float:
        return min(self.times[tactic] for tactic in self.racing)


def race(tactics: Sequence[Any], stopwatch: Stopwatch, *, cycle: int = 1, rules: Rules = Rules()) -> RaceResult:
    """Race ``tactics``, given in the order in which ties go, the default first; they must be hashable.

    ``cycle``: launches after which the op's profiler has shown every one of its inputs (MoE: 16 routings).
    """
    racers = _Field(stopwatch, list(tactics))
    _look(racers, cycle, rules)
    if racers.racing:
        _look_again(racers, tactics[0], cycle, rules)
        if _in_turn(racers, cycle, rules):
            _narrow(racers, cycle, rules)
    if not racers.racing:
        return _result(racers, {}, [], rules, rules.noise)
    rest = rules.rest if racers.best_ms >= rules.short_ms else 0.0
    return _final(racers, _burst(racers, cycle, rules), rules, rest)


def _final(racers: _Field, shape: _Shape, rules: Rules, rest: float) -> RaceResult:
    """Rounds over those that could yet be chosen, until each is clear of the tie's edge or the budget ends."""
    finalists = list(racers.racing)
    rounds: list[dict[Any, float]] = []
    scores: dict[Any, float] = dict.fromkeys(finalists[:1], 0.0)
    before, prior = racers.busy_ms, shape.noise(racers.best_ms, rules)
    while len(racers.racing) > 1 and len(rounds) < rules.most_rounds and racers.busy_ms < before + rules.final_ms:
        rest_ms = rest * sum(racers.times[tactic] for tactic in racers.racing) * shape.launches * shape.repeats
        rounds.append(racers.round(shape, backwards=len(rounds) % 2 == 1, rest_ms=rest_ms))
        finalists = [tactic for tactic in finalists if tactic not in racers.errors]
        if not racers.racing:  # those that were still racing failed; of the others the best is left
            known = {tactic: score for tactic, score in scores.items() if tactic not in racers.errors}
            scores = {tactic: score - min(known.values()) for tactic, score in known.items()}
            break
        scores = _scores(rounds, racers.racing, finalists, prior)
        noise = _spread(rounds, racers.racing, prior) * math.sqrt(2 / len(rounds))
        best, chosen = min(racers.racing, key=lambda tactic: scores[tactic]), _tied(scores, rules)[0]
        earlier = finalists[: finalists.index(chosen)]
        hopeful = [t for t in racers.racing if t in earlier and scores[t] <= rules.tie + 3 * noise]
        racers.racing = [t for t in racers.racing if t in (best, chosen) or t in hopeful]
        if all(abs(scores[t] - rules.tie) > rules.clear * noise for t in (*hopeful, chosen)):
            break
    _record(racers, rounds, scores)
    return _result(racers, scores, rounds, rules, prior)


def _result(
    racers: _Field, scores: Mapping[Any, float], rounds: Sequence[Mapping[Any, float]], rules: Rules, noise: float
) -> RaceResult:
    tied = _tied(scores, rules)
    behind = [score for tactic, score in scores.items() if tactic not in tied]
    fallback = min(racers.times, key=lambda tactic: racers.times[tactic], default=None)  # every finalist failed
    return RaceResult(
        winner=tied[0] if tied else fallback,
        times=racers.times,
        errors=racers.errors,
        tied=tied,
        spread=_spread(rounds, racers.racing, noise) if rounds and racers.racing else None,
        margin=min(behind) if behind else None,
        launches=racers.launches,
        busy_ms=racers.busy_ms,
        rounds=len(rounds),
    )


def interleaved(order: Sequence[Any], repeats: int) -> list[Any]:
    """``repeats`` passes over ``order``, turned by one place as often as it takes to meet every input alike.

    An op that steps through a cycle of inputs with each launch would otherwise show a tactic only some of them: of two
    tactics in turn, one would meet the even inputs and the other the odd ones.
    """
    turn = math.gcd(len(order), repeats)
    passes_each = repeats // turn
    return [
        order[(place + number // passes_each) % len(order)] for number in range(repeats) for place in range(len(order))
    ]


def _settled(passes: Sequence[Mapping[Any, float]], racing: Sequence[Any]) -> dict[Any, float]:
    """One time for each tactic: in each pass only its ratio to the others counts, as the clock may fall between two."""
    if not racing:
        return {}
    levels = [statistics.median(measured[tactic] for tactic in racing) for measured in passes]
    level = statistics.median(levels)
    return {
        tactic: level * _middle([one[tactic] / at for one, at in zip(passes, levels, strict=True)], _HELD_UP)
        for tactic in racing
    }


def _look(racers: _Field, cycle: int, rules: Rules) -> None:
    """First look at all, and a second one where the kernels are too short for single launches."""
    racers.times.update(racers.round(_Shape(1, warm=_warm(cycle))))
    if not racers.racing or racers.best_ms >= rules.short_ms:
        large = bool(racers.racing) and racers.best_ms >= rules.large_ms
        racers.keep_within(rules.large_look_ratio if large else rules.look_ratio)
        return
    racers.keep_within(rules.short_look_ratio)
    racers.times.update(racers.round(_Shape(rules.second_look_launches, warm=1)))
    racers.keep_within(rules.second_look_ratio)


def _look_again(racers: _Field, default: Any, cycle: int, rules: Rules) -> None:
    """A second look at a default tactic that fell at the first: what others gain is counted from its time.

    The lesser of both counts, as a launch that something held up is only ever too long. One that is slower than that
    is slow, whatever held it up.
    """
    others, first, best = racers.racing, racers.times.get(default, math.inf), racers.best_ms
    if default in others or first > rules.default_ratio * best:
        return
    launches = rules.second_look_launches if best < rules.short_ms else 1
    racers.racing = [default]
    again = racers.round(_Shape(launches, warm=_warm(cycle)))
    racers.racing = others
    if default in again:
        racers.times[default] = min(first, again[default])
        if racers.times[default] <= best * rules.look_ratio:
            racers.racing.insert(0, default)


def _warm(cycle: int) -> int:
    """Launches before a single one: without a cycle the inputs may fit into L2, so that it matters what ran before."""
    return 1 if cycle == 1 else 0


def _in_turn(racers: _Field, cycle: int, rules: Rules) -> bool:
    """Whether kernels are so long that the clock falls within a round, and the tactics take turns launch by launch."""
    return racers.best_ms >= (rules.short_ms if cycle > 1 else rules.large_ms)


def _narrow(racers: _Field, cycle: int, rules: Rules) -> None:
    """A few launches of each that is left."""
    racers.times.update(racers.round(_Shape(1, repeats=rules.slice_launches, warm=_warm(cycle))))
    racers.keep_within(rules.narrow_ratio)


def _burst(racers: _Field, cycle: int, rules: Rules) -> _Shape:
    """A final round: a whole cycle in slices, or single launches, where tactics take turns. Else one burst of whole
    cycles, or of ``burst_ms``."""
    best = racers.best_ms
    if _in_turn(racers, cycle, rules):
        repeats = max(1, cycle // rules.slice_launches) if cycle > 1 else rules.slice_launches
        return _Shape(max(1, cycle // repeats), repeats, warm=_warm(cycle))
    if cycle > 1:
        return _Shape(cycle * math.ceil(rules.burst_ms / (cycle * best)), warm=1)
    return _Shape(min(max(math.ceil(rules.burst_ms / best), rules.least_launches), rules.most_launches), warm=1)


def _scores(
    rounds: Sequence[Mapping[Any, float]], racing: Sequence[Any], finalists: Sequence[Any], noise: float
) -> dict[Any, float]:
    """How far each finalist is behind the best, as a log ratio: the middle of the rounds that it took part in.

    Within a round each is set against those still racing, who took part in all: what the clock did to all is gone.
    """
    ratios: dict[Any, list[float]] = {tactic: [] for tactic in finalists}
    for measured in rounds:
        level = math.exp(statistics.fmean(math.log(measured[tactic]) for tactic in racing))
        for tactic in finalists:
            if tactic in measured:
                ratios[tactic].append(measured[tactic] / level)
    middle = {tactic: math.log(_middle(values, 3 * noise)) for tactic, values in ratios.items()}
    best = min(middle[tactic] for tactic in racing)
    return {tactic: max(0.0, value - best) for tactic, value in middle.items()}


def _middle(values: Sequence[float], reach: float) -> float:
    """Mean of values brought to within a ratio of ``1 + reach`` of their median: what was held up counts little."""
    median = statistics.median(values)
    return statistics.fmean(min(max(value, median / (1 + reach)), median * (1 + reach)) for value in values)


def _spread(rounds: Sequence[Mapping[Any, float]], racing: Sequence[Any], noise: float) -> float:
    """Standard deviation of one round's ratio, pooled over those racing; ``noise`` weighs as four samples."""
    means = [statistics.fmean(math.log(measured[tactic]) for tactic in racing) for measured in rounds]
    squares = 4 * noise**2
    for tactic in racing:
        ratios = [math.log(measured[tactic]) - mean for measured, mean in zip(rounds, means, strict=True)]
        middle = statistics.fmean(ratios)
        squares += sum((ratio - middle) ** 2 for ratio in ratios)
    return math.sqrt(squares / (4 + (len(rounds) - 1) * (len(racing) - 1)))


def _tied(scores: Mapping[Any, float], rules: Rules) -> tuple[Any, ...]:
    """The finalists that count as equal to the best, in the order of the race."""
    return tuple(tactic for tactic, score in scores.items() if score <= rules.tie)


def _record(racers: _Field, rounds: Sequence[Mapping[Any, float]], scores: Mapping[Any, float]) -> None:
    """Times of the finalists that keep their ratios: the best one's median, the others by their distance to it."""
    if not rounds or not scores:
        return
    leader = min(scores, key=lambda tactic: scores[tactic])
    best = statistics.median(measured[leader] for measured in rounds if leader in measured)
    racers.times.update({tactic: best * math.exp(score) for tactic, score in scores.items()})
