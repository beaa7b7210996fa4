"""Measured times of cached tactics, read from the journal that a run leaves beside its rank files.

Read only, and never needed: a missing or damaged journal, and one of the older form that holds no times, give none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune_planner.cache.files import read_regular
from autotune_planner.cache.v1 import Entry
from autotune_planner.json_text import parse_json

WORK_FOLDER = ".autotune-plan"  # inside the directory of the rank files
JOURNAL = f"{WORK_FOLDER}/journal.jsonl"
QUARANTINE = f"{WORK_FOLDER}/quarantine.json"


@dataclass(frozen=True)
class Measured:
    """What a journal says of one key: medians by tactic (its JSON text) and the fallback's, in microseconds.

    ``spread`` and ``tied`` are the search's (``tuning.messages.Search``), None where it did not say.
    """

    medians: Mapping[str, float]
    fallback_us: float | None
    spread: float | None = None
    tied: int | None = None

    def time_us(self, entry: Entry) -> float | None:
        """The median of the entry's own tactic; None where another one was measured."""
        return self.medians.get(json.dumps(entry.tactic))

    def runner_up(self, entry: Entry) -> tuple[Any, float] | None:
        """The fastest of the other tactics and its median in microseconds; None where no other was measured."""
        own = json.dumps(entry.tactic)
        others = [(us, tactic) for tactic, us in self.medians.items() if tactic != own]
        if not others:
            return None
        us, tactic = min(others)
        return json.loads(tactic), us


Timings = Mapping[str, Measured]  # by key text


def read_timings(directory: Path, metadata: Mapping[str, Any] | None) -> dict[str, Measured]:
    """Times by key text from the journal in ``directory``, of runs in the environment ``metadata`` only.

    The last record of a key counts, as it does for the run that resumes.
    """
    timings: dict[str, Measured] = {}
    for record in _records(directory / JOURNAL, metadata):
        measured = _measured(record)
        if measured.medians or measured.fallback_us is not None:
            timings.update(dict.fromkeys(record["entries"], measured))
    return timings


def read_candidates(directory: Path, metadata: Mapping[str, Any] | None) -> dict[str, frozenset[str]]:
    """The tactics (JSON texts) that runs in the environment ``metadata`` measured or recorded for each key.

    Keys of records that name no candidates are left out.
    """
    found: dict[str, frozenset[str]] = {}
    for record in _records(directory / JOURNAL, metadata):
        measured = {json.dumps(tactic) for tactic, _ in _candidates(record)}
        for text, value in record["entries"].items() if measured else ():
            recorded = {json.dumps(value[1])} if isinstance(value, list) and len(value) > 1 else set()
            found[text] = found.get(text, frozenset()) | measured | recorded
    return found


def recorded_values(directory: Path, metadata: Mapping[str, Any] | None) -> dict[str, list[Any]]:
    """Every value that runs in the environment ``metadata`` recorded for each key: [runner, tactic, policy] each."""
    values: dict[str, list[Any]] = {}
    for record in _records(directory / JOURNAL, metadata):
        for text, value in record["entries"].items():
            values.setdefault(text, []).append(value)
    return values


def unreadable_journal(directory: Path) -> OSError | None:
    """Why the journal in ``directory`` gives no times although there is one; None where it can be read or is absent."""
    try:
        read_regular(directory / JOURNAL)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return error
    return None


def joined_journals(first: bytes, second: bytes) -> bytes:
    """The records of both journals, each once, in order."""
    lines = dict.fromkeys([*first.splitlines(), *second.splitlines()])
    return b"".join(line + b"\n" for line in lines if line)


def _records(journal: Path, metadata: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Records of entries that were made in this environment."""
    try:
        lines = read_regular(journal).splitlines()
    except OSError:
        return
    for line in lines:
        try:
            record = parse_json(line)
        except ValueError:
            continue  # torn by a kill in the middle of a write
        if isinstance(record, dict) and record.get("metadata") == metadata and isinstance(record.get("entries"), dict):
            yield record


def _candidates(record: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """(tactic, median) of each candidate of a search."""
    candidates = record.get("candidates")
    for candidate in candidates if isinstance(candidates, list) else ():
        if isinstance(candidate, dict):
            yield candidate.get("tactic"), candidate.get("median_us")


def _measured(record: Mapping[str, Any]) -> Measured:
    pairs = [(record.get("pick"), record.get("pick_us")), *_candidates(record)]
    medians = {json.dumps(tactic): float(time) for tactic, time in pairs if _is_time(time)}
    fallback, spread, tied = (record.get(name) for name in ("fallback_us", "spread", "tied"))
    return Measured(
        medians,
        _time_or_none(fallback),
        _time_or_none(spread),
        tied if type(tied) is int and tied > 0 else None,
    )


def _time_or_none(value: Any) -> float | None:
    return float(value) if _is_time(value) else None


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0
