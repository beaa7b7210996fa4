"""Merging: the union where files agree, an error that names both sides where they do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.cache.contents import Content, Place, content_at, v1_content
from autotune_planner.cache.merge import merge, merged, metadata_differences
from autotune_planner.cache.v1 import Entry, V1File, read_v1, render_v1
from autotune_planner.errors import CacheFileError
from tests.cache.journals import record, write_journal

H200 = Path(__file__).parents[1] / "data" / "h200"
METADATA = {"flashinfer_version": "0.7.2", "gpu": "NVIDIA H200"}
HOT = ("cuda_graph_profile_replays", None, "l2_cache_policy", "hot")


def entry(m: int = 8, runner: str = "R", tactic: object = 3, extras: str = "(torch.bfloat16,)") -> Entry:
    return Entry(f"('op', '{runner}', (({m}, 64), (64, 32)), {extras})", runner, tactic, HOT)


def shard(*entries: Entry, gpu: str = "NVIDIA H200") -> V1File:
    return V1File({"flashinfer_version": "0.7.2", "gpu": gpu}, entries, {}, None)


def merge_files(files: dict[str, V1File]) -> V1File:
    return merge({name: v1_content(Place("v1", (Path(name),)), file) for name, file in files.items()}).file


def test_h200_shards_merge_into_the_whole_file() -> None:
    buckets = (1, 64, 1024, 8192)
    whole = read_v1(H200 / "shard_bucket_8192.json")
    shards = {}
    for bucket in buckets:
        file = read_v1(H200 / f"shard_bucket_{bucket}.json")
        own = tuple(item for item in file.entries if item.key.bucket == bucket)
        shards[f"shard {bucket}"] = replace(file, entries=own)
    union = merge_files(dict(reversed(shards.items())))
    rendered = render_v1(union.metadata or {}, {item.text: item for item in union.entries})
    assert rendered == (H200 / "shard_bucket_8192.json").read_bytes()
    assert merge_files({"a": whole, "b": whole}).entries == whole.entries


def test_entries_are_sorted_by_key_text_whatever_the_order_of_files() -> None:
    a, b = shard(entry(16), entry(8)), shard(entry(128), entry(8))
    assert merge_files({"a": a, "b": b}).entries == merge_files({"b": b, "a": a}).entries
    assert [item.key.bucket for item in merge_files({"a": a, "b": b}).entries] == [128, 16, 8]


def test_one_profile_under_two_extras_of_one_runner_is_two_entries() -> None:
    both = [entry(extras="(torch.bfloat16,)"), entry(extras="(torch.float16,)")]
    assert list(merged(both).values()) == both


@pytest.mark.parametrize(
    "other",
    [entry(tactic=4), entry(runner="S"), entry(runner="S", extras="()"), replace(entry(), policy=None)],
    ids=["tactic", "runner", "runner with other extras", "policy"],
)
def test_contradicting_files_are_refused_and_both_named(other: Entry) -> None:
    with pytest.raises(CacheFileError) as caught:
        merge_files({"left.json": shard(entry()), "right.json": shard(other)})
    message = caught.value.message
    assert caught.value.code == "cache-conflict"
    assert "R 3" in message
    assert "left.json" in message
    assert f"{other.runner} {other.tactic}" in message
    assert "right.json" in message
    assert other.text in message
    with pytest.raises(CacheFileError, match="two results"):
        merged([entry(), other])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda file: replace(file, metadata={**file.metadata, "gpu": "NVIDIA B200"}),
            "gpu: NVIDIA H200 and NVIDIA B200",
        ),
        (lambda file: replace(file, metadata={**file.metadata, "cudnn_version": "1"}), "cudnn_version: None and 1"),
        (lambda file: replace(file, metadata=None), "gpu: NVIDIA H200 and None"),
    ],
)
def test_files_of_different_environments_are_refused(change: Callable[[V1File], V1File], says: str) -> None:
    with pytest.raises(CacheFileError) as caught:
        merge_files({"left.json": shard(entry()), "right.json": change(shard(entry(16)))})
    assert caught.value.code == "metadata-mismatch"
    assert says in caught.value.message
    assert "left.json and right.json" in caught.value.message


def test_an_empty_stamp_is_not_an_absent_one() -> None:
    empty, absent = (V1File(stamp, (entry(),), {}, None) for stamp in ({}, None))
    with pytest.raises(CacheFileError, match="one has no stamp"):
        merge_files({"a": empty, "b": absent})


def test_different_records_are_refused() -> None:
    with pytest.raises(CacheFileError, match="_records"):
        merge_files({"a": replace(shard(), records={"ns": {"a": 1}}), "b": shard()})


def test_nothing_to_merge() -> None:
    with pytest.raises(ValueError, match="nothing"):
        merge_files({})


def test_differences_keep_the_order_of_fields() -> None:
    assert metadata_differences({"a": "1", "b": "2"}, {"c": "3", "a": "1", "b": "x"}) == {
        "b": ("2", "x"),
        "c": (None, "3"),
    }


def timed(directory: Path, item: Entry, times: dict[int, float]) -> Content:
    """A rank file of one entry with a journal beside it."""
    directory.mkdir()
    (directory / "rank.json").write_bytes(render_v1(METADATA, {item.text: item}))
    write_journal(directory, record(item, METADATA, times))
    return content_at(directory)


def test_the_measured_faster_result_stands(tmp_path: Path) -> None:
    slow = timed(tmp_path / "slow", entry(tactic=3), {3: 12.0, -1: 20.0})
    fast = timed(tmp_path / "fast", entry(tactic=4), {4: 10.0, -1: 20.0})
    for contents in ({"slow": slow, "fast": fast}, {"fast": fast, "slow": slow}):
        result = merge(contents)
        assert [item.tactic for item in result.file.entries] == [4]
        (conflict,) = result.resolved
        assert conflict.winner is not None
        assert (conflict.winner.source, conflict.winner.time_us) == ("fast", 10.0)


def test_of_two_runners_the_faster_one_stands(tmp_path: Path) -> None:
    first = timed(tmp_path / "first", entry(runner="R", tactic=3), {3: 12.0})
    second = timed(tmp_path / "second", entry(runner="S", tactic=0), {0: 11.0})
    assert [item.runner for item in merge({"first": first, "second": second}).file.entries] == ["S"]


def test_runners_of_one_profile_in_one_file_stay_side_by_side() -> None:
    """A server keeps an entry for each runner that ever won: the H200 file has 10 of cuBLAS and 10 of cuDNN."""
    path = H200 / "mm_bf16_and_bmm_fp8.json"
    whole = read_v1(path)
    result = merge({"a": content_at(path), "b": content_at(path)})
    assert result.resolved == ()
    assert {item.text: item for item in result.file.entries} == {item.text: item for item in whole.entries}
    fp8 = [item.runner for item in result.file.entries if item.key.custom_op == "fp8_gemm"]
    assert (fp8.count("CublasFp8GemmRunner"), fp8.count("CudnnFp8GemmRunner"), len(fp8)) == (10, 10, 20)
    both = shard(entry(), entry(runner="S"), entry(16))
    assert len(merge_files({"a": both, "b": shard(entry(128))}).entries) == 4


def test_one_runner_for_each_profile_is_published() -> None:
    whole = read_v1(H200 / "mm_bf16_and_bmm_fp8.json")
    with pytest.raises(CacheFileError, match="each of 10 profiles"):
        merged(whole.entries)


def test_files_that_hold_other_runners_of_one_profile_contradict_each_other() -> None:
    both, one, changed = shard(entry(), entry(runner="S")), shard(entry()), shard(entry(), entry(runner="S", tactic=4))
    for other in (one, changed):
        with pytest.raises(CacheFileError, match="two results") as caught:
            merge_files({"a": both, "b": other})
        assert caught.value.hint is not None
        assert "autotune-plan run --fresh" not in caught.value.hint


def test_a_time_on_one_side_decides_nothing(tmp_path: Path) -> None:
    known = timed(tmp_path / "known", entry(tactic=3), {3: 12.0})
    unknown = timed(tmp_path / "unknown", entry(tactic=4), {5: 10.0})
    with pytest.raises(CacheFileError, match=r"12\.00 us in known") as caught:
        merge({"known": known, "unknown": unknown})
    assert caught.value.where == "unknown"


def test_equal_results_are_no_conflict() -> None:
    same = v1_content(Place("v1", (Path("x"),)), shard(entry(8), entry(16)))
    assert merge({"a": same, "b": same}).resolved == ()


def test_forms_of_keys_are_never_mixed() -> None:
    old = Entry("('op', 'R', ((16, 64), (64, 32)))", "R", 3, None)
    with pytest.raises(CacheFileError, match="without extras") as caught:
        merge_files({"new.json": shard(entry(8)), "old.json": shard(old)})
    assert (caught.value.code, caught.value.where) == ("formats-mixed", "old.json")
    assert merge_files({"old.json": shard(old)}).entries == (old,)


def test_shards_are_the_full_runs_keys_of_their_buckets() -> None:
    buckets = (1, 64, 1024, 8192)
    full = read_v1(H200 / "cutlass_moe_bf16_run_a.json")
    union = merge_files({f"shard {bucket}": read_v1(H200 / f"shard_bucket_{bucket}.json") for bucket in buckets})
    assert {item.text for item in union.entries} == {item.text for item in full.entries if item.key.bucket in buckets}
    assert len(union.entries) == 8


results = st.dictionaries(st.sampled_from((1, 2, 4, 8)), st.integers(0, 2), min_size=1)


@given(st.lists(results, min_size=1, max_size=4))
def test_a_merge_is_the_union_or_refused(files: list[dict[int, int]]) -> None:
    shards = {f"{i}.json": shard(*(entry(m, tactic=tactic) for m, tactic in f.items())) for i, f in enumerate(files)}
    contradicting = any(a[m] != b[m] for a in files for b in files for m in a.keys() & b.keys())
    if contradicting:
        with pytest.raises(CacheFileError, match="two results"):
            merge_files(shards)
    else:
        merged_tactics = {item.key.bucket: item.tactic for item in merge_files(shards).entries}
        assert merged_tactics == {m: tactic for file in files for m, tactic in file.items()}
