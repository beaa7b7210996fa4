"""Results of caches that were made apart: which of several for one profile stands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune_planner.cache.v1 import Entry
from autotune_planner.errors import CacheFileError

_SHOWN = 20


@dataclass(frozen=True)
class Contender:
    """One of several results for one profile."""

    source: str | None
    entry: Entry
    time_us: float | None


@dataclass(frozen=True)
class Conflict:
    """Results of one profile that cannot all stand, in the order of the sources."""

    contenders: tuple[Contender, ...]

    @property
    def winner(self) -> Contender | None:
        """The one that was measured to be the fastest; None unless all were measured."""
        timed = [(contender.time_us, contender) for contender in self.contenders if contender.time_us is not None]
        if len(timed) < len(self.contenders):
            return None
        return min(timed, key=lambda pair: pair[0])[1]


def union(
    contenders: Iterable[Contender], *, one_runner: bool = False
) -> tuple[dict[str, Entry], tuple[Conflict, ...]]:
    """Entries by key text, and the conflicts that times decided: one key with several values, and one (custom op,
    profile) under other runners in one source than in another.

    Several runners of a profile in one source are several keys, which FlashInfer keeps side by side, and no conflict
    unless ``one_runner``. ``CacheFileError`` with a table of the conflicts that times do not decide.
    """
    by_text: defaultdict[str, list[Contender]] = defaultdict(list)
    held: defaultdict[object, defaultdict[str | None, set[str]]] = defaultdict(lambda: defaultdict(set))
    for contender in contenders:
        by_text[contender.entry.text].append(contender)
        held[_profile(contender.entry)][contender.source].add(contender.entry.runner)
    conflicts = {text: Conflict(alike) for text, group in by_text.items() if len(alike := _distinct(group)) > 1}
    kept = {text: _standing(conflicts.get(text), group) for text, group in by_text.items()}
    by_profile: defaultdict[object, dict[str, Contender]] = defaultdict(dict)
    for contender in kept.values():
        by_profile[_profile(contender.entry)].setdefault(contender.entry.runner, contender)
    rivals = {
        profile: Conflict(tuple(group.values()))
        for profile, group in by_profile.items()
        if len(group) > 1 and (one_runner or any(runners != group.keys() for runners in held[profile].values()))
    }
    all_conflicts = (*conflicts.values(), *rivals.values())
    unresolved = [conflict for conflict in all_conflicts if conflict.winner is None]
    if unresolved:
        raise _refused(unresolved)
    runners = {profile: conflict.winner.entry.runner for profile, conflict in rivals.items() if conflict.winner}
    standing = (contender.entry for contender in kept.values())
    entries = {entry.text: entry for entry in standing if runners.get(_profile(entry), entry.runner) == entry.runner}
    return entries, all_conflicts


def _profile(entry: Entry) -> object:
    return entry.key.custom_op, entry.key.profile


def _distinct(group: Sequence[Contender]) -> tuple[Contender, ...]:
    distinct: list[Contender] = []
    for contender in group:
        if all(contender.entry != other.entry for other in distinct):
            distinct.append(contender)
    return tuple(distinct)


def _standing(conflict: Conflict | None, group: Sequence[Contender]) -> Contender:
    return (conflict.winner if conflict else None) or group[0]


def _refused(conflicts: Sequence[Conflict]) -> CacheFileError:
    """A table: the key of each conflict, and a line for each of its results."""
    shown = conflicts[:_SHOWN]
    tables = ["\n".join([f"  {conflict.contenders[-1].entry.text}", *_results(conflict)]) for conflict in shown]
    more = [f"  and {len(conflicts) - len(shown)} more"] if len(conflicts) > len(shown) else []
    what = "one profile" if len(conflicts) == 1 else f"each of {len(conflicts)} profiles"
    return CacheFileError(
        "\n".join([f"two results for {what}, and no journal has the times of both:", *tables, *more]),
        code="cache-conflict",
        where=conflicts[0].contenders[-1].source,
        hint="leave one of them out, or merge the directories that their runs wrote: the journals there have the times",
    )


def _results(conflict: Conflict) -> list[str]:
    """With the policies where they differ, and the times that are known."""
    policies = [contender.entry.policy for contender in conflict.contenders]
    lines = []
    for contender in conflict.contenders:
        entry = contender.entry
        parts = [f"{entry.runner} {entry.tactic}"]
        if policies.count(policies[0]) < len(policies):
            parts.append("no policy" if entry.policy is None else " ".join(map(str, entry.policy)))
        if contender.time_us is not None:
            parts.append(f"{contender.time_us:.2f} us")
        lines.append(f"    {', '.join(parts)}" + (f" in {contender.source}" if contender.source else ""))
    return lines
