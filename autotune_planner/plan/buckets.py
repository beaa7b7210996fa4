"""FlashInfer's hybrid token buckets: which sizes are profiled and which one serves M tokens.

Source: FlashInfer 0.7.2, ``fused_moe/utils.py``: ``get_hybrid_num_tokens_buckets``, ``make_hybrid_bucket_mapper``
(capped) and ``map_to_hybrid_bucket_uncapped``. All values are tokens.
"""

from __future__ import annotations

_POWERS_END = 256  # 1, 2, 4 .. 256
_FINE_END, _FINE_STEP = 2048, 256
_COARSE_END, _COARSE_STEP = 4096, 512  # powers of two above


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def next_power_of_two(value: int) -> int:
    """Smallest power of two >= value; 1 for value <= 1."""
    return 1 << max(value - 1, 0).bit_length()


def bucket_uncapped(m: int) -> int:
    """Bucket that serves M tokens where the op has no bound (GEMMs): the next grid size, rounding up."""
    if m <= _POWERS_END:
        return next_power_of_two(m)
    if m <= _FINE_END:
        return _round_up(m, _FINE_STEP)
    if m <= _COARSE_END:
        return _round_up(m, _COARSE_STEP)
    return next_power_of_two(m)


def bucket_capped(m: int, tune_max: int) -> int:
    """Bucket that serves M tokens where the op is bounded: as uncapped, but not above ``tune_max``.

    FlashInfer does not clamp its powers of two: with a bound of 100, M = 70 is served by bucket 128, which the server's
    own grid (.. 64, 100) never tunes.
    """
    if m >= tune_max:
        return tune_max
    if m <= _POWERS_END:
        return next_power_of_two(m)
    return min(bucket_uncapped(m), tune_max)


def bucket_of(m: int, tune_max: int | None) -> int:
    """Bucket that serves M tokens; ``tune_max`` None for an op without a bound."""
    return bucket_uncapped(m) if tune_max is None else bucket_capped(m, tune_max)


def hybrid_grid(largest: int) -> tuple[int, ...]:
    """Grid sizes up to ``largest``, and ``largest`` itself even off the grid. Empty for ``largest`` < 1."""
    if largest < 1:
        return ()
    sizes = []
    size = 1
    while size < largest:
        sizes.append(size)
        size = bucket_uncapped(size + 1)
    return (*sizes, largest)


def reachable_buckets(largest_m: int, tune_max: int | None) -> tuple[int, ...]:
    """Buckets that some M in 1..largest_m is served by, ascending.

    The top is what the op's own mapper returns for ``largest_m``: 3906 without a bound is served by 4096, with a bound
    of 1000 every larger M is served by 1000.
    """
    if largest_m < 1:
        return ()
    found = {bucket_of(largest_m, tune_max)}
    m = 1
    while m <= largest_m and (tune_max is None or m < tune_max):
        bucket = bucket_of(m, tune_max)
        found.add(bucket)
        m = bucket + 1
    return tuple(sorted(found))


def server_buckets(rows: int, tune_max: int | None) -> tuple[int, ...]:
    """Buckets that one autotune pass of the server leaves tuned when its dummy sends ``rows`` tokens.

    A bounded op profiles its whole grid whatever it is sent; an unbounded one profiles the grid of ``rows``, each entry
    stored under the bucket that its mapper returns.
    """
    if tune_max is not None:
        return hybrid_grid(tune_max)
    return reachable_buckets(rows, None)


def size_inside(bucket: int) -> int | None:
    """A size between the grid size below ``bucket`` and ``bucket``, which that bucket serves; None if there is none."""
    below = hybrid_grid(bucket)[-2] if bucket > 1 else 0
    middle = (below + bucket) // 2
    return middle if below < middle < bucket else None
