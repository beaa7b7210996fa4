"""``show`` from the command line: what it takes, and what it says when it cannot."""

import json
import shutil
from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "h200"


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
