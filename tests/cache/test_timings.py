"""Times from a journal: of the entry's own tactic and environment only, and none from a damaged one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune_planner.cache.timings import joined_journals, read_timings
from autotune_planner.cache.v1 import Entry
from tests.cache.journals import record, write_journal

METADATA = {"flashinfer_version": "0.7.2", "gpu": "NVIDIA H200"}
ENTRY = Entry("('op', 'R', ((8, 64), (64, 32)), ())", "R", 3, None)


def test_the_entrys_tactic_and_the_fallback(tmp_path: Path) -> None:
    write_journal(tmp_path, record(ENTRY, METADATA, {3: 10.0, 5: 11.0, -1: 25.0}))
    (measured,) = read_timings(tmp_path, METADATA).values()
    assert (measured.time_us(ENTRY), measured.fallback_us) == (10.0, 25.0)
    # The file was tuned again since: the time of the tactic that it holds now counts, if it was a candidate.
    assert measured.time_us(Entry(ENTRY.text, "R", 5, None)) == 11.0
    assert measured.time_us(Entry(ENTRY.text, "R", 6, None)) is None
    assert measured.time_us(Entry(ENTRY.text, "R", [3], None)) is None


def test_another_environment_has_no_say(tmp_path: Path) -> None:
    write_journal(tmp_path, record(ENTRY, {**METADATA, "gpu": "NVIDIA H100"}, {3: 10.0, -1: 25.0}))
    assert read_timings(tmp_path, METADATA) == {}
    assert read_timings(tmp_path, None) == {}


def test_the_last_record_counts(tmp_path: Path) -> None:
    write_journal(tmp_path, *(record(ENTRY, METADATA, {3: us, -1: 25.0}) for us in (10.0, 9.0)))
    assert read_timings(tmp_path, METADATA)[ENTRY.text].time_us(ENTRY) == 9.0


def test_the_stock_strategy_and_the_older_form_have_no_times(tmp_path: Path) -> None:
    stock = {**record(ENTRY, METADATA, {}), "strategy": "stock"}
    older = {"environment": "0" * 16, "unit": "u", "entries": {ENTRY.text: ENTRY.value()}, "skipped": [], "seconds": 1}
    write_journal(tmp_path, stock, older)
    assert read_timings(tmp_path, METADATA) == {}
    assert read_timings(tmp_path / "absent", METADATA) == {}


@pytest.mark.parametrize(
    "damage",
    [
        {"candidates": None},
        {"candidates": [None, {}, {"tactic": 3}, {"tactic": 3, "median_us": "fast"}, {"tactic": 3, "median_us": -1.0}]},
        {"pick_us": float("nan"), "candidates": {}},
        {"pick_us": True, "candidates": 7},
    ],
)
def test_damaged_times_are_none(tmp_path: Path, damage: dict[str, Any]) -> None:
    sound = {**record(ENTRY, METADATA, {-1: 25.0}), "pick": 3, "candidates": []}
    write_journal(tmp_path, {**sound, **damage})
    measured = read_timings(tmp_path, METADATA)[ENTRY.text]
    assert (measured.time_us(ENTRY), measured.fallback_us) == (None, 25.0)


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    path = write_journal(tmp_path, record(ENTRY, METADATA, {3: 10.0}))
    with open(path, "ab") as file:
        file.write(b'\xff{"unit": \n[]\n3\n{"entries": 3}\n{"unit": "torn')
    before = path.read_bytes()
    assert list(read_timings(tmp_path, METADATA)) == [ENTRY.text]
    assert path.read_bytes() == before


def test_journals_are_joined_line_by_line() -> None:
    header = json.dumps({"schema": "autotune-plan/journal@2"}).encode()
    assert joined_journals(header + b"\na\nb\n", header + b"\nb\nc") == header + b"\na\nb\nc\n"
    assert joined_journals(b"", b"") == b""
