"""Which sizes the entries of a cache serve: every M from 1 to the largest reachable -> bucket -> key -> state.

A key counts as a whole: an entry that differs in any dimension or extra serves nothing. Source: FlashInfer 0.7.2,
``autotuner/autotuner.py``: ``AutoTuner.search_cache`` for lookups, ``_default_profiling_policy`` for entries without a
policy, ``load_configs`` for entries that it drops.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from autotune_planner.cache.keys import CacheKey, parse_key
from autotune_planner.cache.v1 import Entry
from autotune_planner.errors import CacheFileError
from autotune_planner.plan.buckets import bucket_of
from autotune_planner.plan.plan import Plan, WorkUnit

if TYPE_CHECKING:
    from autotune_planner.tuning.keys import PlannedKey

State = Literal["tuned", "clamped", "at_start", "fallback"]
STATES: tuple[State, ...] = ("tuned", "clamped", "at_start", "fallback")
SERVED = ("tuned", "clamped")

_SHOWN_DIFFERENCES = 3


@dataclass(frozen=True)
class Demand:
    """Sizes M = 1..``largest`` (tokens) that one op and layer meets in one pass, and the key of each bucket.

    ``bucket_of`` may round up or down; it never decreases below ``bound``. ``bound`` is the largest M that has a bucket
    of its own: above it the op serves the bound's entry. None: no bound.
    """

    custom_op: str
    layer: str
    shape: str
    phase: str
    largest: int
    bound: int | None
    bucket_of: Callable[[int], int]
    keys: Mapping[int, PlannedKey]


@dataclass(frozen=True)
class Span:
    """M from ``first`` to ``last`` (tokens), all looked up under one bucket. ``reason`` is empty where it is served."""

    first: int
    last: int
    bucket: int
    state: State
    reason: str


@dataclass(frozen=True)
class Coverage:
    """What serves one op and layer in one pass: spans from M = 1 to ``demand.largest`` without holes."""

    demand: Demand
    spans: tuple[Span, ...]

    def gaps(self) -> tuple[Span, ...]:
        """Sizes that no loaded entry serves: neighbours of one state and reason as one; ``bucket`` is the last."""
        found = []
        for (state, _), spans in groupby(self.spans, key=lambda span: (span.state, span.reason)):
            members = list(spans)
            if state not in SERVED:
                found.append(replace(members[-1], first=members[0].first))
        return tuple(found)

    def sizes(self) -> dict[State, int]:
        """How many M are in each state."""
        counts = dict.fromkeys(STATES, 0)
        for span in self.spans:
            counts[span.state] += span.last - span.first + 1
        return counts

    def state_of(self, m: int) -> State:
        """State of one M. One above ``largest`` is served where its bucket's entry is."""
        demand = self.demand
        if m > demand.largest:
            above = m if demand.bound is None else min(m, demand.bound + 1)
            bucket = demand.bucket_of(above)
            spans = (span for span in reversed(self.spans) if span.bucket == bucket)
            known: State = next((span.state for span in spans), "fallback")
            clamped = demand.bound is not None and m > demand.bound
            return "clamped" if known == "tuned" and clamped else known
        return self.spans[bisect_right(self.spans, m, key=lambda span: span.first) - 1].state


def demands_of(plan: Plan, keys: Mapping[WorkUnit, tuple[PlannedKey, ...]]) -> tuple[Demand, ...]:
    """The demands of a plan: one for each custom op, layer and pass. All ops that are planned round up."""
    found = []
    for op in plan.ops:
        units = {bucket: keys.get(WorkUnit(op.custom_op, op.call, bucket), ()) for bucket in op.buckets}
        bound = op.call.tune_max
        found.append(
            Demand(
                custom_op=op.custom_op,
                layer=op.layer,
                shape=op.call.label,
                phase=op.phase,
                largest=op.covers,
                bound=bound,
                bucket_of=partial(bucket_of, tune_max=bound),
                keys={bucket: of_unit[0] for bucket, of_unit in units.items() if of_unit},
            )
        )
    return tuple(found)


