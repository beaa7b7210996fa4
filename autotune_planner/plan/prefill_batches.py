"""From a sample of requests to prefill batches of one rank, as the server's scheduler forms them.

Source: SGLang 0.5.23, ``managers/schedule_policy.py:PrefillAdder``. The sample is read as the queue of one rank that
never runs dry: requests in order, until the chunk is full; a prompt longer than what is left is split there, and its
rest opens the next batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from autotune_planner.deployment.traffic import PromptRow
from autotune_planner.engines.resolved import Resolved
from autotune_planner.values import dataclass

Request = tuple[int, int]
"""New tokens of a request and tokens of its cached prefix."""


@dataclass(frozen=True)
class PrefillLimits:
    """What ends a batch: ``chunk`` and ``max_tokens`` in tokens per rank, ``max_requests`` of the rank's pool.

    A ``chunk`` of 0 or less is off. ``granule`` is what a request is charged in and a prompt is split at, in tokens.
    """

    chunk: int
    max_tokens: int
    max_requests: int
    granule: int = 1


@dataclass(frozen=True)
class Batch:
    """New tokens of each request. ``after_prefix``: one of them has a cached prefix. ``times`` such batches follow."""

    extend_lens: tuple[int, ...]
    after_prefix: bool = False
    times: int = 1


def batch_tokens(resolved: Resolved) -> Counter[int]:
    """Batches of the sample by their tokens, as the server's scheduler forms them within one rank's chunk;
    empty without traffic."""
    limits = PrefillLimits(
        chunk=resolved.arguments.chunked_prefill_size,
        max_tokens=resolved.arguments.max_prefill_tokens,
        max_requests=resolved.runtime.max_running_requests_per_dp_worker,
        granule=resolved.extend_attention.chunk_granule,
    )
    counts: Counter[int] = Counter()
    for batch in prefill_batches(_requests(resolved), limits):
        counts[sum(batch.extend_lens)] += batch.times
    return counts


def _requests(resolved: Resolved) -> Iterator[Request]:
    traffic = resolved.traffic
    if traffic.extend_lens is not None:
        yield from ((length, 0) for length in traffic.extend_lens if length > 0)
    elif traffic.rows is not None:
        yield from requests_of(traffic.rows)


def requests_of(rows: Sequence[PromptRow]) -> Iterator[Request]:
    """The requests of a sample. Rows without counts keep their order, which is that of arrival.

    Counts have no order, so copies of each row are spread evenly: copy ``i`` of ``n`` stands at ``(i + 1/2) / n`` of
    the sample. The last token of a prompt is computed even if all of it is cached.
    """
    if all(row.requests == 1 for row in rows):
        return ((max(row.prompt_len - row.cached_len, 1), row.cached_len) for row in rows)
    places = sorted(((2 * copy + 1) / row.requests, at) for at, row in enumerate(rows) for copy in range(row.requests))
    return ((max(rows[at].prompt_len - rows[at].cached_len, 1), rows[at].cached_len) for _, at in places)


def prefill_batches(requests: Iterable[Request], limits: PrefillLimits) -> Iterator[Batch]:
    """Batches in order; equal batches of one long prompt come as one value."""
    whole = limits.chunk // limits.granule * limits.granule or limits.chunk  # of a prompt with a batch of its own
    lens: list[int] = []
    after_prefix = False
    used = 0
    for extend_len, prefix in requests:
        left, cached = extend_len, prefix > 0
        while left > 0:
            if cached and not lens and 0 < whole < left:
                times = (left - 1) // whole
                yield Batch((whole,), True, times)
                left -= times * whole
            part = _part(left, used, limits)
            if part:
                lens.append(part)
                after_prefix = after_prefix or cached
                used += -(-part // limits.granule) * limits.granule
            left -= part
            cached = cached or part > 0
            if left or _is_full(len(lens), used, limits):
                yield Batch(tuple(lens), after_prefix)
                lens, after_prefix, used = [], False, 0
    if lens:
        yield Batch(tuple(lens), after_prefix)


def _part(left: int, used: int, limits: PrefillLimits) -> int:
    """How many of a request's ``left`` tokens enter a batch of ``used`` tokens; an empty batch takes some of any.

    With chunked prefill off a request is not split, and one that would reach ``max_tokens`` waits.
    """
    charged = -(-left // limits.granule) * limits.granule
    if limits.chunk <= 0:
        return left if used == 0 or charged < limits.max_tokens - used else 0
    room = limits.chunk - used
    if charged <= room:
        return left
    return room // limits.granule * limits.granule or (0 if used else min(left, room))


def _is_full(requests: int, used: int, limits: PrefillLimits) -> bool:
    return requests >= limits.max_requests or used >= limits.max_tokens or 0 < limits.chunk <= used
