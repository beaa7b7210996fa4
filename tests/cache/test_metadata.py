"""Load decisions of FlashInfer 0.7.2. Worked input 6 of the field reports, and FlashInfer itself as judge."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.cache.metadata import compare_stamp
from autotune_planner.cache.v1 import read_v1

B200 = {
    "flashinfer_version": "0.6.17",
    "cuda_version": "13.0",
    "cudnn_version": "92101",
    "cudnn_frontend_version": "1.26.0",
    "gpu": "NVIDIA B200",
}


def changed(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in {**B200, **fields}.items() if value != "(absent)"}


@pytest.mark.parametrize(
    ("saved", "field", "match", "outcome"),
    [
        (changed(), "cudnn_version", "equal", "loads"),
        (changed(cudnn_version="91900"), "cudnn_version", "hard", "stuck"),
        (changed(cudnn_version="unknown"), "cudnn_version", "soft", "healed"),
        (changed(cudnn_version="None"), "cudnn_version", "soft", "healed"),
        (changed(cudnn_version=None), "cudnn_version", "soft", "healed"),
        (changed(cudnn_version="*"), "cudnn_version", "wildcard", "loads"),
        (changed(cudnn_frontend_version="(absent)"), "cudnn_frontend_version", "soft", "healed"),
        (changed(gpu="NVIDIA H100 80GB HBM3", cudnn_version="unknown"), "gpu", "hard", "stuck"),
        # A number is not the text: FlashInfer compares what JSON gave it.
        (changed(cudnn_version=92101), "cudnn_version", "hard", "stuck"),
        (changed(cudnn_version=["92101"]), "cudnn_version", "hard", "stuck"),
        ({}, "gpu", "soft", "healed"),
    ],
)
def test_one_field(saved: dict[str, Any], field: str, match: str, outcome: str) -> None:
    found = compare_stamp(saved, B200)
    assert {item.field: item.match for item in found.fields}[field] == match
    assert found.outcome == outcome
    assert found.loads == (outcome == "loads")


def test_a_stamp_that_is_a_string_is_soft(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    path.write_text('{"_metadata": "0.7.2"}')
    found = compare_stamp(read_v1(path).metadata, B200)
    assert [item.match for item in found.fields] == ["soft"] * len(B200)
    assert found.outcome == "healed"


def test_no_stamp_at_all_loads_unchecked() -> None:
    found = compare_stamp(None, B200)
    assert (found.outcome, found.loads, found.fields) == ("unchecked", True, ())


def test_unknown_here_and_there_is_equal() -> None:
    current = {"cutlass_dsl_version": "unknown"}
    assert compare_stamp({"cutlass_dsl_version": "unknown"}, current).outcome == "loads"
    # This machine cannot tell, the writer could: definite, so it is hard.
    assert compare_stamp({"cutlass_dsl_version": "4.2.1"}, current).outcome == "stuck"


def test_fields_that_this_flashinfer_does_not_know_are_ignored() -> None:
    found = compare_stamp(changed(nccl_version="2.29.7"), B200)
    assert (found.outcome, found.ignored) == ("loads", ("nccl_version",))


def test_an_h100_file_on_an_h200_is_never_rewritten() -> None:
    h100 = read_v1(Path(__file__).parents[1] / "data" / "h200" / "cutlass_moe_bf16_run_a.json").metadata
    assert h100 is not None
    found = compare_stamp({**h100, "gpu": "NVIDIA H100 80GB HBM3"}, dict(h100))
    assert [(item.field, item.match) for item in found.fields if item.match != "equal"] == [("gpu", "hard")]
    assert found.outcome == "stuck"


VALUES = st.one_of(
    st.none(), st.sampled_from(["a", "b", "*", "unknown", "None"]), st.integers(0, 1), st.lists(st.none())
)
STAMPS = st.dictionaries(st.sampled_from(list("uvwxyz")), VALUES)
ENVIRONMENTS = st.dictionaries(st.sampled_from(list("uvwxy")), st.sampled_from(["a", "b", "unknown"]))


@given(STAMPS, ENVIRONMENTS)
def test_loads_exactly_where_every_field_is_equal_or_a_wildcard(saved: dict[str, Any], current: dict[str, str]) -> None:
    found = compare_stamp(saved, current)
    assert found.loads == all(saved.get(field) in (value, "*") for field, value in current.items())
    assert {item.field for item in found.fields} == set(current)


JUDGE = """
import json, sys
from flashinfer.autotuner import AutoTuner
from flashinfer.autotuner.autotuner import _collect_metadata
tuner, current, said = AutoTuner.get(), _collect_metadata(), []
for stamp in json.loads(sys.argv[1]):
    content = {"k": ["R", 1, ["cuda_graph_profile_replays", None, "l2_cache_policy", "hot"]]}
    if stamp != "(none)":
        content["_metadata"] = {**current, **stamp} if isinstance(stamp, dict) else stamp
    with open(sys.argv[2], "w") as file:
        json.dump(content, file)
    tuner.clear_cache()
    loaded = tuner.load_configs(sys.argv[2])
    tuner.save_configs(sys.argv[2])
    with open(sys.argv[2]) as file:
        after = json.load(file)
    said.append([loaded, after == content, content.get("_metadata", "(none)")])
print(json.dumps([current, said]))
"""


@pytest.mark.flashinfer
def test_flashinfer_decides_the_same(tmp_path: Path) -> None:
    """Loaded or not, and whether the next save rewrites the file, for every kind of stamp."""
    stamps: list[Any] = [
        {},
        {"flashinfer_version": "0.6.17"},
        {"cudnn_version": "unknown"},
        {"cudnn_version": None},
        {"cudnn_version": "*"},
        {"gpu": "*", "cudnn_version": "*"},
        {"gpu": "NVIDIA H100 80GB HBM3", "flashinfer_version": "unknown"},
        {"nccl_version": "2.29.7"},
        "0.7.2",
        12,
        "(none)",
    ]
    done = subprocess.run(
        [sys.executable, "-c", JUDGE, json.dumps(stamps), str(tmp_path / "cache.json")],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    current, said = json.loads(done.stdout.splitlines()[-1])
    for loaded, untouched, stamp in said:
        saved = None if stamp == "(none)" else stamp if isinstance(stamp, dict) else {}
        found = compare_stamp(saved, current)
        assert found.loads == loaded, stamp
        assert (found.outcome == "stuck") == untouched, stamp
