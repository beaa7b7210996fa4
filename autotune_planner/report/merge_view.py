"""``merge`` for people and scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from autotune_planner.cache.conflicts import Conflict, Contender
from autotune_planner.cache.merge import Merged
from autotune_planner.report.entry_text import printable, tactic_text, time_text

SCHEMA = "autotune-plan/merge@1"


def merge_document(written: Path, merged: Merged) -> dict[str, Any]:
    """``resolved``: for each conflict its results, the one that stands first. Times in microseconds."""
    return {
        "schema": SCHEMA,
        "written": str(written),
        "entries": len(merged.file.entries),
        "resolved": [list(map(_contender, _standing_first(conflict))) for conflict in merged.resolved],
    }


def merge_view(written: Path, merged: Merged) -> Group:
    lines = [Text(f"{len(merged.file.entries)} entries in {written}")]
    if merged.resolved:
        lines.append(Text(f"{len(merged.resolved)} conflicts, decided by the measured times:"))
    for conflict in merged.resolved:
        first, *others = _standing_first(conflict)
        key = first.entry.key
        lines.append(
            Text(f"  {key.custom_op} M={key.bucket}: {_result(first)}, rather than {', '.join(map(_result, others))}")
        )
    return Group(*lines)


def _standing_first(conflict: Conflict) -> list[Contender]:
    return sorted(conflict.contenders, key=lambda contender: contender is not conflict.winner)


def _result(contender: Contender) -> str:
    runner, tactic = printable(contender.entry.runner), tactic_text(contender.entry.tactic)
    return f"{runner} {tactic} of {contender.source} ({time_text(contender.time_us)})"


def _contender(contender: Contender) -> dict[str, Any]:
    entry = contender.entry
    return {
        "source": contender.source,
        "key": entry.text,
        "runner": entry.runner,
        "tactic": entry.tactic,
        "time_us": contender.time_us,
    }
