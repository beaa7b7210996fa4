"""``diff`` for people and scripts: the ``autotune-plan/diff@1`` document and its table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from autotune_planner.cache.diff import Difference, Pair, RankDifference, RankReport
from autotune_planner.cache.v1 import Entry
from autotune_planner.report.cache_layers import layers_of
from autotune_planner.report.entry_text import policy_document, policy_text, printable, tactic_text, time_text
from autotune_planner.report.rows import Rows

SCHEMA = "autotune-plan/diff@1"


def diff_document(difference: Difference) -> dict[str, Any]:
    """Two caches. Keys as texts, times in microseconds or null."""
    return {"schema": SCHEMA, **_parts(difference)}


def rank_document(report: RankReport) -> dict[str, Any]:
    """The ranks of one deployment. ``failed``: the server would delete the files of all ranks at start."""
    return {
        "schema": SCHEMA,
        "failed": report.failed,
        "files": [str(file) for file in report.files],
        "missing": [str(file) for file in report.missing],
        "ranks": [
            {"a": str(found.a), "b": str(found.b), "error": found.error, **_parts(found.difference)}
            for found in report.differences
        ],
    }


def diff_view(a: Path, b: Path, difference: Difference) -> Group:
    lines: list[Text | Rows] = [Text(f"a: {a}", style="bold"), Text(f"b: {b}", style="bold")]
    if difference.empty:
        lines.append(Text(f"No difference: {_count(difference.equal_keys, 'key')} with equal tactics and policies"))
    else:
        lines += _difference(difference)
    return Group(*lines)


def rank_view(report: RankReport) -> Group:
    lines: list[Text | Rows] = [
        Text(f"{_count(len(report.files), 'rank file')} in {report.files[0].parent}", style="bold")
    ]
    lines += [
        Text(f"missing: {file.name}; the server's ranks all delete their files and tune") for file in report.missing
    ]
    for found in report.differences:
        lines += [Text(), Text(f"a: {found.a.name}, b: {found.b.name}: {_verdict(found)}", style="bold")]
        lines += _difference(found.difference)
    if not report.differences:
        lines.append(Text("They hold the same entries"))
    return Group(*lines)


def _verdict(found: RankDifference) -> str:
    if found.error:
        return "the server deletes the files of all ranks at start"
    return "two pipeline stages, which may differ"


def _difference(difference: Difference) -> list[Text | Rows]:
    lines: list[Text | Rows] = [
        Text(
            f"{_count(difference.equal_keys, 'equal key')}, {_count(len(difference.flips), 'flip')}, "
            f"{_count(len(difference.only_in_a), 'key')} only in a, "
            f"{_count(len(difference.only_in_b), 'key')} only in b"
        )
    ]
    lines += [Text(note) for note in difference.notes]
    lines += _table("Environment", ("field", "a", "b"), _metadata(difference))
    lines += _table("Tactics that differ", *_flips(difference.flips))
    lines += _table("Policies that differ", ("op", "bucket", "a", "b"), _policies(difference.policies))
    for name, entries in (("a", difference.only_in_a), ("b", difference.only_in_b)):
        lines += _table(f"Only in {name}", ("op", "buckets"), _layers(entries))
    return lines


def _table(title: str, header: Sequence[str], rows: list[tuple[str, ...]]) -> list[Text | Rows]:
    return [Text(), Text(title, style="bold"), Rows([tuple(header), *rows])] if rows else []


def _metadata(difference: Difference) -> list[tuple[str, ...]]:
    return [(field, printable(str(a)), printable(str(b))) for field, (a, b) in difference.metadata.items()]


def _flips(pairs: Iterable[Pair]) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Header and rows; without times where no journal has one."""
    rows: list[tuple[str, ...]] = [
        (*_named(pair), _choice(pair.a, pair.b), time_text(pair.a_us), _choice(pair.b, pair.a), time_text(pair.b_us))
        for pair in _by_bucket(pairs)
    ]
    if any(row[3] != "-" or row[5] != "-" for row in rows):
        return ("op", "bucket", "a", "time", "b", "time"), rows
    return ("op", "bucket", "a", "b"), [(*row[:3], row[4]) for row in rows]


def _policies(pairs: Iterable[Pair]) -> list[tuple[str, ...]]:
    return [(*_named(pair), policy_text(pair.a.policy), policy_text(pair.b.policy)) for pair in _by_bucket(pairs)]


def _by_bucket(pairs: Iterable[Pair]) -> list[Pair]:
    return sorted(pairs, key=lambda pair: (pair.a.key.custom_op, pair.a.key.bucket, pair.key))


def _named(pair: Pair) -> tuple[str, str]:
    return pair.a.key.custom_op, str(pair.a.key.bucket)


def _choice(entry: Entry, other: Entry) -> str:
    """The tactic, with the runner where the two differ in it."""
    tactic = tactic_text(entry.tactic)
    return tactic if entry.runner == other.runner else f"{printable(entry.runner)} {tactic}"


def _layers(entries: Iterable[Entry]) -> list[tuple[str, ...]]:
    return [
        (layer.title, " ".join(map(str, sorted({entry.key.bucket for entry in layer.entries}))))
        for layer in layers_of(entries)
    ]


def _parts(difference: Difference) -> dict[str, Any]:
    return {
        "only_in_a": [entry.text for entry in difference.only_in_a],
        "only_in_b": [entry.text for entry in difference.only_in_b],
        "equal_keys": difference.equal_keys,
        "flips": [
            {
                "key": pair.key,
                "a": {"runner": pair.a.runner, "tactic": pair.a.tactic, "time_us": pair.a_us},
                "b": {"runner": pair.b.runner, "tactic": pair.b.tactic, "time_us": pair.b_us},
            }
            for pair in difference.flips
        ],
        "policies": [
            {"key": pair.key, "a": policy_document(pair.a.policy), "b": policy_document(pair.b.policy)}
            for pair in difference.policies
        ],
        "metadata": [{"field": field, "a": a, "b": b} for field, (a, b) in difference.metadata.items()],
        "notes": list(difference.notes),
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
