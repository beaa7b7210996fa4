"""Planted faults on the simulated device: the tactic is named and quarantined, everything else is tuned."""

import json
import time
from collections import Counter

import pytest

from autotune_planner.errors import UsageError
from autotune_planner.tuning.messages import Note, TacticQuarantined, UnitFinished, WorkerLost
from autotune_planner.tuning.planted import PlantedFault, planted_faults
from autotune_planner.tuning.pool import Watchdog
from autotune_planner.tuning.tune import Options, tune
from tests.tuning.plans import small_plan

pytestmark = pytest.mark.flashinfer

GEMM1, LINEAR = "trtllm::fused_moe::gemm1", "fp8_gemm"
QUICK = Watchdog(times=0.0, unit_floor=3.0, first_unit=60.0, tactic_floor=3.0)


def tuned_with(work_dir, *faults, strategy="race"):
    events = []
    planted = tuple(PlantedFault(*fault) for fault in faults)
    options = Options(strategy=strategy, watchdog=QUICK, planted=planted)
    tuned = tune(
        small_plan(), device="simulated", devices=1, work_dir=work_dir, observer=events.append, options=options
    )
    return tuned, events


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return tuned_with(tmp_path_factory.mktemp("undisturbed"))[0]


def picks(tuned):
    return {(result.unit.custom_op, result.unit.bucket): result.search.pick for result in tuned.results}


def test_a_tactic_that_crashes(undisturbed, tmp_path):
    best = picks(undisturbed)[GEMM1, 8]
    tuned, events = tuned_with(tmp_path, (GEMM1, best, "crash"))
    (item,) = tuned.quarantined
    assert (item.custom_op, item.runner, item.tactic, item.fault) == (GEMM1, "MoERunner", best, "crash")
    assert "SIGSEGV" in item.reason
    assert tuned.failures == ()
    assert len(tuned.entries) == 12
    assert best not in [pick for (op, _), pick in picks(tuned).items() if op == GEMM1]
    others = {place: pick for place, pick in picks(undisturbed).items() if place[0] != GEMM1}
    assert others.items() <= picks(tuned).items()
    # The race, once more, and with care: three losses for the first bucket, none for the others.
    assert sum(isinstance(event, WorkerLost) for event in events) == 3
    blocked = json.loads((tmp_path / "quarantine.json").read_text())["invalid_tactics"]
    assert blocked == {f"{GEMM1}::MoERunner": [best]}


def test_a_tactic_that_hangs(undisturbed, tmp_path):
    best = picks(undisturbed)[LINEAR, 4]
    started = time.monotonic()
    tuned, events = tuned_with(tmp_path, (LINEAR, best, "hang", 4))
    (item,) = tuned.quarantined
    assert (item.custom_op, item.tactic, item.fault, item.bucket) == (LINEAR, best, "hang", 4)
    assert "within 3 s" in item.reason
    assert len(tuned.entries) == 12
    assert picks(tuned)[LINEAR, 4] != best
    assert sum(isinstance(event, WorkerLost) for event in events) == 2
    assert time.monotonic() - started < 180


def test_a_tactic_that_runs_out_of_memory(undisturbed, tmp_path):
    best = picks(undisturbed)[GEMM1, 8]
    tuned, events = tuned_with(tmp_path, (GEMM1, best, "out of memory", 8))
    (item,) = tuned.quarantined
    assert (item.tactic, item.fault, item.bucket) == (best, "out of memory", 8)
    assert len(tuned.entries) == 12
    assert not any(isinstance(event, WorkerLost) for event in events)
    assert [event.item for event in events if isinstance(event, TacticQuarantined)] == [item]


def test_a_tactic_that_computes_nonsense(undisturbed, tmp_path):
    best = picks(undisturbed)[LINEAR, 8]
    tuned, _ = tuned_with(tmp_path, (LINEAR, best, "nan", 8))
    (item,) = tuned.quarantined
    assert (item.tactic, item.fault, item.bucket) == (best, "not finite", 8)
    assert picks(tuned)[LINEAR, 8] != best
    assert len(tuned.entries) == 12


@pytest.mark.parametrize("strategy", ["race", "stock"])
def test_a_tactic_that_flashinfer_rejects_is_only_skipped(undisturbed, tmp_path, strategy):
    best = picks(undisturbed)[LINEAR, 8]
    tuned, _ = tuned_with(tmp_path, (LINEAR, best, "error", 8), strategy=strategy)
    assert tuned.quarantined == ()
    skipped = {(r.unit.custom_op, r.unit.bucket): r.skipped for r in tuned.results if r.skipped}
    assert skipped == {(LINEAR, 8): (str(best),)}


