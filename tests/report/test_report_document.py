"""``report@1``: states and times of every planned bucket, margins, groups of ranks, and nothing where nothing is."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import geometric_mean

import pytest

from autotune_planner.cache.sglang_layout import cache_directory
from autotune_planner.report.check_document import check_document
from autotune_planner.report.plan_document import plan_document
from autotune_planner.report.report_document import report_document
from tests.cache.checks import H200, content_of, publish, question
from tests.report.reports import report_of, times_of, tuned


def test_plan_and_check_are_those_of_their_commands(tmp_path: Path) -> None:
    report = report_of(tuned(question(tmp_path)))
    document = report_document(report)
    assert json.loads(json.dumps(document))  # whole, as JSON
    assert list(document) == ["schema", "version", "simulated", "plan", "check", "groups", "quarantined"]
    assert document["schema"] == "autotune-plan/report@1"
    place = report.checked.report.question.place
    assert document["plan"] == plan_document(report.plan, place, keys=None, explain=True)
    assert document["check"] == check_document(report.checked)
    assert document["check"]["used"]


def test_times_gains_and_margins(tmp_path: Path) -> None:
    (group,) = report_document(report_of(tuned(question(tmp_path))))["groups"]
    assert [rank["tp"] for rank in group["ranks"]] == [0, 1, 2, 3]
    assert group["fates"] == ["loads"] * 4
    assert group["metadata"] == H200
    gemm1, gemm2 = group["layers"]
    assert (gemm1["custom_op"], gemm2["custom_op"]) == ("trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2")
    assert [pick["bucket"] for pick in gemm1["picks"]] == [
        1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 8192,
    ]  # fmt: skip
    for pick in gemm1["picks"]:
        us = 10 + pick["bucket"] / 16
        assert (pick["state"], pick["runner"], pick["tactic"]) == ("tuned", "MoERunner", 3)
        assert (pick["time_us"], pick["fallback_us"]) == (us, us * 2.5)
        assert pick["gain"] == pytest.approx(2.5)
        assert (pick["runner_up"]["tactic"], pick["candidates"], pick["tied"]) == (5, 3, 2)
        assert pick["runner_up"]["behind"] == pytest.approx(0.005)
        assert pick["spread"] == 0.001
    assert [round(pick["gain"], 4) for pick in gemm2["picks"]] == [0.98] * 9 + [1.5] * 12
    # At most 256 tokens the default is the fastest of the others, 2 % ahead; above it tactic 5 is, by 0.2 %.
    assert {pick["runner_up"]["tactic"] for pick in gemm2["picks"] if pick["bucket"] <= 256} == {-1}
    assert gemm2["picks"][0]["runner_up"]["behind"] == pytest.approx(-0.02)
    assert gemm2["picks"][-1]["runner_up"]["behind"] == pytest.approx(1 / 1.002 - 1)
    assert group["buckets"] == {"tuned": 42, "default": 0, "absent": 0}
    gains = [2.5] * 21 + [0.98] * 9 + [1.5] * 12
    assert group["gain"]["measured"] == 42
    assert group["gain"]["mean"] == pytest.approx(geometric_mean(gains))
    assert (group["gain"]["least"], group["gain"]["most"]) == (pytest.approx(0.98), pytest.approx(2.5))


def test_the_roofline_is_the_data_sheets(tmp_path: Path) -> None:
    """H200: 989 dense bf16 TFLOPS, 4800 GB/s. gemm1 of 8192 tokens with top-8: 4 x 65536 x I x H operations."""
    report = report_of(tuned(question(tmp_path)))
    (use,) = report.plan.resolved.ops
    width, hidden = use.call.intermediate_size, use.call.hidden_size  # type: ignore[attr-defined]
    pick = report.groups[0].layers[0].picks[-1]
    assert pick.bucket == 8192
    assert pick.roofline_us == pytest.approx(4 * 65536 * width * hidden / 989e12 * 1e6)
    assert pick.roofline_share == pytest.approx(pick.roofline_us / (10 + 8192 / 16))
    # One token reads the weights of its 8 experts of 128, two thirds of which are gemm1's, and 4 KiB in and out.
    weights = use.call.local_experts * 3 * width * hidden * 2 * 8 / 128  # type: ignore[attr-defined]
    first = report.groups[0].layers[0].picks[0]
    assert first.roofline_us == pytest.approx(2 / 3 * (weights + 2 * 2 * hidden + 64) / 4800e9 * 1e6)


def test_without_a_journal_nothing_is_measured(tmp_path: Path) -> None:
    asked = question(tmp_path)
    publish(asked, content_of(asked))
    (group,) = report_document(report_of(asked))["groups"]
    assert group["gain"] is None
    for layer in group["layers"]:
        for pick in layer["picks"]:
            assert pick["state"] == "tuned"
            measured = ("time_us", "fallback_us", "gain", "runner_up", "candidates", "tied", "spread", "roofline_share")
            assert all(pick[name] is None for name in measured)


def test_a_journal_of_another_environment_has_no_say(tmp_path: Path) -> None:
    asked = tuned(question(tmp_path), cudnn_version="1")
    publish(asked, content_of(asked))
    assert report_document(report_of(asked))["groups"][0]["gain"] is None


def test_a_tactic_that_was_not_measured_has_no_time(tmp_path: Path) -> None:
    asked = tuned(question(tmp_path), times=lambda entry: {5: 10.0, -1: 20.0})
    pick = report_of(asked).groups[0].picks[0]
    assert (pick.tactic, pick.time_us, pick.fallback_us, pick.gain, pick.runner_up) == (3, None, 20.0, None, None)


def test_nothing_is_there(tmp_path: Path) -> None:
    document = report_document(report_of(question(tmp_path)))
    (group,) = document["groups"]
    assert group["buckets"] == {"tuned": 0, "default": 0, "absent": 42}
    assert (group["entries"], group["metadata"], group["gain"]) == (0, None, None)
    assert group["fates"] == ["absent"] * 4
    assert not document["check"]["used"]


def test_ranks_that_differ_are_shown_apart(tmp_path: Path) -> None:
    asked = tuned(question(tmp_path))
    content = content_of(asked)
    key = next(name for name in content if "gemm1" in name)
    content[key] = [content[key][0], -1, content[key][2]]
    (Path(cache_directory(asked.place)) / "rank_tp2_pp0_dp0.json").write_text(json.dumps(content))
    (Path(cache_directory(asked.place)) / "rank_tp3_pp0_dp0.json").write_text("{")
    document = report_document(report_of(asked))
    assert [[rank["tp"] for rank in group["ranks"]] for group in document["groups"]] == [[0, 1], [2], [3]]
    counts = [group["buckets"] for group in document["groups"]]
    assert counts[1] == {"tuned": 41, "default": 1, "absent": 0}
    assert counts[2] == {"tuned": 0, "default": 0, "absent": 42}


def test_entries_that_the_plan_does_not_ask_for(tmp_path: Path) -> None:
    asked = question(tmp_path)
    other = "('fp4_gemm', 'R', ((8, 64), (64, 32)), ())"
    publish(asked, {**content_of(asked), other: ["R", 1], "no key": ["R", 1]})
    (group,) = report_document(report_of(asked))["groups"]
    assert (group["entries"], group["other_entries"]) == (44, {"fp4_gemm": 1, "not a key": 1})


def test_the_quarantine_of_the_files_environment(tmp_path: Path) -> None:
    asked = tuned(question(tmp_path))
    item = {
        "custom_op": "trtllm::fused_moe::gemm1",
        "runner": "MoERunner",
        "tactic": 7,
        "fault": "hang",
        "reason": "no answer in 60 s",
        "bucket": 256,
        "shape": "E32 H2048 I768 k8",
    }
    path = Path(cache_directory(asked.place)) / ".autotune-plan" / "quarantine.json"
    path.write_text(json.dumps({"_metadata": H200, "invalid_tactics": {}, "details": [item]}))
    assert report_document(report_of(asked))["quarantined"] == [item]
    path.write_text(json.dumps({"_metadata": {**H200, "gpu": "NVIDIA H100"}, "details": [item]}))
    assert report_document(report_of(asked))["quarantined"] == []


def test_a_server_that_does_not_tune(tmp_path: Path) -> None:
    report = report_of(question(tmp_path, flags={"disable_flashinfer_autotune": True}))
    document = report_document(report)
    assert document["plan"]["no_autotune_reason"]
    assert document["groups"][0]["layers"] == []


def test_equal_caches_give_equal_documents(tmp_path: Path) -> None:
    asked = tuned(question(tmp_path), times=times_of)
    assert report_document(report_of(asked)) == report_document(report_of(asked))
