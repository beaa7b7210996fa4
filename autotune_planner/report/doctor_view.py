"""``doctor`` for people and scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.text import Text

from autotune_planner.tuning.environment import SCHEMA, Machine
from autotune_planner.tuning.needs import Item

_STYLES = {"ok": "green", "note": "cyan", "missing": "bold red"}


def doctor_document(machine: Machine, items: Sequence[Item]) -> dict[str, Any]:
    """The ``autotune-plan/doctor@1`` document, which ``check --env`` reads; memory in MiB."""
    return {"schema": SCHEMA, **asdict(machine), "items": [asdict(item) for item in items]}


def doctor_view(items: Sequence[Item]) -> Group:
    """A line for each item, and what to do about those that are missing."""
    width = max(len(item.topic) for item in items)
    lines = []
    for item in items:
        lines.append(Text.assemble((f"{item.status:9}", _STYLES[item.status]), f"{item.topic:{width}}  {item.text}"))
        if item.status != "ok" and item.hint:
            lines.append(Text(f"{'':9}{'':{width}}  try: {item.hint}", style="cyan"))
    return Group(*lines)
