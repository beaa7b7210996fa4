"""``compute``: whole outputs, and the numbers of the command-line contract."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.truth import row

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
EXAMPLES = sorted(path.stem for path in (Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("example", EXAMPLES)
def test_whole_output(cli, example):
    result = cli("compute", f"examples/{example}.yaml", "--explain")
    home = str(Path.home())  # the cache directory of the server is below it
    shown = (result.out + "--- stderr\n" + result.err).replace(home, "HOME")
    assert result.code == 0
    assert shown == (GOLDEN / f"compute_{example}.txt").read_text()


def test_dp_attention_on_eight_gpus(cli):
    """Row dpa8-H200-32768 of the truth: tp8 dp8, chunk 32768, flashinfer_cutlass."""
    document = json.loads(cli("compute", "examples/qwen3-30b-h200-dp8.yaml", "--json").out)
    theirs = row("dpa8-H200-32768")["resolved"]
    paths = [file["path"] for file in document["cache_files"]]
    assert {Path(path).parent.name for path in paths} == {"e7ab5bf4f968e10d"}
    assert [Path(path).name for path in paths] == [f"rank_tp{i}_pp0_dp{i}.json" for i in range(8)]
    for name in ("chunked_prefill_size", "max_prefill_buffer_tokens", "attn_tp_size", "moe_tp_size", "page_size"):
        assert document["resolved"][name] == theirs[name]
    # 4096 requests of one token, gathered from 8 ranks
    assert document["passes"][0]["tokens_per_rank"] == 4096
    assert document["passes"][0]["moe_rows"] == 4096 * 8


@pytest.mark.flashinfer
def test_keys_of_dp_attention_on_eight_gpus(cli):
    document = json.loads(cli("compute", "examples/qwen3-30b-h200-dp8.yaml", "--keys", "--json").out)
    keys = [key["key"] for key in document["keys"]]
    assert len(keys) == 42
    # Intermediate 768 over 8 ranks is 96: fc1 holds gate and up, 192 rows.
    assert all("(128, 192, 2048), (0,), (128, 2048, 96)" in key for key in keys)
    assert all(key.endswith(", False))") for key in keys)


@pytest.mark.parametrize(
    ("changes", "runs", "tokens"),
    [
        # Worked input 1 of the field reports: PD prefill, tp4 dp4, 32768 machine-wide, EAGLE: 8192 per rank.
        (
            {
                "parallel": "{tp: 4, dp: 4, dp_attention: true}",
                "prefill": "{chunked_prefill_size: 32768, max_prefill_tokens: 32768}",
                "disaggregation": "prefill",
                "speculative": "{algorithm: EAGLE, num_steps: 3, eagle_topk: 1, num_draft_tokens: 4}",
            },
            True,
            8192,
        ),
        # 1b: the same as a mixed server: a speculative target has no EXTEND dummy.
        (
            {
                "parallel": "{tp: 4, dp: 4, dp_attention: true}",
                "prefill": "{chunked_prefill_size: 32768}",
                "speculative": "{algorithm: EAGLE, num_steps: 3, eagle_topk: 1, num_draft_tokens: 4}",
            },
            False,
            None,
        ),
        # 2: dp 1 turns DP attention off; with chunked prefill off the budget is max_prefill_tokens.
        (
            {"parallel": "{tp: 8, dp: 1, dp_attention: true}", "prefill": "{chunked_prefill_size: -1}"},
            True,
            16384,
        ),
        # Chunk 512 against 512 requests: the gate is <=.
        (
            {"prefill": "{chunked_prefill_size: 512}", "decode": "{max_running_requests: 512}"},
            False,
            None,
        ),
        # 3: dynamic chunking with pp2: max(2048, 16384, 2560).
        (
            {
                "parallel": "{tp: 2, pp: 2}",
                "prefill": "{chunked_prefill_size: 2048, dynamic_chunking: true}",
            },
            True,
            16384,
        ),
        # and 1.25 x 8192 where max_prefill_tokens is no larger.
        (
            {
                "parallel": "{tp: 2, pp: 2}",
                "prefill": "{chunked_prefill_size: 8192, max_prefill_tokens: 8192, dynamic_chunking: true}",
            },
            True,
            10240,
        ),
    ],
)
def test_worked_inputs_of_the_field_reports(cli, deployment, changes, runs, tokens):
    path = deployment(autotune="{extend: true}", **changes)
    document = json.loads(cli("compute", path, "--json").out)
    extend = document["passes"][1]
    assert (extend["run"], extend["tokens_per_rank"]) == (runs, tokens)


def test_compute_needs_neither_torch_nor_flashinfer(tmp_path):
    for package in ("torch", "flashinfer", "numpy"):
        (tmp_path / f"{package}.py").write_text("raise ImportError('compute must not import this')\n")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "autotune_planner", "compute", "examples/qwen3-30b-h200-dp8.yaml", "--json"],
        cwd=root,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["schema"] == "autotune-plan/plan@1"
