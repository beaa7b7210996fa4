"""Tactics that crashed, hung, ran out of memory or computed nonsense: named, kept apart, and never run again here.

The file is a FlashInfer blocklist (``FLASHINFER_TACTICS_BLOCKLIST`` takes it as it is): a tactic is blocked for its op
and runner, whatever the shape. Beside that, ``details`` say where each was met.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from autotune_planner.tuning.durable import parsed, read_text, written
from autotune_planner.values import dataclass

FILE = "quarantine.json"

Place = tuple[str, str, str]
"""What is blocked: an op, a runner class, and a tactic as JSON has it."""

Fault = Literal["crash", "hang", "out of memory", "not finite", "wrong result"]


@dataclass(frozen=True)
class Quarantined:
    """One tactic (an integer, or a list as JSON has it) and where it failed; ``bucket`` in tokens."""

    custom_op: str
    runner: str
    tactic: Any
    fault: Fault
    reason: str
    bucket: int
    shape: str

    @property
    def place(self) -> Place:
        return tactic_place(self.custom_op, self.runner, self.tactic)

    def __str__(self) -> str:
        return f"{self.custom_op} tactic {self.tactic} at M = {self.bucket} ({self.shape}): {self.fault}, {self.reason}"


def tactic_place(custom_op: str, runner: str, tactic: Any) -> Place:
    return custom_op, runner, json.dumps(tactic)


class Quarantine:
    """The quarantine of one target directory in one environment: a file of another environment is begun anew."""

    def __init__(self, path: Path, metadata: Mapping[str, str]) -> None:
        self.path = path
        self.damaged = False  # a file that nobody can read: what it held may run again
        self._metadata = dict(metadata)
        self._items = self._read()

    @property
    def items(self) -> tuple[Quarantined, ...]:
        return tuple(self._items.values())

    @property
    def harmful(self) -> frozenset[Place]:
        """What no server must run at any size. A tactic that ran out of memory did so at its size."""
        return frozenset(item.place for item in self.items if item.fault != "out of memory")

    def of(self, custom_op: str) -> tuple[Quarantined, ...]:
        """What an op must not run."""
        return tuple(item for item in self.items if item.custom_op == custom_op)

    def add(self, items: Iterable[Quarantined]) -> None:
        """Add and write at once: on return a kill loses nothing."""
        new = {item.place: item for item in items if item.place not in self._items}
        if new:
            self._items.update(new)
            self._write()

    def clear(self) -> None:
        """Try everything again (``--fresh``)."""
        self._items = {}
        self.damaged = False
        with written(self.path):
            self.path.unlink(missing_ok=True)

    def _read(self) -> dict[Place, Quarantined]:
        text = read_text(self.path)
        if text is None:
            return {}
        try:
            content = parsed(text)
            stamped = content["_metadata"]
            if any(stamped.get(name) != value for name, value in self._metadata.items()):
                return {}
            return {item.place: item for item in (Quarantined(**details) for details in content["details"])}
        except (KeyError, TypeError, AttributeError):
            self.damaged = True
            return {}

    def _write(self) -> None:
        blocked: dict[str, list[Any]] = {}
        for item in self.items:
            blocked.setdefault(f"{item.custom_op}::{item.runner}", []).append(item.tactic)
        stamp = {**self._metadata, "generated_at": datetime.now(timezone.utc).isoformat(), "generator_version": "1.0"}
        content = {
            "_metadata": stamp,
            "invalid_tactics": blocked,
            "details": [
                {name: getattr(item, name) for name in Quarantined.__dataclass_fields__} for item in self.items
            ],
        }
        new = self.path.with_name(f".{self.path.name}.new")
        with written(self.path):
            with open(new, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self.path)
