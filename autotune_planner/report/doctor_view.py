"""``doctor`` for people and scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
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
    """A line for each item, one for all parts of a topic of which the same is to be said, and what to do about those
    that are missing."""
    shown = _joined(items)
    width = max(len(item.topic) for item in shown)
    lines = []
    for item in shown:
        lines.append(Text.assemble((f"{item.status:9}", _STYLES[item.status]), f"{item.topic:{width}}  {item.text}"))
        if item.status != "ok" and item.hint:
            lines.append(Text(f"{'':9}{'':{width}}  try: {item.hint}", style="cyan"))
    return Group(*lines)


def _joined(items: Sequence[Item]) -> list[Item]:
    """``stamp a`` and ``stamp b`` of one text as ``stamp``, in the place of the first."""
    alike: dict[object, list[Item]] = {}
    for item in items:
        kind, _, part = item.topic.partition(" ")
        alike.setdefault((kind, part == "", item.status, item.text, item.hint), []).append(item)
    return [same[0] if len(same) == 1 else _of_all(same) for same in alike.values()]


def _of_all(items: Sequence[Item]) -> Item:
    kind = items[0].topic.partition(" ")[0]
    parts = ", ".join(item.topic.removeprefix(f"{kind} ") for item in items)
    return replace(items[0], topic=kind, text=f"{parts}: {items[0].text}")
