"""Differences of two caches: real pairs, one thing broken at a time, and the ranks of a deployment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.cache.contents import Content, Place, content_at, places_at, v1_content
from autotune_planner.cache.diff import RankReport, diff, diff_ranks
from autotune_planner.cache.sglang_layout import rank_file_name
from autotune_planner.cache.v1 import Entry, V1File, read_v1, render_v1
from autotune_planner.cache.v2 import render_v2
from autotune_planner.engines.resolved import Rank
from tests.cache.journals import record, write_journal

H200 = Path(__file__).parents[1] / "data" / "h200"
RUN_A, RUN_B = H200 / "cutlass_moe_bf16_run_a.json", H200 / "cutlass_moe_bf16_run_b.json"
HOT = ("cuda_graph_profile_replays", None, "l2_cache_policy", "hot")
METADATA = {"flashinfer_version": "0.7.2", "gpu": "NVIDIA H200"}
ENTRIES = tuple(Entry(f"('op', 'R', (({m}, 64), (64, 32)), (torch.bfloat16,))", "R", m, HOT) for m in (1, 2, 4))


def content(*entries: Entry, metadata: dict[str, Any] | None = METADATA, **more: Any) -> Content:
    return v1_content(Place("v1", (Path("cache.json"),)), V1File(metadata, entries, more.get("records", {}), None))


def test_two_runs_on_one_gpu() -> None:
    raw_a, raw_b = (json.loads(path.read_text()) for path in (RUN_A, RUN_B))
    keys = [key for key in raw_a if not key.startswith("_")]
    flipped = [key for key in keys if raw_a[key][1] != raw_b[key][1]]
    found = diff(content_at(RUN_A), content_at(RUN_B))
    assert (found.equal_keys, len(found.flips)) == (42, 9)
    assert [pair.key for pair in found.flips] == flipped
    assert [(pair.a.tactic, pair.b.tactic) for pair in found.flips] == [(raw_a[k][1], raw_b[k][1]) for k in flipped]
    assert (found.only_in_a, found.only_in_b, found.policies, dict(found.metadata), found.notes) == ((), (), (), {}, ())
    assert not found.empty


def test_a_cache_and_itself() -> None:
    found = diff(content_at(RUN_A), content_at(RUN_A))
    assert found.empty
    assert found.equal_keys == 42


def test_a_file_and_a_store_of_the_same_entries(tmp_path: Path) -> None:
    file = read_v1(RUN_A)
    for name, data in render_v2(file.metadata, {entry.text: entry for entry in file.entries}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert diff(content_at(RUN_A), content_at(tmp_path)).empty


BREAKS: dict[str, tuple[Content, Callable[[Any], bool]]] = {
    "a key field": (
        content(replace(ENTRIES[0], text=ENTRIES[0].text.replace("bfloat16", "float16")), *ENTRIES[1:]),
        lambda found: (len(found.only_in_a), len(found.only_in_b), found.equal_keys) == (1, 1, 2),
    ),
    "an entry less": (content(*ENTRIES[1:]), lambda found: found.only_in_a == ENTRIES[:1]),
    "an entry more": (
        content(*ENTRIES, replace(ENTRIES[0], text=ENTRIES[0].text.replace("(1, ", "(8, "))),
        lambda found: len(found.only_in_b) == 1,
    ),
    "a tactic": (
        content(replace(ENTRIES[0], tactic=9), *ENTRIES[1:]),
        lambda found: [(pair.a.tactic, pair.b.tactic) for pair in found.flips] == [(1, 9)],
    ),
    "a runner": (content(replace(ENTRIES[0], runner="S"), *ENTRIES[1:]), lambda found: len(found.flips) == 1),
    "a policy": (
        content(replace(ENTRIES[0], policy=(*HOT[:1], 1, *HOT[2:])), *ENTRIES[1:]),
        lambda found: len(found.policies) == 1 and not found.flips,
    ),
    "no policy": (content(replace(ENTRIES[0], policy=None), *ENTRIES[1:]), lambda found: len(found.policies) == 1),
    "a metadata field": (
        content(*ENTRIES, metadata={**METADATA, "gpu": "NVIDIA H100"}),
        lambda found: dict(found.metadata) == {"gpu": ("NVIDIA H200", "NVIDIA H100")},
    ),
    "no stamp": (content(*ENTRIES, metadata=None), lambda found: found.notes == ("b has no environment stamp",)),
    "records": (content(*ENTRIES, records={"ns": {}}), lambda found: found.notes == ("their _records differ",)),
}


@pytest.mark.parametrize(("other", "holds"), BREAKS.values(), ids=BREAKS)
def test_one_broken_thing_is_found(other: Content, holds: Callable[[Any], bool]) -> None:
    found = diff(content(*ENTRIES), other)
    assert not found.empty
    assert holds(found)


def test_times_of_both_sides(tmp_path: Path) -> None:
    for name, tactic, times in (("a", 1, {1: 10.0, 9: 12.0, -1: 20.0}), ("b", 9, {9: 8.0})):
        entry = replace(ENTRIES[0], tactic=tactic)
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank.json").write_bytes(render_v1(METADATA, {entry.text: entry}))
        write_journal(tmp_path / name, record(entry, METADATA, times))
    (flip,) = diff(content_at(tmp_path / "a"), content_at(tmp_path / "b")).flips
    assert (flip.a_us, flip.b_us) == (10.0, 8.0)


caches = st.dictionaries(st.integers(1, 8), st.tuples(st.integers(-1, 3), st.sampled_from([HOT, None])), max_size=6)


@given(caches, caches)
def test_nothing_is_lost(a: dict[int, Any], b: dict[int, Any]) -> None:
    def built(cache: dict[int, Any]) -> Content:
        return content(*(Entry(f"('op', 'R', (({m}, 64),), ())", "R", *value) for m, value in cache.items()))

    found = diff(built(a), built(b))
    assert found.equal_keys == len(a.keys() & b.keys())
    assert (len(found.only_in_a), len(found.only_in_b)) == (len(a.keys() - b.keys()), len(b.keys() - a.keys()))
    assert len(found.flips) == sum(a[m][0] != b[m][0] for m in a.keys() & b.keys())
    assert len(found.policies) == sum(a[m][1] != b[m][1] for m in a.keys() & b.keys())
    assert found.empty == (a == b)


def ranks(directory: Path, **files: Path) -> RankReport:
    for name, source in files.items():
        shutil.copy(source, directory / f"rank_{name}.json")
    return diff_ranks([], places_at(directory))


def test_equal_ranks(tmp_path: Path) -> None:
    report = ranks(tmp_path, tp0_pp0_dp0=RUN_A, tp1_pp0_dp0=RUN_A)
    assert (len(report.files), report.differences, report.failed) == (2, (), False)


def test_tensor_parallel_ranks_that_differ_fail(tmp_path: Path) -> None:
    report = ranks(tmp_path, tp0_pp0_dp0=RUN_A, tp1_pp0_dp0=RUN_A, tp2_pp0_dp0=RUN_B)
    (found,) = report.differences
    assert (found.a.name, found.b.name, found.error) == ("rank_tp0_pp0_dp0.json", "rank_tp2_pp0_dp0.json", True)
    assert len(found.difference.flips) == 9
    assert report.failed


def test_pipeline_stages_may_differ(tmp_path: Path) -> None:
    mm = H200 / "mm_bf16.json"
    report = ranks(tmp_path, tp0_pp0_dp0=RUN_A, tp1_pp0_dp0=RUN_A, tp0_pp1_dp0=mm, tp1_pp1_dp0=mm)
    (found,) = report.differences
    assert (found.a.name, found.b.name, found.error) == ("rank_tp0_pp0_dp0.json", "rank_tp0_pp1_dp0.json", False)
    assert not report.failed
    assert ranks(tmp_path, tp1_pp1_dp0=RUN_B).failed


def test_tp2_pp2_has_four_files() -> None:
    names = {rank_file_name(Rank(tp, pp, 0)) for tp in (0, 1) for pp in (0, 1)}
    assert names == {f"rank_tp{tp}_pp{pp}_dp0.json" for tp in (0, 1) for pp in (0, 1)}


def test_a_missing_rank_fails(tmp_path: Path) -> None:
    shutil.copy(RUN_A, tmp_path / "rank_tp0_pp0_dp0.json")
    expected = [tmp_path / f"rank_tp{rank}_pp0_dp0.json" for rank in range(2)]
    report = diff_ranks(expected, places_at(tmp_path))
    assert (report.missing, report.failed) == ((expected[1],), True)


def test_what_the_server_digests_is_the_json(tmp_path: Path) -> None:
    raw = json.loads(RUN_A.read_text())
    shutil.copy(RUN_A, tmp_path / "rank_tp0_pp0_dp0.json")
    other = tmp_path / "rank_tp1_pp0_dp0.json"
    other.write_text(json.dumps(dict(reversed(raw.items()))))  # other bytes, the same object
    assert diff_ranks([], places_at(tmp_path)).differences == ()
    other.write_text(json.dumps({**raw, "_generation": "0"}))
    report = diff_ranks([], places_at(tmp_path))
    assert report.failed
    assert report.differences[0].difference.notes == ("parts that are no entries differ, such as _generation",)
