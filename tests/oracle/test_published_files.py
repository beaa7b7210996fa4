"""What ``run`` publishes for two ranks, at the released server's own start: path, comparison of ranks, load, save."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune_planner import profiles
from tests.oracle.comparison import linked_models, server_environment
from tests.oracle.configurations import ROOT

DEPLOYMENT = """\
gpu: H200
model: qwen3-30b-a3b
model_path: /models/Qwen3-30B-A3B
parallel: {tp: 2}
prefill: {chunked_prefill_size: 64}
decode: {max_running_requests: 64}
moe: {runner_backend: flashinfer_cutlass}
kv_token_capacity: 1000000
"""
ARGUMENTS = shlex.split(
    "--model-path /models/Qwen3-30B-A3B --tp-size 2 --chunked-prefill-size 64 --max-running-requests 64 "
    "--moe-runner-backend flashinfer_cutlass"
)
GPU = profiles.load("gpus", "H200-141G")
SIMULATED = {**GPU, "name": f"simulated {GPU['name']}"}  # as the simulated device stamps its files
ENTRIES = 2 * 7  # gemm1 and gemm2 of the MoE, at 1, 2, 4 .. 64 tokens

Start = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache directory of a simulated run."""
    folder = tmp_path_factory.mktemp("published")
    (folder / "deployment.yaml").write_text(DEPLOYMENT)
    options = ("--device", "simulated", "--gpus", "1", "--cache-dir", folder / "cache")
    subprocess.run(
        [sys.executable, "-m", "autotune_planner", "run", folder / "deployment.yaml", *options],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return folder / "cache"


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Both ranks' start with a cache directory, on a GPU."""
    scratch = tmp_path_factory.mktemp("server")
    models = linked_models(scratch)

    def call(cache_dir: Path, gpu: dict[str, Any] = SIMULATED) -> list[dict[str, Any]]:
        row = {"args": ARGUMENTS, "env": {"SGLANG_CACHE_DIR": str(cache_dir)}}
        done = subprocess.run(
            [sys.executable, "-m", "tests.oracle.load_gate", json.dumps(gpu), str(models)],
            input=json.dumps(row),
            capture_output=True,
            cwd=scratch,
            env=server_environment(gpu, scratch),
            text=True,
            check=True,
        )
        ranks: list[dict[str, Any]] = json.loads(done.stdout)
        return ranks

    return call


def rank_files(cache_dir: Path) -> list[Path]:
    return sorted(cache_dir.rglob("rank_*.json"))


def copied(cache_dir: Path, target: Path) -> Path:
    return Path(shutil.copytree(cache_dir, target / "cache"))


def test_both_ranks_find_keep_and_load_their_files(published: Path, start: Start, tmp_path: Path) -> None:
    cache_dir = copied(published, tmp_path)
    before = [file.read_bytes() for file in rank_files(cache_dir)]
    ranks = start(cache_dir)
    assert [rank["path"] for rank in ranks] == list(map(str, rank_files(cache_dir)))
    assert len({rank["digest"] for rank in ranks}) == 1
    assert [(rank["kept"], rank["loaded"]) for rank in ranks] == [(True, ENTRIES)] * 2
    assert [file.read_bytes() for file in rank_files(cache_dir)] == before  # the server has saved them again


def another_tactic(file: Path) -> None:
    content = json.loads(file.read_text())
    key = next(name for name in content if not name.startswith("_"))
    content[key][1] = -1
    file.write_text(json.dumps(content))


def another_stamp(file: Path) -> None:
    content = json.loads(file.read_text())
    content["_metadata"]["gpu"] = "NVIDIA H100 80GB HBM3"
    file.write_text(json.dumps(content))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize(
    "damage", [another_tactic, another_stamp, cut, Path.unlink], ids=lambda damage: damage.__name__
)
@pytest.mark.parametrize("rank", [0, 1])
def test_one_damaged_file_and_both_are_deleted(
    damage: Callable[[Path], None], rank: int, published: Path, start: Start, tmp_path: Path
) -> None:
    cache_dir = copied(published, tmp_path)
    damage(rank_files(cache_dir)[rank])
    ranks = start(cache_dir)
    assert len({one["digest"] for one in ranks}) == 2
    assert [(one["kept"], one["loaded"]) for one in ranks] == [(False, 0)] * 2


def test_a_server_on_a_real_gpu_loads_nothing_simulated(published: Path, start: Start, tmp_path: Path) -> None:
    """The ranks agree, and FlashInfer refuses the stamp of both."""
    ranks = start(copied(published, tmp_path), GPU)
    assert len({one["digest"] for one in ranks}) == 1
    assert [(one["kept"], one["loaded"]) for one in ranks] == [(True, 0)] * 2
