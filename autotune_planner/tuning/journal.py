"""Append-only journal of finished work units: what a killed run had done, the next one does not do again.

One JSON object per line. The first line is the header; a torn last line (kill, power) is ignored. A record counts only
in the environment that made it, FlashInfer's own metadata and all of it, and for the strategy that was asked for.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from autotune_planner.plan.plan import WorkUnit
from autotune_planner.tuning.durable import parsed, read_text, written
from autotune_planner.tuning.messages import Candidate, Search, Strategy, UnitResult

SCHEMA = "autotune-plan/journal@2"
_DIGITS = 6  # of a time: more than it is exact


def environment_id(metadata: Mapping[str, str]) -> str:
    """Short hash of FlashInfer's environment stamp."""
    return hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode()).hexdigest()[:16]


class Journal:
    """Finished units of one target directory, in one environment, by one strategy."""

    def __init__(self, path: Path, metadata: Mapping[str, str], strategy: Strategy) -> None:
        self.path = path
        self._metadata = dict(metadata)
        self._environment = environment_id(metadata)
        self._strategy = strategy

    def finished(self, units: Iterable[WorkUnit]) -> dict[WorkUnit, UnitResult]:
        """Results of those of ``units`` that an earlier run finished here; failures are tried again."""
        records = {record["unit"]: record for record in self._records() if self._counts(record)}
        results = {unit: _result(unit, records[unit.id]) for unit in units if unit.id in records}
        return {unit: result for unit, result in results.items() if result is not None}

    def unused(self, units: Iterable[WorkUnit]) -> list[str]:
        """Why records of these units, or of others, do not count: one line for each reason."""
        wanted = {unit.id for unit in units}
        reasons: Counter[str] = Counter()
        counting = {record["unit"] for record in self._records() if self._counts(record)}
        for record in {record["unit"]: record for record in self._records()}.values():
            if record["unit"] in counting:
                continue
            if record["unit"] in wanted:
                reasons[self._difference(record)] += 1
        return [f"{count} finished profiles of an earlier run do not count: {why}" for why, count in reasons.items()]

    def append(self, result: UnitResult) -> None:
        """Record one result durably: on return it survives a kill."""
        if result.failure is not None:
            return
        with written(self.path), open(self.path, "a+b") as file:
            if file.tell() == 0:
                file.write(_line({"schema": SCHEMA}))
            else:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a torn line must not swallow the next record
                    file.write(b"\n")
            file.write(_line(self._record(result)))
            file.flush()
            os.fsync(file.fileno())

    def clear(self) -> None:
        """Forget everything (``--fresh``)."""
        with written(self.path):
            self.path.unlink(missing_ok=True)

    def _counts(self, record: Mapping[str, Any]) -> bool:
        return record.get("environment") == self._environment and record.get("strategy") == self._strategy

    def _difference(self, record: Mapping[str, Any]) -> str:
        theirs = record.get("metadata")
        if not isinstance(theirs, dict):
            return "they were made by an older version of this program"
        changed = [
            f"{name} was {theirs.get(name)} and is {self._metadata.get(name)}"
            for name in sorted({*theirs, *self._metadata})
            if theirs.get(name) != self._metadata.get(name)
        ]
        return ", ".join(changed) or f"by {record.get('strategy')} then, by {self._strategy} now"

    def _record(self, result: UnitResult) -> dict[str, Any]:
        unit, search = result.unit, result.search
        return {
            "environment": self._environment,
            "metadata": self._metadata,
            "strategy": self._strategy,
            "unit": unit.id,
            "custom_op": unit.custom_op,
            "shape": unit.call.label,
            "bucket": unit.bucket,
            "entries": dict(result.entries),
            "skipped": list(result.skipped),
            "quarantined": [str(item) for item in result.quarantined],
            "gpu": result.gpu,
            "seconds": round(result.seconds, 3),
            "device_seconds": result.device_seconds,
            "finished_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            **(_measured(search) if search is not None else {}),
        }

    def _records(self) -> list[dict[str, Any]]:
        # A line that is no JSON was torn by a kill in the middle of a write.
        records = [parsed(line) for line in (read_text(self.path) or "").splitlines()]
        return [record for record in records if isinstance(record, dict) and isinstance(record.get("unit"), str)]


def _measured(search: Search) -> dict[str, Any]:
    runner_up = search.runner_up
    return {
        "chosen_by": search.strategy,
        "candidates": [{"tactic": found.tactic, "median_us": _time(found.us)} for found in search.candidates],
        "pick": search.pick,
        "pick_us": _time(search.us_of(search.pick)),
        "fallback_us": _time(search.us_of(-1)),
        "runner_up": None if runner_up is None else {"tactic": runner_up.tactic, "us": _time(runner_up.us)},
        "spread": search.spread,
        "tied": search.tied,
        "launches": search.launches,
    }


def _result(unit: WorkUnit, record: Mapping[str, Any]) -> UnitResult | None:
    """What a record says; None where somebody damaged it: a field that is missing or no such thing, another pick."""
    search = None
    try:
        if "pick" in record:
            candidates = tuple(Candidate(found["tactic"], float(found["median_us"])) for found in record["candidates"])
            search = Search(
                record["chosen_by"], record["pick"], candidates, record["spread"], record["tied"], record["launches"]
            )
        result = UnitResult(
            unit=unit,
            entries={str(key): list(value) for key, value in record["entries"].items()},
            skipped=tuple(map(str, record["skipped"])),
            seconds=float(record["seconds"]),
            device_seconds=record["device_seconds"],
            search=search,
            gpu=record["gpu"],
        )
        ((_, tactic, *_),) = result.entries.values()
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return result if search is None or tactic == search.pick else None


def _time(us: float | None) -> float | None:
    return None if us is None else float(f"{us:.{_DIGITS}g}")


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode() + b"\n"
