"""Nearest known names for a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that ``name`` most likely means, or None if none is close. Case and ``-`` do not count."""
    by_plain = {_plain(candidate): candidate for candidate in known}
    found = get_close_matches(_plain(name), by_plain, n=1, cutoff=cutoff)
    return by_plain[found[0]] if found else None


def nearest_first(name: str, known: Iterable[str]) -> list[str]:
    """All known names, the most alike first."""
    plain = _plain(name)
    return sorted(known, key=lambda candidate: (-SequenceMatcher(None, plain, _plain(candidate)).ratio(), candidate))


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")[:200]
