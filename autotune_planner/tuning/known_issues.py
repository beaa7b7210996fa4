"""Known-bad versions: the dated table ``profiles/notices.yaml`` against what is installed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from autotune_planner import profiles

_VERSION = re.compile(r"(\d+(?:\.\d+)*)(?:\.post(\d+))?")


@dataclass(frozen=True)
class KnownIssue:
    """One row that applies. ``fixed_in`` is None where no release without it is known."""

    package: str
    version: str
    text: str
    fixed_in: str | None
    date: str
    source: str


def known_issues(versions: Mapping[str, str], sm: Collection[int]) -> Iterator[KnownIssue]:
    """Rows that apply to these versions by package, on GPUs of these architectures (90 for SM90; none known: all)."""
    for row in profiles.table("notices")["notices"]:
        version = versions.get(row["package"])
        if version is None or not _in_range(version, row["from"], row["before"]):
            continue
        if "sm" in row and sm and not set(row["sm"]) & set(sm):
            continue
        yield KnownIssue(row["package"], version, row["text"], row["before"], str(row["date"]), row["source"])


def _in_range(version: str, first: str, before: str | None) -> bool:
    found = _order(version)
    if found is None:
        return False
    first_order, before_order = _order(first), _order(before or "")
    return (first_order or ()) <= found and (before_order is None or found < before_order)


def _order(version: str) -> tuple[tuple[int, ...], int] | None:
    """Numbers of a release and of its post release. A pre-release counts as its release; None for no version."""
    match = _VERSION.match(version)
    if match is None:
        return None
    numbers = tuple(map(int, match.group(1).split(".")))
    return numbers + (0,) * (4 - len(numbers)), int(match.group(2) or 0)
