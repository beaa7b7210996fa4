"""One entry's values as short texts, shared by every view of a cache."""

from __future__ import annotations

from typing import Any


def policy_document(policy: tuple[Any, ...] | None) -> dict[str, Any] | None:
    """A profiling policy as names and values; None where the entry has none."""
    return None if policy is None else dict(zip(map(str, policy[::2]), policy[1::2], strict=False))


def policy_text(policy: tuple[Any, ...] | None) -> str:
    fields = policy_document(policy)
    if fields is None:
        return "not recorded"
    replays = fields.get("cuda_graph_profile_replays")
    return printable(f"{fields.get('l2_cache_policy')} L2, {'no graph' if replays is None else f'graph x {replays}'}")


def tactic_text(tactic: Any) -> str:
    return "default (-1)" if tactic == -1 else printable(str(tactic))


def time_text(time_us: float | None) -> str:
    return "-" if time_us is None else f"{time_us:.2f} us"


def gain_of(time_us: float | None, fallback_us: float | None) -> float | None:
    """How many times faster than the fallback tactic."""
    return fallback_us / time_us if time_us and fallback_us else None


def gain_text(gain: float | None) -> str:
    return "-" if gain is None else f"{gain:.2f}x"


def printable(text: str) -> str:
    """A text of a file for a terminal: control characters and lone surrogates escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
