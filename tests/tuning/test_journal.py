"""What a killed run had finished is found again; what does not belong is not."""

import json

import pytest

from autotune_planner.tuning.journal import Journal, environment_id
from autotune_planner.tuning.messages import Candidate, Search, UnitResult
from tests.tuning.plans import small_plan

HERE = {"flashinfer_version": "0.7.2", "gpu": "NVIDIA H200"}


@pytest.fixture
def units():
    return small_plan().units


def result(unit, failure=None):
    entries = {} if failure else {f"key of {unit.bucket}": ["MoERunner", 3, ["hot"]]}
    return UnitResult(unit, entries, ("7",), 0.5, None, failure)


def test_finished_units_come_back(tmp_path, units):
    journal = Journal(tmp_path / "journal.jsonl", HERE, "race")
    for unit in units[:3]:
        journal.append(result(unit))
    found = Journal(tmp_path / "journal.jsonl", HERE, "race").finished(units)
    assert set(found) == set(units[:3])
    assert found[units[0]] == result(units[0])


def test_failures_are_tried_again(tmp_path, units):
    journal = Journal(tmp_path / "journal.jsonl", HERE, "race")
    journal.append(result(units[0], failure="OutOfMemoryError"))
    assert journal.finished(units) == {}


def test_another_environment_shares_nothing(tmp_path, units):
    Journal(tmp_path / "journal.jsonl", HERE, "race").append(result(units[0]))
    there = {**HERE, "gpu": "NVIDIA H100"}
    assert environment_id(HERE) != environment_id(there)
    assert Journal(tmp_path / "journal.jsonl", there, "race").finished(units) == {}


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_torn_line_loses_only_itself(tmp_path, units, cut):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, HERE, "race")
    for unit in units[:2]:
        journal.append(result(unit))
    path.write_bytes(path.read_bytes()[:-cut])
    journal.append(result(units[2]))
    found = journal.finished(units)
    assert set(found) >= {units[0], units[2]}
    assert (units[1] in found) is (cut == 1)  # cut 1: only the newline is missing, the record is whole


def test_fresh_forgets(tmp_path, units):
    journal = Journal(tmp_path / "journal.jsonl", HERE, "race")
    journal.append(result(units[0]))
    journal.clear()
    journal.clear()
    assert journal.finished(units) == {}


def test_the_first_line_names_the_schema(tmp_path, units):
    path = tmp_path / "journal.jsonl"
    Journal(path, HERE, "race").append(result(units[0]))
    assert json.loads(path.read_text().splitlines()[0]) == {"schema": "autotune-plan/journal@2"}


DAMAGES = {
    "a candidate without a time": {"candidates": [{"tactic": 1}]},
    "no candidates": {"candidates": None},
    "candidates of another kind": {"candidates": [5]},
    "skipped of another kind": {"skipped": 5},
    "entries of another kind": {"entries": [1]},
    "no entries": {"entries": {}},
    "another tactic than the pick": {"entries": {"('op', 'Runner', (), ())": ["Runner", 99999, None]}},
    "a time of another kind": {"seconds": "long"},
    "a unit of another kind": {"unit": ["fp8_gemm"]},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_record_that_somebody_damaged_is_not_there(tmp_path, units, damage):
    unit, other = units[:2]
    search = Search("race", 3, (Candidate(3, 10.0), Candidate(-1, 20.0)), 0.001, 1, 50)
    entries = {"('op', 'Runner', (), ())": ["Runner", 3, None]}
    journal = Journal(tmp_path / "journal.jsonl", HERE, "race")
    for each in (unit, other):
        journal.append(UnitResult(each, entries, (), 1.0, None, search=search))
    header, first, second = journal.path.read_text().splitlines()
    journal.path.write_text("\n".join((header, json.dumps(json.loads(first) | DAMAGES[damage]), second)) + "\n")
    assert list(journal.finished(units)) == [other]
