"""Journals as a run leaves them, written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune_planner.cache.v1 import Entry


def record(entry: Entry, metadata: Mapping[str, Any] | None, times: Mapping[int, float]) -> dict[str, Any]:
    """One finished unit: medians in microseconds by tactic, -1 being the fallback."""
    ordered = sorted(times.items(), key=lambda pair: pair[1])
    return {
        "environment": "0" * 16,
        "metadata": metadata,
        "unit": entry.text,
        "custom_op": entry.key.custom_op,
        "shape": "",
        "bucket": entry.key.bucket,
        "strategy": "race",
        "entries": {entry.text: entry.value()},
        "candidates": [
            {"tactic": tactic, "median_us": us, "low_us": us, "high_us": us, "samples": 9} for tactic, us in ordered
        ],
        "pick": entry.tactic,
        "pick_us": times.get(entry.tactic),
        "fallback_us": times.get(-1),
        "runner_up": None,
        "skipped": [],
        "quarantined": [],
        "gpu": None,
        "seconds": 1.0,
        "device_seconds": 1.0,
        "finished_at": "2026-09-01T00:00:00+00:00",
    }


def write_journal(directory: Path, *records: Mapping[str, Any]) -> Path:
    """The journal beside the rank files in ``directory``."""
    path = directory / ".autotune-plan" / "journal.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"schema": "autotune-plan/journal@2"}, *records]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