def loaded(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Entries by key text, as ``load_configs`` keeps them: cuDNN plan indices of old releases are dropped."""
    return {entry.text: entry for entry in entries if not is_dropped(entry)}


def is_dropped(entry: Entry) -> bool:
    return entry.runner.startswith("Cudnn") and isinstance(entry.tactic, int) and entry.tactic >= 0


def cover(demands: Iterable[Demand], entries: Mapping[str, Entry]) -> tuple[Coverage, ...]:
    """What ``entries``, as FlashInfer has loaded them, serve of each demand."""
    wanted = tuple(demands)
    asked = {key.key for demand in wanted for key in demand.keys.values()}
    near = NearMisses(entries, asked)
    return tuple(Coverage(demand, tuple(_spans(demand, entries, near))) for demand in wanted)


def _spans(demand: Demand, entries: Mapping[str, Entry], near: NearMisses) -> Iterator[Span]:
    spans: list[Span] = []
    for first, last, bucket in _bucket_ranges(demand):
        state, reason = _judge(demand, bucket, entries, near)
        if state == "tuned" and demand.bound is not None and first > demand.bound:
            state = "clamped"
        before = spans[-1] if spans else None
        if before and (before.bucket, before.state) == (bucket, state):
            spans[-1] = replace(before, last=last)
        else:
            spans.append(Span(first, last, bucket, state, reason))
    yield from spans


def _bucket_ranges(demand: Demand) -> Iterator[tuple[int, int, int]]:
    """(first, last, bucket): sizes of one bucket. The bound is a range of its own, since a mapper may drop there:
    with a bound of 100, M = 99 has bucket 128 and M = 100 has bucket 100."""
    bound = demand.largest if demand.bound is None else demand.bound
    for low, high in ((1, bound - 1), (bound, bound), (bound + 1, demand.largest)):
        first, high = low, min(high, demand.largest)
        while first <= high:
            bucket = demand.bucket_of(first)
            last = first + bisect_right(range(first, high + 1), bucket, key=demand.bucket_of) - 1
            yield first, last, bucket
            first = last + 1


def _judge(demand: Demand, bucket: int, entries: Mapping[str, Entry], near: NearMisses) -> tuple[State, str]:
    key = demand.keys.get(bucket)
    if key is None:
        return "fallback", "the key of this bucket is not known"
    entry = entries.get(key.key)
    missing: State = "at_start" if key.tuned_by_server else "fallback"
    if entry is None:
        return missing, near.reason(key.key)
    runner = _runner_mismatch(entry)
    if runner:
        return missing, runner
    policy = _policy_mismatch(entry, key.policy) if key.tuned_by_server else ""
    return ("at_start", policy) if policy else ("tuned", "")


def why_missed(key: str, policy: tuple[Any, ...], entries: Mapping[str, Entry], near: NearMisses) -> str:
    """Why a lookup of ``key`` misses while the server tunes, when ``policy`` is asked for too."""
    entry = entries.get(key)
    if entry is None:
        return near.reason(key)
    return _runner_mismatch(entry) or _policy_mismatch(entry, policy) or "the op's runner refuses its tactic"


def _runner_mismatch(entry: Entry) -> str:
    runner = parse_key(entry.text).runner
    return "" if entry.runner == runner else f"its entry names runner {entry.runner}, the key {runner}"


def _policy_mismatch(entry: Entry, asked: tuple[Any, ...]) -> str:
    found = policy_of(entry, asked)
    if found == tuple(asked):
        return ""
    measured = "has no policy, which counts as" if entry.policy is None else "was measured with"
    return f"its entry {measured} {_policy_text(found)}; the server asks for {_policy_text(asked)}"


def policy_of(entry: Entry, asked: tuple[Any, ...]) -> tuple[Any, ...]:
    """How an entry was measured. One without a policy counts as hot L2, with one graph replay where the op uses graphs.

    FlashInfer compares policies only while it tunes: a key that the server's passes do not reach needs none.
    """
    if entry.policy is not None:
        return entry.policy
    return "cuda_graph_profile_replays", None if asked[1] is None else 1, "l2_cache_policy", "hot"


def _policy_text(policy: tuple[Any, ...]) -> str:
    return " ".join(map(str, policy[1::2])).replace("None", "no-graph")


class NearMisses:
    """Says how the entries of a cache differ from a key that is not among them. Keys are parsed only if one is missing.

    ``asked`` are keys that the deployment does ask for: they belong to other layers and are no near misses.
    """

    def __init__(self, entries: Mapping[str, Entry], asked: Collection[str]) -> None:
        self._entries = entries
        self._asked = asked
        self._by_op: dict[str, dict[int, list[CacheKey]]] | None = None

    def reason(self, text: str) -> str:
        if not self._entries:
            return "nothing is loaded"
        key = parse_key(text)
        if self._by_op is None:
            self._by_op = self._index()
        buckets = self._by_op.get(key.custom_op)
        if buckets is None:
            return "no entry of this op"
        nearest = min((differences(key, other) for other in buckets.get(key.bucket, ())), key=len, default=None)
        if nearest is None:
            return "no entry of this bucket"
        shown = "; ".join(nearest[:_SHOWN_DIFFERENCES])
        return f"the entry of this bucket has other dimensions: {shown}" + (
            f" and {len(nearest) - _SHOWN_DIFFERENCES} more" if len(nearest) > _SHOWN_DIFFERENCES else ""
        )

    def _index(self) -> dict[str, dict[int, list[CacheKey]]]:
        index: dict[str, dict[int, list[CacheKey]]] = defaultdict(lambda: defaultdict(list))
        for text, entry in self._entries.items():
            try:
                key = entry.key
            except CacheFileError:
                continue
            buckets = index[key.custom_op]
            if text not in self._asked:
                buckets[key.bucket].append(key)
        return index


def differences(asked: CacheKey, found: CacheKey) -> list[str]:
    """How a key differs from the one that is asked for, field by field."""
    texts = []
    if found.runner != asked.runner:
        texts.append(f"runner {found.runner}, asked for {asked.runner}")
    if len(found.profile) != len(asked.profile):
        texts.append(f"{len(found.profile)} inputs, asked for {len(asked.profile)}")
    else:
        pairs = zip(found.profile, asked.profile, strict=True)
        texts += [f"input {i} is {a}, asked for {b}" for i, (a, b) in enumerate(pairs) if a != b]
    if found.extras is None:
        texts.append("a key of 3 elements, the form of before FlashInfer 0.6.13")
    elif len(found.extras) != len(asked.extras or ()):
        texts.append(f"{len(found.extras)} extras, asked for {len(asked.extras or ())}")
    else:
        values = zip(found.extras, asked.extras or (), strict=True)
        texts += [f"extra {i} is {a!r}, asked for {b!r}" for i, (a, b) in enumerate(values) if repr(a) != repr(b)]
    return texts
