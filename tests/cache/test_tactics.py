"""Tactics that no tuner chose. Forms are those of FlashInfer 0.7.2's runners; real files hold none of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune_planner.cache.tactics import doubts_of
from autotune_planner.cache.timings import read_candidates
from autotune_planner.cache.v1 import Entry, read_v1
from tests.cache.journals import record, write_journal

H200 = sorted((Path(__file__).parents[1] / "data" / "h200").glob("*.json"))
MOE = "('trtllm::fused_moe::gemm1', 'MoERunner', ((8, 64),), ())"
TRTLLM = "('flashinfer::trtllm_bf16_moe', 'MoERunner', ((8, 64),), ())"
CUBLAS = "('fp8_gemm', 'CublasFp8GemmRunner', ((1, 8, 64),), ())"
CUDNN = "('fp8_gemm', 'CudnnFp8GemmRunner', ((1, 8, 64),), ())"
DSL = "('CuteDslMoEWrapper::run::w4a4::Swiglu', 'CuteDslFusedMoERunner', ((8, 32),), ())"
FP4 = "('fp4_gemm', 'CuteDSLFp4GemmRunner', ((8, 32),), ())"
METADATA = {"flashinfer_version": "0.7.2"}


def entry(text: str, tactic: Any) -> Entry:
    return Entry(text, text.split("'")[3], tactic, None)


@pytest.mark.parametrize("path", H200, ids=lambda path: path.stem)
def test_files_of_real_tuners_hold_none(path: Path) -> None:
    assert doubts_of(read_v1(path).entries, {}) == ()


@pytest.mark.parametrize(
    ("text", "tactic"),
    [
        (MOE, 0),
        (MOE, 38),
        (MOE, -1),
        (TRTLLM, [8, 3]),
        (TRTLLM, -1),
        (CUBLAS, 7),
        (CUDNN, [0, [[12, 0]]]),
        (CUDNN, 3),  # the old form, which is not loaded at all: a finding of its own
        (DSL, [128, [[128, 128], [1, 1], False], [[128, 128], [1, 1], False]]),
        (FP4, [[128, 64], [1, 1], True, False, "sm100", None]),
        ("no key", "a"),
    ],
)
def test_sound_forms(text: str, tactic: Any) -> None:
    assert doubts_of([Entry(text, "R", tactic, None) if text == "no key" else entry(text, tactic)], {}) == ()


@pytest.mark.parametrize("text", [MOE, TRTLLM, CUBLAS, CUDNN, DSL, FP4], ids=lambda text: text.split("'")[3])
@pytest.mark.parametrize("tactic", ["a", None, 1.5, True, {"a": 1}, -2, -38, []])
def test_what_no_runner_takes(text: str, tactic: Any) -> None:
    (doubt,) = doubts_of([entry(text, tactic)], {})
    assert doubt.entry.tactic == tactic
    assert doubt.reason


@pytest.mark.parametrize(
    ("text", "tactic", "says"),
    [
        (MOE, [8, 3], "takes a number"),
        (CUBLAS, [0, []], "takes a number"),
        (TRTLLM, 3, "takes a list of two numbers"),
        (TRTLLM, [8, 3, 1], "takes a list of two numbers"),
        (TRTLLM, [8, "3"], "takes a list of two numbers"),
        (DSL, 3, "takes a list"),
        (MOE, -2, "is negative"),
    ],
)
def test_what_this_runner_does_not_take(text: str, tactic: Any, says: str) -> None:
    (doubt,) = doubts_of([entry(text, tactic)], {})
    assert says in doubt.reason


def test_the_journal_says_what_was_measured(tmp_path: Path) -> None:
    """Three tactics were timed for the key: a fourth was never chosen by the run."""
    write_journal(tmp_path, record(entry(MOE, 38), METADATA, {38: 10.0, 12: 11.0, -1: 20.0}))
    candidates = read_candidates(tmp_path, METADATA)
    assert candidates == {MOE: {"38", "12", "-1"}}
    assert doubts_of([entry(MOE, 38), entry(MOE, 12), entry(MOE, -1), entry(CUBLAS, 4)], candidates) == ()
    (doubt,) = doubts_of([entry(MOE, 37)], candidates)
    assert "none of the 3 that the run in the journal beside it measured" in doubt.reason
    assert read_candidates(tmp_path, {"flashinfer_version": "0.7.4"}) == {}


def test_a_record_without_candidates_has_no_say(tmp_path: Path) -> None:
    write_journal(tmp_path, record(entry(MOE, 38), METADATA, {}))
    assert read_candidates(tmp_path, METADATA) == {}


def test_two_runs_that_measured_one_key(tmp_path: Path) -> None:
    write_journal(
        tmp_path,
        record(entry(MOE, 38), METADATA, {38: 10.0}),
        record(entry(MOE, 12), METADATA, {12: 11.0}),
        {"metadata": METADATA, "entries": {MOE: None, CUBLAS: ["R"]}, "candidates": [{"tactic": [1]}, 3]},
    )
    assert {
        text: sorted(map(json.loads, found), key=str) for text, found in read_candidates(tmp_path, METADATA).items()
    } == {
        MOE: [12, 38, [1]],
        CUBLAS: [[1]],
    }
