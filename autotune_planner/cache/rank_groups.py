"""Ranks that compare their cache files at start: equal for all of a tensor-parallel group, or all are deleted.

Source: SGLang 0.5.23, ``model_executor/runner/flashinfer_autotune.py:_drop_diverged_autotune_cache``. Pipeline stages
and replicas are groups of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune_planner.cache.merge import metadata_differences
from autotune_planner.cache.rank_files import RankFile
from autotune_planner.cache.sglang_layout import rank_file_name
from autotune_planner.cache.v1 import V1File
from autotune_planner.engines.resolved import Rank


@dataclass(frozen=True)
class TpGroup:
    """Ranks of one group; ``differ`` says in what, None where their files are identical or all absent.

    ``other_shapes``: two of them hold keys that the other lacks, each way.
    """

    ranks: tuple[Rank, ...]
    differ: str | None
    other_shapes: bool = False


def tp_groups(files: Sequence[RankFile], *, replicas: bool) -> tuple[TpGroup, ...]:
    """The groups among all ranks' files. ``replicas``: the dp index of a rank is its replica, not its attention-DP
    rank. A rank alone compares nothing."""
    members: defaultdict[tuple[int, int], list[RankFile]] = defaultdict(list)
    for file in files:
        members[file.rank.pp, file.rank.dp if replicas else 0].append(file)
    return tuple(_group(group) for group in members.values() if len(group) > 1)


def names_of(files: Sequence[RankFile]) -> str:
    """Names of rank files in a sentence."""
    names = [rank_file_name(file.rank).removesuffix(".json") for file in files]
    return names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]} ({len(names)} files)"


def _group(files: Sequence[RankFile]) -> TpGroup:
    ranks = tuple(file.rank for file in files)
    if len({file.digest for file in files}) == 1:
        return TpGroup(ranks, None)
    parts = []
    absent = [file for file in files if file.absent]
    damaged = [file for file in files if file.problem is not None]
    if absent:
        parts.append(f"{names_of(absent)} {'is' if len(absent) == 1 else 'are'} missing")
    if damaged:
        parts.append(f"{names_of(damaged)} cannot be read")
    distinct = list({file.digest: file for file in reversed(files) if file.content is not None}.values())[::-1]
    for other in distinct[1:]:
        differences = ", ".join(_differences(_content(distinct[0]), _content(other))) or "what is no entry"
        parts.append(f"{names_of(distinct[:1])} and {names_of([other])} differ in {differences}")
    other_shapes = any(all(_only(_content(distinct[0]), _content(other))) for other in distinct[1:])
    return TpGroup(ranks, "; ".join(parts), other_shapes)


def _content(file: RankFile) -> V1File:
    assert file.content is not None
    return file.content.file


def _only(first: V1File, second: V1File) -> tuple[int, int]:
    """How many keys each of two files has that the other lacks."""
    ours, theirs = ({entry.text for entry in file.entries} for file in (first, second))
    return len(ours - theirs), len(theirs - ours)


def _differences(first: V1File, second: V1File) -> Iterator[str]:
    ours, theirs = ({entry.text: entry for entry in file.entries} for file in (first, second))
    stamp = metadata_differences(first.metadata or {}, second.metadata or {})
    if stamp:
        yield f"_metadata ({', '.join(stamp)})"
    left, right = _only(first, second)
    if left and right:
        yield f"shapes ({left} keys of the one, {right} of the other)"
    elif left or right:
        yield f"{left or right} keys that one of them lacks"
    both = ours.keys() & theirs.keys()
    for what, count in (
        ("tactics", sum(ours[text].tactic != theirs[text].tactic for text in both)),
        ("policies", sum(ours[text].policy != theirs[text].policy for text in both)),
    ):
        if count:
            yield f"{count} {what}"
