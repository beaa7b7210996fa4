"""Merging: the union where files agree, an error that names both sides where they do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune_planner.cache.merge import merge_files, merged, metadata_differences
from autotune_planner.cache.v1 import Entry, V1File, read_v1, render_v1
from autotune_planner.errors import CacheFileError

H200 = Path(__file__).parents[1] / "data" / "h200"
HOT = ("cuda_graph_profile_replays", None, "l2_cache_policy", "hot")


def entry(m: int = 8, runner: str = "R", tactic: object = 3, extras: str = "(torch.bfloat16,)") -> Entry:
    return Entry(f"('op', '{runner}', (({m}, 64), (64, 32)), {extras})", runner, tactic, HOT)


def shard(*entries: Entry, gpu: str = "NVIDIA H200") -> V1File:
    return V1File({"flashinfer_version": "0.7.2", "gpu": gpu}, entries, {}, None)


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
