"""``merge`` from the command line: shards become the whole, contradictions a table and exit 5, and no input changes."""

import json
import shutil
from pathlib import Path

import pytest

from autotune_planner.cache.v1 import read_v1
from tests.cache.journals import record, write_journal

H200 = Path(__file__).parents[1] / "data" / "h200"
SHARDS = [H200 / f"shard_bucket_{bucket}.json" for bucket in (1, 64, 1024, 8192)]
RUN_A, RUN_B = H200 / "cutlass_moe_bf16_run_a.json", H200 / "cutlass_moe_bf16_run_b.json"


def test_shards_become_the_whole_file(cli, tmp_path):
    result = cli("merge", "-o", tmp_path / "merged.json", *SHARDS, "--json")
    assert result.code == 0
    document = {"schema": "autotune-plan/merge@1", "written": str(tmp_path / "merged.json"), "entries": 8}
    assert json.loads(result.out) == {**document, "resolved": []}
    # The last shard was written last by one and the same sequence of runs: it holds them all.
    assert (tmp_path / "merged.json").read_bytes() == SHARDS[-1].read_bytes()


def test_into_a_store_and_back(cli, tmp_path):
    assert cli("merge", "-o", tmp_path / "store", RUN_A).code == 0
    assert cli("diff", tmp_path / "store", RUN_A).code == 0
    assert cli("merge", "-o", tmp_path / "back.json", tmp_path / "store").code == 0
    assert json.loads((tmp_path / "back.json").read_text()) == json.loads(RUN_A.read_text())


def test_contradicting_runs_are_a_table_and_write_nothing(cli, tmp_path):
    out = tmp_path / "merged.json"
    result = cli("merge", "-o", out, RUN_A, RUN_B)
    assert result.code == 5
    assert "each of 9 profiles" in result.err
    raw_a, raw_b = (json.loads(path.read_text()) for path in (RUN_A, RUN_B))
    for key in raw_a:
        if not key.startswith("_") and raw_a[key] != raw_b[key]:
            lines = [key, f"  MoERunner {raw_a[key][1]} in {RUN_A}", f"  MoERunner {raw_b[key][1]} in {RUN_B}"]
            assert "\n".join(f"  {line}" for line in lines) in result.err
    assert not out.exists()


def test_journals_decide(cli, tmp_path):
    for name, run, us in (("a", RUN_A, 10.0), ("b", RUN_B, 9.0)):
        (tmp_path / name).mkdir()
        shutil.copy(run, tmp_path / name / "rank_tp0_pp0_dp0.json")
        file = read_v1(run)
        write_journal(
            tmp_path / name, *(record(entry, file.metadata, {entry.tactic: us, -1: 20.0}) for entry in file.entries)
        )
    result = cli("merge", "-o", tmp_path / "merged.json", tmp_path / "a", tmp_path / "b")
    assert result.code == 0
    assert "9 conflicts, decided by the measured times" in result.out
    assert f"of {tmp_path / 'b'} (9.00 us), rather than MoERunner 12 of {tmp_path / 'a'} (10.00 us)" in result.out
    merged, run_b = read_v1(tmp_path / "merged.json"), read_v1(RUN_B)
    assert {entry.text: entry for entry in merged.entries} == {entry.text: entry for entry in run_b.entries}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: {**content, "_metadata": {**content["_metadata"], "gpu": "NVIDIA H100"}}, "gpu: NVIDIA H200"),
        (lambda content: {"_metadata": content["_metadata"], "('op', 'R', ((1, 2),))": ["R", 0]}, "without extras"),
        (lambda content: {**content, "_records": {"ns": {}}}, "_records"),
    ],
)
def test_what_has_no_union_is_refused(cli, tmp_path, change, says):
    other, out = tmp_path / "other.json", tmp_path / "merged.json"
    other.write_text(json.dumps(change(json.loads(SHARDS[0].read_text()))))
    result = cli("merge", "-o", out, SHARDS[1], other)
    assert (result.code, says in result.err, out.exists()) == (5, True, False)


def test_an_input_is_never_the_output(cli, tmp_path):
    shutil.copy(RUN_A, tmp_path / "a.json")
    result = cli("merge", "-o", tmp_path / "a.json", tmp_path / "a.json", SHARDS[0])
    assert (result.code, "is an input too" in result.err) == (2, True)
    assert (tmp_path / "a.json").read_bytes() == RUN_A.read_bytes()


def test_a_servers_file_of_two_runners_merges(cli, tmp_path):
    fixture = H200 / "mm_bf16_and_bmm_fp8.json"
    result = cli("merge", "-o", tmp_path / "x.json", fixture)
    assert (result.code, result.err) == (0, "")
    assert json.loads((tmp_path / "x.json").read_text()) == json.loads(fixture.read_text())


@pytest.mark.parametrize("name", ["m5.txt", "m5.yaml", "m5.jsn", "m5.tar"])
def test_the_name_of_some_other_file_is_no_store(cli, tmp_path, name):
    result = cli("merge", "-o", tmp_path / name, RUN_A)
    assert (result.code, result.out, list(tmp_path.iterdir())) == (2, "", [])
    assert f"try: -o {tmp_path / 'm5.json'}, or -o {tmp_path / 'm5'}\n" in result.err


@pytest.mark.parametrize("name", ["store", "flashinfer-0.7.2", ".cache", "store.d"])
def test_directories_are_stores(cli, tmp_path, name):
    if name == "store.d":
        (tmp_path / name).mkdir()
    assert cli("merge", "-o", tmp_path / name, RUN_A).code == 0
    assert cli("diff", tmp_path / name, RUN_A).code == 0


def test_a_conflict_says_what_helps(cli, tmp_path):
    result = cli("merge", "-o", tmp_path / "x.json", RUN_A, RUN_B)
    assert "try: leave one of them out, or merge the directories that their runs wrote" in result.err


def test_a_place_that_cannot_be_written(cli, tmp_path):
    (tmp_path / "file").write_text("")
    result = cli("merge", "-o", tmp_path / "file" / "merged.json", RUN_A)
    assert (result.code, "-o OUT" in result.err) == (4, True)
