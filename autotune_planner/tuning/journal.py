"""Append-only journal of finished work units: what a killed run had done, the next one does not do again.

One JSON object per line. The first line is the header; a torn last line (kill, power) is ignored. A record counts only
in the environment that made it: FlashInfer's own metadata, all of it, is part of the record's identity.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autotune_planner.plan.plan import WorkUnit
from autotune_planner.tuning.messages import UnitResult

SCHEMA = "autotune-plan/journal@1"


def environment_id(metadata: Mapping[str, str]) -> str:
    """Short hash of FlashInfer's environment stamp."""
    return hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode()).hexdigest()[:16]


class Journal:
    """Finished units of one target directory, in one environment."""

    def __init__(self, path: Path, metadata: Mapping[str, str]) -> None:
        self.path = path
        self._environment = environment_id(metadata)

    def finished(self, units: Iterable[WorkUnit]) -> dict[WorkUnit, UnitResult]:
        """Results of those of ``units`` that an earlier run finished here; failures are tried again."""
        records = {record["unit"]: record for record in self._records() if record["environment"] == self._environment}
        found = {}
        for unit in units:
            record = records.get(unit.id)
            if record is not None:
                found[unit] = UnitResult(
                    unit, record["entries"], tuple(record["skipped"]), record["seconds"], record["device_seconds"]
                )
        return found

    def append(self, result: UnitResult) -> None:
        """Record one result durably: on return it survives a kill."""
        if result.failure is not None:
            return
        record = {
            "environment": self._environment,
            "unit": result.unit.id,
            "entries": dict(result.entries),
            "skipped": list(result.skipped),
            "seconds": round(result.seconds, 3),
            "device_seconds": result.device_seconds,
        }
        with open(self.path, "a+b") as file:
            if file.tell() == 0:
                file.write(_line({"schema": SCHEMA}))
            else:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a torn line must not swallow the next record
                    file.write(b"\n")
            file.write(_line(record))
            file.flush()
            os.fsync(file.fileno())

    def clear(self) -> None:
        """Forget everything (``--fresh``)."""
        self.path.unlink(missing_ok=True)

    def _records(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        records = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # torn by a kill in the middle of a write
            if isinstance(record, dict) and "unit" in record:
                records.append(record)
        return records


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode() + b"\n"
