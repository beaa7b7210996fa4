"""Two caches compared entry by entry, and the ranks of one deployment with each other."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune_planner.cache.contents import Content, Place, rank_of, rank_order, read_content
from autotune_planner.cache.files import read_cache_file
from autotune_planner.cache.merge import metadata_differences
from autotune_planner.cache.v1 import Entry
from autotune_planner.json_text import parse_json


@dataclass(frozen=True)
class Pair:
    """One key in both caches, with the measured times of both tactics in microseconds where a journal has them."""

    a: Entry
    b: Entry
    a_us: float | None
    b_us: float | None

    @property
    def key(self) -> str:
        return self.a.text


@dataclass(frozen=True)
class Difference:
    """``equal_keys`` counts keys in both. ``flips`` are those with another runner or tactic, ``policies`` those
    measured in another way; ``metadata`` maps a field to both values. ``notes`` name what else differs.
    """

    only_in_a: tuple[Entry, ...]
    only_in_b: tuple[Entry, ...]
    equal_keys: int
    flips: tuple[Pair, ...]
    policies: tuple[Pair, ...]
    metadata: Mapping[str, tuple[Any, Any]]
    notes: tuple[str, ...]

    @property
    def empty(self) -> bool:
        differing = (self.only_in_a, self.only_in_b, self.flips, self.policies, self.metadata, self.notes)
        return not any(differing)


@dataclass(frozen=True)
class RankDifference:
    """Files ``a`` and ``b`` of two ranks that differ. ``error``: ranks of one PP stage, which the server compares."""

    a: Path
    b: Path
    error: bool
    difference: Difference


@dataclass(frozen=True)
class RankReport:
    """The rank files of one deployment. ``missing`` are ranks without a file beside others that have one."""

    files: tuple[Path, ...]
    missing: tuple[Path, ...]
    differences: tuple[RankDifference, ...]

    @property
    def failed(self) -> bool:
        """The server's tensor-parallel ranks would not agree: they delete all of their files and tune again."""
        return bool(self.missing) or any(found.error for found in self.differences)


def diff(a: Content, b: Content) -> Difference:
    """Compare by key text, entries in the order of ``a`` and then of ``b``."""
    in_a, in_b = ({entry.text: entry for entry in content.entries} for content in (a, b))
    pairs = [
        Pair(entry, in_b[text], a.time_us(entry), b.time_us(in_b[text])) for text, entry in in_a.items() if text in in_b
    ]
    return Difference(
        only_in_a=tuple(entry for text, entry in in_a.items() if text not in in_b),
        only_in_b=tuple(entry for text, entry in in_b.items() if text not in in_a),
        equal_keys=len(pairs),
        flips=tuple(pair for pair in pairs if _choice(pair.a) != _choice(pair.b)),
        policies=tuple(pair for pair in pairs if pair.a.policy != pair.b.policy),
        metadata=metadata_differences(a.metadata or {}, b.metadata or {}),
        notes=_notes(a, b),
    )


def diff_ranks(expected: Sequence[Path], places: Sequence[Place]) -> RankReport:
    """Compare the rank files of ``places``, which groups them by equal bytes.

    ``expected`` names every file of the deployment. Within a PP stage each rank is compared with the first, and a
    difference is an error; the first of each stage with the first of all, which is none: stages have layers of their
    own. Files whose JSON is equal are the same to the server, whatever their bytes.
    """
    of_file = {file: place for place in places for file in place.files}
    files = tuple(sorted(of_file, key=rank_order))
    stages: defaultdict[int, list[Path]] = defaultdict(list)
    for file in files:
        stages[rank_of(file.name).get("pp", 0)].append(file)
    leaders = [members[0] for _, members in sorted(stages.items())]
    pairs = [(members[0], other, True) for members in stages.values() for other in members[1:]]
    pairs += [(leaders[0], leader, False) for leader in leaders[1:]]
    contents = {place: read_content(place) for place in places}
    texts = {place: _canonical(place.files[0]) for place in places}
    differences = tuple(
        RankDifference(a, b, error, _with_rest(diff(contents[of_file[a]], contents[of_file[b]])))
        for a, b, error in pairs
        if texts[of_file[a]] != texts[of_file[b]]
    )
    return RankReport(files, tuple(file for file in expected if file not in of_file), differences)


def _canonical(path: Path) -> str:
    """What the server takes the digest of: SGLang 0.5.23, ``flashinfer_autotune.py:_autotune_cache_digest``."""
    return json.dumps(parse_json(read_cache_file(path)), sort_keys=True)


def _with_rest(difference: Difference) -> Difference:
    """A difference of two files whose JSON differs, also where no entry does."""
    if not difference.empty:
        return difference
    return replace(difference, notes=("parts that are no entries differ, such as _generation",))


def _choice(entry: Entry) -> tuple[str, Any]:
    return entry.runner, entry.tactic


def _notes(a: Content, b: Content) -> tuple[str, ...]:
    notes = []
    if (a.metadata is None) != (b.metadata is None):
        notes.append(f"{'a' if a.metadata is None else 'b'} has no environment stamp")
    if a.records != b.records:
        notes.append("their _records differ")
    return tuple(notes)
