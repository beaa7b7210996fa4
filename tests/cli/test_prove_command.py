"""``prove`` from the command line: exit codes, the text, the document."""

import json
import shutil

import pytest

from autotune_planner import pipeline
from autotune_planner.cache.v1 import read_v1
from tests.proof.simulated import DP4, deployment_file, rewrite, tuned

pytestmark = [pytest.mark.flashinfer, pytest.mark.xdist_group("simulated-proof")]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The deployment file, the cache directory and the rank files."""
    folder = tmp_path_factory.mktemp("published")
    file = deployment_file(folder, **DP4)
    return file, folder / "cache", tuned(file, folder / "cache")[1]


def test_a_published_cache(cli, published):
    file, cache, files = published
    result = cli("prove", file, "--cache-dir", cache, "--device", "simulated")
    assert result.code == 0
    assert f"Place {files[0].parent}" in result.out
    assert "rank_tp0_pp0_dp0 .. rank_tp3_pp0_dp3 (4 files); all 4 have SHA-256" in result.out
    assert "In a fresh process: every rank's own file was loaded, and the calls were made with the first one's" in (
        result.out
    )
    # 8 sizes, each 7 buckets and its own, for 2 GEMMs.
    assert "8 sizes, 1 to 64       128    128        0   0" in result.out
    assert "Proved: all 4 ranks load their files, every call hits, and the server times nothing" in result.out
    assert "Replaying" in result.err


def test_a_broken_cache(cli, published, tmp_path):
    file, original, files = published
    cache = shutil.copytree(original, tmp_path / "cache")
    files = sorted(cache.rglob("rank_*.json"))
    lost = next(entry for entry in read_v1(files[0]).entries if entry.key.bucket == 8)
    for path in files:
        rewrite(path, lambda entry: None if entry.text == lost.text else entry)
    result = cli("prove", file, "--cache-dir", cache, "--device", "simulated")
    assert result.code == 5
    assert f"{lost.key.custom_op}        8   64                46   no entry of this bucket" in result.out
    assert f"try: autotune-plan run {file} --cache-dir {cache} --device simulated" in result.out
    assert "Not proved: 1 problem" in result.out


def test_the_document(cli, published):
    file, cache, files = published
    result = cli("prove", file, "--cache-dir", cache, "--device", "simulated", "--json")
    assert result.code == 0
    document = json.loads(result.out)
    assert (document["schema"], document["proved"], document["device"]) == ("autotune-plan/prove@1", True, "simulated")
    assert document["directory"] == str(files[0].parent)
    assert document["metadata"] == read_v1(files[0]).metadata
    assert document["totals"] == {"hits": 128, "misses": 0, "timings": 0}
    ranks = [{"tp": rank, "pp": 0, "dp": rank} for rank in range(4)]
    assert [(item["rank"], item["fate"]) for item in document["files"]] == [(rank, "loads") for rank in ranks]
    (content,) = document["contents"]
    assert content["ranks"] == ranks
    assert content["missed"] == document["findings"] == []
    (process,) = content["processes"]
    assert process["purpose"] == "serving"
    assert process["loads"] == {file.name: True for file in files}
    assert process["calls"][0] == {
        "op": "cutlass_fused_moe",
        "shape": "E128 H2048 I192 k8",
        "m": 64,
        "tune_max": 64,
        "stage": "start",
        "hits": 16,
        "misses": 0,
        "timings": 0,
    }


def test_no_cache_is_there(cli, tmp_path):
    file = deployment_file(tmp_path, **DP4)
    result = cli("prove", file, "--cache-dir", tmp_path / "nowhere", "--device", "simulated")
    assert result.code == 5
    assert "[no-file]" in result.out
    assert not (tmp_path / "nowhere").exists()


def test_without_a_gpu(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "cuda_devices", lambda: ())
    result = cli("prove", deployment_file(tmp_path, **DP4), "--cache-dir", tmp_path)
    assert (result.code, result.out) == (4, "")
    assert "--device simulated" in result.err


def test_wrong_usage(cli, tmp_path):
    file = deployment_file(tmp_path, **DP4)
    assert cli("prove", file, "--", "--tp", "4").code == 2
    assert cli("prove", file, "--device", "tpu").code == 2
    assert cli("prove", file, "--cache-dir", "").code == 2
    assert cli("prove", tmp_path / "missing.yaml").code == 3
