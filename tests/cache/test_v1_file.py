"""v1 files: every form that FlashInfer reads, typed errors for the rest, FlashInfer itself as judge of our bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune_planner.cache.v1 import Entry, read_v1, render_v1
from autotune_planner.errors import CacheFileError, ExitCode, UsageError

H200 = sorted((Path(__file__).parents[1] / "data" / "h200").glob("*.json"))
KEY = "('op', 'R', ((8, 64), (64, 32)), (torch.bfloat16,))"
HOT = ("cuda_graph_profile_replays", None, "l2_cache_policy", "hot")
METADATA = {"flashinfer_version": "0.7.2", "gpu": "NVIDIA H200"}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize("path", H200, ids=lambda path: path.stem)
def test_h200_file_is_read_and_written_back_identically(path: Path) -> None:
    file = read_v1(path)
    raw = json.loads(path.read_text())
    assert file.metadata == raw["_metadata"]
    assert file.generation == raw["_generation"]
    assert [entry.text for entry in file.entries] == [key for key in raw if not key.startswith("_")]
    for entry in file.entries:
        assert str(entry.key) == entry.text
        assert entry.runner == entry.key.runner
        assert entry.policy is not None
        assert entry.policy[3] in ("hot", "cold")
    assert render_v1(file.metadata, {entry.text: entry for entry in file.entries}) == path.read_bytes()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["R", 3], Entry(KEY, "R", 3, None)),
        (["R", -1, list(HOT)], Entry(KEY, "R", -1, HOT)),
        (["R", [0, [[12, 0]]], list(HOT), {"selection": 1}], Entry(KEY, "R", [0, [[12, 0]]], HOT)),
        (["R", 3, None], Entry(KEY, "R", 3, None)),
    ],
)
def test_values_of_every_release(tmp_path: Path, value: list[Any], expected: Entry) -> None:
    file = read_v1(write(tmp_path / "cache.json", {KEY: value}))
    assert file.entries == (expected,)
    assert file.metadata is None


def test_records_and_notes_are_not_entries(tmp_path: Path) -> None:
    content = {"_metadata": METADATA, "_records": {"ns": {"a": 1}}, "_last_updated_by": {"gpu": "x"}, KEY: ["R", 1]}
    file = read_v1(write(tmp_path / "cache.json", content))
    assert file.records == {"ns": {"a": 1}}
    assert [entry.text for entry in file.entries] == [KEY]


def test_a_stamp_that_is_no_object_is_a_stamp_without_fields(tmp_path: Path) -> None:
    assert read_v1(write(tmp_path / "cache.json", {"_metadata": "0.7.2"})).metadata == {}


@pytest.mark.parametrize(
    ("content", "says", "position"),
    [
        ("", "empty", ""),
        (" \n", "empty", ""),
        ('{\n  "a": [1,\n}', "not JSON", ":3:1"),
        ("[1, 2]", "a list", ""),
        ("null", "null", ""),
        ("12", "a number", ""),
        ('"text"', "a string", ""),
        ("9" * 5000, "not JSON", ""),
        ("[" * 100_000, "JSON", ""),
        ({KEY: "R"}, KEY, ""),
        ({KEY: ["R"]}, KEY, ""),
        ({KEY: [3, "R"]}, KEY, ""),
        ({KEY: {"runner": "R"}}, KEY, ""),
        ({"_records": [1]}, "_records", ""),
    ],
)
def test_a_damaged_file_is_explained(tmp_path: Path, content: Any, says: str, position: str) -> None:
    path = write(tmp_path / "cache.json", content)
    with pytest.raises(CacheFileError, match="cache file") as caught:
        read_v1(path)
    assert says in caught.value.message
    assert caught.value.where == f"{path}{position}"
    assert caught.value.exit_code == ExitCode.DIFFERENCE
    assert caught.value.hint


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CacheFileError, match="cannot be read"):
        read_v1(path)


@pytest.mark.parametrize(("name", "code"), [("absent.json", "no-such-file"), ("", "is-a-directory")])
def test_no_file(tmp_path: Path, name: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_v1(tmp_path / name)
    assert caught.value.code == code


def test_rendered_file_reads_back(tmp_path: Path) -> None:
    entry = Entry(KEY, "R", [0, []], HOT)
    path = tmp_path / "cache.json"
    path.write_bytes(render_v1(METADATA, {KEY: entry}, {"ns": {"b": 1, "a": [2]}}))
    file = read_v1(path)
    assert (file.metadata, file.entries, file.records) == (METADATA, (entry,), {"ns": {"b": 1, "a": [2]}})


RESAVE = """
import json, sys
from flashinfer.autotuner import AutoTuner
from flashinfer.autotuner.autotuner import _collect_metadata
tuner = AutoTuner.get()
if sys.argv[1] == "metadata":
    print(json.dumps(_collect_metadata()))
else:
    assert tuner.load_configs(sys.argv[2])
    tuner.save_configs(sys.argv[3])
"""


def flashinfer(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", RESAVE, *arguments], capture_output=True, text=True, check=True, timeout=300
    )
    return done.stdout


@pytest.mark.flashinfer
def test_flashinfer_loads_our_file_and_saves_the_same_bytes(tmp_path: Path) -> None:
    metadata = json.loads(flashinfer("metadata").splitlines()[-1])
    entries = {entry.text: entry for path in H200 for entry in read_v1(path).entries}
    entries[KEY] = Entry(KEY, "R", -1, None)
    ours, theirs = tmp_path / "ours.json", tmp_path / "theirs.json"
    ours.write_bytes(render_v1(metadata, entries, {"ns": {"b": 1, "a": [2, None]}}))
    flashinfer("resave", str(ours), str(theirs))
    assert theirs.read_bytes() == ours.read_bytes()
    before = ours.read_bytes()
    flashinfer("resave", str(ours), str(ours))
    assert ours.read_bytes() == before
