"""``bench`` from the command line: the text with its plot, and the document."""

import json

import pytest

from tests.proof.simulated import DP4, deployment_file, tuned

pytestmark = [pytest.mark.flashinfer, pytest.mark.xdist_group("simulated-proof")]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    file = deployment_file(folder, **DP4)
    tuned(file, folder / "cache")
    return file, folder / "cache"


def test_the_text(cli, published):
    file, cache = published
    result = cli("bench", file, "--cache-dir", cache, "--device", "simulated", "--sizes", "1,64", "--against", cache)
    assert result.code == 0
    lines = result.out.splitlines()
    assert "mlp.experts  cutlass_fused_moe E128 H2048 I192 k8, hot L2" in lines
    assert "mlp.experts  cutlass_fused_moe E128 H2048 I192 k8, cold L2" in lines
    at = lines.index("mlp.experts  cutlass_fused_moe E128 H2048 I192 k8, hot L2")
    assert lines[at + 1].split() == ["M", "default", "stock", "tuned", "gain"]
    rows = [lines[at + 2], lines[at + 3]]
    assert [row.split()[0] for row in rows] == ["1", "64"]
    assert all(row.split()[-2] == "faster" for row in rows)
    assert max(row.count("█") for row in rows) == 24  # the largest gain fills the plot
    assert not any("weighted" in line for line in lines)
    left_out = "what the pass gains is not known, since --sizes left out 5 of the 7 sizes that production meets"
    assert [line for line in lines if left_out in line] == [f"{name}: {left_out}" for name in ("DECODE", "EXTEND")]


def test_the_document(cli, published):
    file, cache = published
    result = cli("bench", file, "--cache-dir", cache, "--device", "simulated", "--json")
    assert result.code == 0
    document = json.loads(result.out)
    assert document["schema"] == "autotune-plan/bench@1"
    assert (document["rounds"], document["confidence"], document["against"]) == (31, 0.95, None)
    assert document["metadata"]["gpu"] == "simulated NVIDIA H200"
    assert [(size["m"], size["l2"], size["layers"]) for size in document["sizes"]] == [
        (m, l2, ["mlp.experts"]) for m in (1, 2, 4, 8, 16, 32, 64) for l2 in ("hot", "cold")
    ]
    assert document["passes_left_out"] == []
    (gain,) = document["sizes"][0]["gains"]
    assert set(gain) == {"over", "median", "low", "high", "verdict"}
    assert gain["low"] <= gain["median"] <= gain["high"]
    assert set(document["sizes"][0]["us"]) == {"fallback", "ours"}
    assert [(found["pass"], found["l2"]) for found in document["passes"]] == [
        ("decode", "hot"),
        ("decode", "cold"),
        ("extend", "hot"),
        ("extend", "cold"),
    ]


def test_the_whole_passes(cli, published):
    file, cache = published
    lines = cli("bench", file, "--cache-dir", cache, "--device", "simulated", "--against", cache).out.splitlines()
    assert "    over stock: no measurable gain" in lines
    assert any(line.startswith("  EXTEND, cold L2: default") for line in lines)
    assert not any("is not known" in line for line in lines)


def test_passes_without_all_sizes_are_left_out_of_the_document(cli, published):
    file, cache = published
    result = cli("bench", file, "--cache-dir", cache, "--device", "simulated", "--sizes", "64", "--json")
    document = json.loads(result.out)
    assert document["passes"] == []
    assert document["passes_left_out"] == [
        {"pass": phase, "sizes_measured": 1, "sizes_planned": 7} for phase in ("decode", "extend")
    ]


def test_amd_is_not_possible_here_as_for_prove(cli, deployment, tmp_path):
    for command in ("bench", "prove"):
        result = cli(command, deployment(gpu="MI300X", moe=None), "--cache-dir", tmp_path)
        assert (result.code, result.out) == (4, "")
        assert "AMD" in result.err


@pytest.mark.parametrize("sizes", ["", "0", "1,,2", "64k", "-1", "1.5", "9" * 40])
def test_sizes_that_are_none(cli, tmp_path, sizes):
    result = cli("bench", deployment_file(tmp_path, **DP4), "--device", "simulated", f"--sizes={sizes}")
    assert (result.code, result.out) == (2, "")
    assert "--sizes 1,64,1024,8192" in result.err


def test_no_cache_is_there(cli, tmp_path):
    file = deployment_file(tmp_path, **DP4)
    result = cli("bench", file, "--cache-dir", tmp_path / "nowhere", "--device", "simulated", "--json")
    assert result.code == 5
    assert json.loads(result.out)["code"] == "no-file"
    assert cli("bench", file, "--", "--tp", "4").code == 2
