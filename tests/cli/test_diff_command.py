"""``diff`` from the command line: exit 5 for every single thing that differs, 0 for none, whole output compared."""

import json
import shutil
from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data"
H200 = DATA / "h200"
RUN_A, RUN_B = H200 / "cutlass_moe_bf16_run_a.json", H200 / "cutlass_moe_bf16_run_b.json"


def test_whole_output_of_two_runs(cli, monkeypatch):
    monkeypatch.chdir(H200)
    result = cli("diff", RUN_A.name, RUN_B.name)
    assert (result.code, result.err) == (5, "")
    assert result.out == (DATA / "golden" / "diff_cutlass_moe_bf16_runs.txt").read_text()


def test_the_document(cli):
    result = cli("diff", RUN_A, RUN_B, "--json")
    document = json.loads(result.out)
    raw_a, raw_b = (json.loads(path.read_text()) for path in (RUN_A, RUN_B))
    flipped = [key for key in raw_a if not key.startswith("_") and raw_a[key] != raw_b[key]]
    assert (result.code, document["schema"]) == (5, "autotune-plan/diff@1")
    assert (document["equal_keys"], [flip["key"] for flip in document["flips"]]) == (42, flipped)
    assert len(flipped) == 9
    for flip in document["flips"]:
        for side, raw in (("a", raw_a), ("b", raw_b)):
            assert flip[side] == {"runner": "MoERunner", "tactic": raw[flip["key"]][1], "time_us": None}
    assert (document["only_in_a"], document["only_in_b"]) == ([], [])
    assert (document["policies"], document["metadata"], document["notes"]) == ([], [], [])


def key_of(content):
    return next(key for key in content if not key.startswith("_"))


def renamed(content):
    key = key_of(content)
    return {(other.replace("128", "64") if other == key else other): value for other, value in content.items()}


def revalued(index, value):
    def change(content):
        key = key_of(content)
        return {**content, key: [*content[key][:index], value, *content[key][index + 1 :]]}

    return change


BREAKS = {
    "a key field": renamed,
    "a tactic": revalued(1, 99),
    "a policy": revalued(2, ["cuda_graph_profile_replays", 1, "l2_cache_policy", "cold"]),
    "a metadata field": lambda content: {**content, "_metadata": {**content["_metadata"], "cudnn_version": "92101"}},
}


@pytest.mark.parametrize("change", BREAKS.values(), ids=BREAKS)
def test_one_broken_thing_exits_5(cli, tmp_path, change):
    other = tmp_path / "other.json"
    other.write_text(json.dumps(change(json.loads(RUN_A.read_text()))))
    assert cli("diff", RUN_A, other).code == 5
    shutil.copy(RUN_A, other)
    same = cli("diff", RUN_A, other)
    assert (same.code, "No difference: 42 keys" in same.out) == (0, True)


def ranks(tmp_path, **files):
    for name, source in files.items():
        shutil.copy(source, tmp_path / f"rank_{name}.json")
    return tmp_path


def test_tensor_parallel_ranks_that_differ(cli, tmp_path):
    result = cli("diff", "--ranks", ranks(tmp_path, tp0_pp0_dp0=RUN_A, tp1_pp0_dp0=RUN_B))
    assert result.code == 5
    assert "a: rank_tp0_pp0_dp0.json, b: rank_tp1_pp0_dp0.json: the server deletes the files of all ranks" in result.out
    assert "42 equal keys, 9 flips" in result.out


def test_pipeline_stages_may_differ(cli, tmp_path):
    stages = {f"tp{tp}_pp{pp}_dp0": run for tp in (0, 1) for pp, run in ((0, RUN_A), (1, RUN_B))}
    directory = ranks(tmp_path, **stages)
    assert len(list(directory.iterdir())) == 4
    result = cli("diff", "--ranks", directory, "--json")
    document = json.loads(result.out)
    assert (result.code, document["failed"]) == (0, False)
    (found,) = document["ranks"]
    assert (found["error"], len(found["flips"])) == (False, 9)


def test_the_ranks_of_a_deployment(cli, deployment, tmp_path):
    file = deployment(parallel="{tp: 4}")
    directory = Path(cli("show", file, "--cache-dir", tmp_path).err.split("error: ")[1].split(": no rank")[0])
    directory.mkdir(parents=True)
    ranks(directory, tp0_pp0_dp0=RUN_A, tp1_pp0_dp0=RUN_A, tp2_pp0_dp0=RUN_A)
    result = cli("diff", "--ranks", file, "--cache-dir", tmp_path)
    assert (result.code, "missing: rank_tp3_pp0_dp0.json" in result.out) == (5, True)
    ranks(directory, tp3_pp0_dp0=RUN_A)
    assert cli("diff", "--ranks", file, "--cache-dir", tmp_path).code == 0


def test_a_directory_of_differing_ranks_has_to_be_narrowed(cli, tmp_path):
    result = cli("diff", ranks(tmp_path, tp0_pp0_dp0=RUN_A, tp1_pp0_dp0=RUN_B), RUN_A)
    assert result.code == 2
    assert "rank_tp0_pp0_dp0.json" in result.err


@pytest.mark.parametrize("arguments", [(), (RUN_A,), (RUN_A, "--ranks", H200)])
def test_wrong_usage(cli, arguments):
    assert cli("diff", *arguments).code == 2


def test_a_damaged_side_exits_5_and_says_which(cli, tmp_path):
    damaged = tmp_path / "damaged.json"
    damaged.write_bytes(RUN_A.read_bytes()[:900])
    result = cli("diff", RUN_A, damaged)
    assert (result.code, str(damaged) in result.err, result.out) == (5, True, "")