def test_quarantine_outlives_the_run(undisturbed, tmp_path):
    best = picks(undisturbed)[GEMM1, 8]
    tuned_with(tmp_path, (GEMM1, best, "out of memory", 8))
    (tmp_path / "journal.jsonl").unlink()
    tuned, events = tuned_with(tmp_path)  # the fault is gone, its tactic stays away
    assert [item.tactic for item in tuned.quarantined] == [best]
    assert picks(tuned)[GEMM1, 8] != best
    assert not any(isinstance(event, TacticQuarantined) for event in events)


def test_flashinfers_own_blocklist_is_honoured(undisturbed, tmp_path, monkeypatch):
    best = picks(undisturbed)[GEMM1, 8]
    path = tmp_path / "blocklist.json"
    path.write_text(json.dumps({"invalid_tactics": {f"{GEMM1}::MoERunner": [best]}}))
    monkeypatch.setenv("FLASHINFER_TACTICS_BLOCKLIST", str(path))
    tuned, _ = tuned_with(tmp_path / "run")
    assert best not in [
        found.tactic for r in tuned.results if r.unit.custom_op == GEMM1 for found in r.search.candidates
    ]
    assert tuned.quarantined == ()


def test_what_was_picked_before_its_tactic_was_quarantined_is_tuned_again(undisturbed, tmp_path):
    # The pick of M = 2 and others crashes at M = 8, which comes last.
    found = picks(undisturbed)
    pick = found[GEMM1, 2]
    before = [bucket for (op, bucket), other in found.items() if op == GEMM1 and other == pick and bucket < 8]
    assert before
    tuned, events = tuned_with(tmp_path, (GEMM1, pick, "crash", 8))
    assert [item.tactic for item in tuned.quarantined] == [pick]
    assert (tuned.failures, len(tuned.entries)) == ((), 12)
    assert pick not in [other for (op, _), other in picks(tuned).items() if op == GEMM1]
    counts = Counter((event.result.unit.custom_op, event.result.unit.bucket) for event in events if finished(event))
    assert {place for place, count in counts.items() if count == 2} == {(GEMM1, bucket) for bucket in before}
    texts = [event.text for event in events if isinstance(event, Note)]
    assert any("picked what was quarantined later, and are tuned again" in text for text in texts)


def test_a_tactic_without_memory_at_one_size_keeps_its_place_at_others(undisturbed, tmp_path):
    found = picks(undisturbed)
    tuned, _ = tuned_with(tmp_path, (GEMM1, found[GEMM1, 2], "out of memory", 8))
    assert picks(tuned)[GEMM1, 2] == found[GEMM1, 2]


def finished(event):
    return isinstance(event, UnitFinished)


def test_finished_profiles_whose_tactic_is_blocked_by_now_are_tuned_again(undisturbed, tmp_path, monkeypatch):
    tuned_with(tmp_path / "run")
    best = picks(undisturbed)[GEMM1, 8]
    blocklist = tmp_path / "blocklist.json"
    blocklist.write_text(json.dumps({"invalid_tactics": {f"{GEMM1}::MoERunner": [best]}}))
    monkeypatch.setenv("FLASHINFER_TACTICS_BLOCKLIST", str(blocklist))
    tuned, events = tuned_with(tmp_path / "run")
    before = [place for place, pick in picks(undisturbed).items() if place[0] == GEMM1 and pick == best]
    again = {(event.result.unit.custom_op, event.result.unit.bucket) for event in events if finished(event)}
    assert again == set(before)
    assert tuned.resumed == 12 - len(before)
    assert best not in [pick for (op, _), pick in picks(tuned).items() if op == GEMM1]
    assert any("is blocked or in quarantine by now" in event.text for event in events if isinstance(event, Note))


def test_planted_faults_are_read_from_the_environment():
    text = '[{"custom_op": "fp8_gemm", "tactic": 3, "fault": "crash"}]'
    assert planted_faults({"AUTOTUNE_PLAN_PLANTED_FAULTS": text}) == (PlantedFault("fp8_gemm", 3, "crash"),)
    assert planted_faults({}) == ()
    for wrong in ("{", "{}", "[1]", '[{"fault": "crash"}]', '[{"custom_op": "a", "tactic": 1, "fault": "slow"}]'):
        with pytest.raises(UsageError):
            planted_faults({"AUTOTUNE_PLAN_PLANTED_FAULTS": wrong})


def test_a_default_tactic_that_crashes_is_named_and_costs_later_sizes_one_loss(undisturbed, tmp_path):
    tuned, events = tuned_with(tmp_path, (GEMM1, -1, "crash"))
    assert len(tuned.failures) == 4
    assert all(
        failure.failure.startswith("its default tactic (-1), which nothing can block") for failure in tuned.failures
    )
    assert len(tuned.entries) == 8
    # Three losses until the default is known, then one for each of the other three sizes.
    assert sum(isinstance(event, WorkerLost) for event in events) == 3 + 3
