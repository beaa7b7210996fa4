"""``show`` from the command line: what it takes, and what it says when it cannot."""

import csv
import io
import json
import re
import shutil
from pathlib import Path

from autotune_planner.cache.v1 import read_v1
from autotune_planner.cache.v2 import render_v2
from tests.cache.journals import record, write_journal

DATA = Path(__file__).parents[1] / "data" / "h200"
GOLDEN = DATA.parent / "golden"


def test_a_file_as_json(cli):
    result = cli("show", DATA / "published_qwen3-30b-h200-tp1.json", "--json")
    document = json.loads(result.out)
    assert (result.code, document["schema"], document["format"]) == (0, "autotune-plan/cache@1", "v1")
    assert len(document["entries"]) == 42
    first = document["entries"][0]
    assert first["runner"] == "MoERunner"
    assert first["policy"] == {"cuda_graph_profile_replays": None, "l2_cache_policy": "hot"}
    assert first["time_us"] is None


def test_the_directory_above_the_rank_files_points_to_them(cli, tmp_path):
    deep = tmp_path / "flashinfer" / "autotune" / "0.7.2" / "sm90" / "0123456789abcdef"
    deep.mkdir(parents=True)
    shutil.copy(DATA / "published_qwen3-30b-h200-tp1.json", deep / "rank_tp0_pp0_dp0.json")
    result = cli("show", tmp_path)
    assert result.code == 2
    assert f"autotune-plan show {deep}" in result.err
    assert cli("show", deep).code == 0


def test_differing_rank_files_are_shown_each_with_a_warning(cli, tmp_path):
    for name, source in (
        ("rank_tp0_pp0_dp0", "cutlass_moe_bf16_run_a"),
        ("rank_tp1_pp0_dp0", "cutlass_moe_bf16_run_b"),
    ):
        shutil.copy(DATA / f"{source}.json", tmp_path / f"{name}.json")
    result = cli("show", tmp_path)
    assert result.code == 0
    assert "2 different contents" in result.err
    assert result.out.count("trtllm::fused_moe::gemm1") == 2


def test_a_damaged_file_exits_5_and_says_where(cli, tmp_path):
    damaged = tmp_path / "rank_tp0_pp0_dp0.json"
    damaged.write_text((DATA / "mm_bf16.json").read_text()[:500])
    result = cli("show", damaged)
    assert result.code == 5
    assert str(damaged) in result.err
    assert result.out == ""


def journaled(tmp_path, times=lambda entry: {entry.tactic: 10.0, -1: 20.0}):
    """A rank file of a real run, with a journal beside it. ``times``: medians in microseconds by tactic."""
    path = tmp_path / "rank_tp0_pp0_dp0.json"
    shutil.copy(DATA / "cutlass_moe_bf16_run_a.json", path)
    file = read_v1(path)
    write_journal(tmp_path, *(record(entry, file.metadata, times(entry)) for entry in file.entries))
    return path


def test_time_and_gain_of_a_journal_beside_the_file(cli, tmp_path):
    path = journaled(tmp_path)
    result = cli("show", path, "--op", "gemm1", "--bucket", "1024")
    assert result.code == 0
    assert result.out.splitlines()[-2:] == [
        "bucket   runner      tactic   policy             time       gain",
        "  1024   MoERunner   12       hot L2, no graph   10.00 us   2.00x",
    ]
    document = json.loads(cli("show", path, "--json").out)
    assert {(entry["time_us"], entry["fallback_us"]) for entry in document["entries"]} == {(10.0, 20.0)}


def test_a_journal_of_another_environment_gives_no_times(cli, tmp_path):
    path = journaled(tmp_path)
    content = json.loads(path.read_text())
    content["_metadata"]["cudnn_version"] = "92101"
    path.write_text(json.dumps(content))
    assert "gain" not in cli("show", path).out


def test_csv(cli, tmp_path):
    result = cli("show", journaled(tmp_path), "--csv", "--bucket", "1024", "--bucket", "1")
    rows = list(csv.DictReader(io.StringIO(result.out)))
    raw = json.loads((DATA / "cutlass_moe_bf16_run_a.json").read_text())
    assert [(row["custom_op"], row["bucket"]) for row in rows] == [
        (f"trtllm::fused_moe::gemm{gemm}", bucket) for gemm in (1, 2) for bucket in ("1", "1024")
    ]
    assert [json.loads(row["tactic"]) for row in rows] == [raw[row["key"]][1] for row in rows]
    assert {(row["time_us"], row["fallback_us"], row["gain"]) for row in rows} == {("10.0", "20.0", "2.0")}


def test_a_heat_map_in_a_terminal(cli, tmp_path, monkeypatch):
    # 20 us by default: 8 us is 2.50 times faster, 25 us is 0.80; the largest bucket has no time.
    def times(entry):
        bucket = entry.key.bucket
        return {} if bucket == 8192 else {entry.tactic: 25.0 if bucket == 1 else 8.0, -1: 20.0}

    path = journaled(tmp_path, times)
    assert "Times faster" not in cli("show", path).out  # a pipe
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", cli("show", path).out).splitlines()
    first = lines.index("  bucket     [1]     [2]")
    assert lines[first + 1] == "       1   0.80x   0.80x"
    assert lines[first + 2] == "       2   2.50x   2.50x"
    assert lines[first + 21] == "    8192   tuned   tuned"
    assert lines[first + 22].startswith("  [1] trtllm::fused_moe::gemm1  Mx2048")


def test_one_rank_of_several(cli, tmp_path):
    for name, run in (("tp0_pp0_dp0", "a"), ("tp1_pp0_dp1", "a"), ("tp10_pp0_dp2", "b")):
        shutil.copy(DATA / f"cutlass_moe_bf16_run_{run}.json", tmp_path / f"rank_{name}.json")
    for rank, file in (("1", "tp1_pp0_dp1"), ("tp10", "tp10_pp0_dp2"), ("dp2", "tp10_pp0_dp2")):
        result = cli("show", tmp_path, "--rank", rank, "--json")
        assert json.loads(result.out)["path"] == str(tmp_path / f"rank_{file}.json")
    absent = cli("show", tmp_path, "--rank", "tp2")
    assert (absent.code, "rank_tp10_pp0_dp2.json" in absent.err) == (2, True)
    assert cli("show", tmp_path, "--rank", "second").code == 2


def test_nothing_of_an_op_names_the_ops(cli):
    result = cli("show", DATA / "mm_bf16_and_bmm_fp8.json", "--op", "moe")
    assert result.code == 2
    assert "try: --op bf16_gemm; ops here: bf16_gemm, fp8_gemm" in result.err
    assert cli("show", DATA / "mm_bf16.json", "--json", "--csv").code == 2


def test_nothing_of_a_bucket_names_the_buckets_of_the_op(cli):
    """The H200 file has 10 buckets: powers of two up to 512."""
    for options in (("--op", "fp8"), ()):
        result = cli("show", DATA / "mm_bf16_and_bmm_fp8.json", "--bucket", "65", *options)
        assert (result.code, result.out) == (2, "")
        assert "try: --bucket 1; buckets here: 1 2 4 8 16 32 64 128 256 512\n" in result.err


def test_an_unreadable_journal_is_said(cli, tmp_path, unreadable):
    path = journaled(tmp_path)
    assert cli("show", path).err == ""
    unreadable(tmp_path / ".autotune-plan" / "journal.jsonl")
    for form in ((), ("--json",), ("--csv",)):
        result = cli("show", path, *form)
        assert result.code == 0
        assert result.err == (
            f"note: without times and gains, since {tmp_path}/.autotune-plan/journal.jsonl cannot be read: "
            "Permission denied\n"
        )
        assert "20.0" not in result.out


def store(tmp_path):
    file = read_v1(DATA / "cutlass_moe_bf16_run_b.json")
    for name, content in render_v2(file.metadata, {entry.text: entry for entry in file.entries}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return next((tmp_path / "v2").iterdir())


def test_a_v2_store_shows_the_same_tables(cli, tmp_path):
    environment = store(tmp_path)
    golden = (GOLDEN / "show_cutlass_moe_bf16_run_b.txt").read_text()
    result = cli("show", tmp_path)
    tables = golden.index("trtllm::fused_moe::gemm1")
    assert result.out[result.out.index("trtllm::fused_moe::gemm1") :] == golden[tables:]
    assert result.out.splitlines()[0] == str(environment)
    document = json.loads(cli("show", tmp_path, "--json").out)
    assert (document["format"], len(document["entries"]), document["misses"]) == ("v2", 42, [])


def test_a_damaged_entry_of_a_store_is_named(cli, tmp_path):
    entry = next((store(tmp_path) / "entries").iterdir())
    entry.write_text("{")
    result = cli("show", tmp_path)
    assert result.code == 0
    assert "1 file serves nothing" in result.out
    assert entry.name in result.out
    assert len(json.loads(cli("show", tmp_path, "--json").out)["entries"]) == 41


def test_a_deployment_file_is_the_place_that_its_server_looks_in(cli, deployment, tmp_path):
    file = deployment(parallel="{tp: 2, pp: 2}")
    absent = cli("show", file, "--cache-dir", tmp_path / "cache")
    assert (absent.code, f"autotune-plan run {file} --cache-dir {tmp_path / 'cache'}" in absent.err) == (5, True)
    directory = Path(absent.err.split("error: ")[1].split(": no rank")[0])
    directory.mkdir(parents=True)
    for tp in (0, 1):
        for pp in (0, 1):
            shutil.copy(DATA / "cutlass_moe_bf16_run_a.json", directory / f"rank_tp{tp}_pp{pp}_dp0.json")
    result = cli("show", file, "--cache-dir", tmp_path / "cache")
    assert result.code == 0
    assert "4 identical rank files" in result.out


def test_nothing_is_written(cli, tmp_path):
    environment = store(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for path in (tmp_path, environment, environment / "entries"):
        assert cli("show", path).code == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
