"""``compute ... -- <server flags>``: the server's own flags in place of a deployment file."""

import json
from pathlib import Path

import pytest

from tests.engines.truth import DATA, row, rows

MODELS = ("--model-dir", DATA / "models")


@pytest.mark.parametrize("identity", ["dpa8-H200-32768", "pd-decode-q3", "spec-eagle3-5-8-64", "vl-H200-dpa4"])
def test_a_launch_line_plans_what_the_server_resolved(cli, identity):
    truth = row(identity)
    result = cli(
        "compute", "--gpu", truth["gpu"], *MODELS, "--kv-token-capacity", 1000000, "--json", "--", *truth["args"]
    )
    assert result.code == 0
    document, theirs = json.loads(result.out), truth["resolved"]
    for name in (
        "chunked_prefill_size",
        "attn_tp_size",
        "page_size",
        "speculative_num_draft_tokens",
        "mem_fraction_static",
    ):
        assert document["resolved"][name] == theirs[name]
    ours = Path(document["cache_files"][0]["path"])
    assert ours.parent.name == Path(theirs["runtime"]["real"]["flashinfer_autotune_cache_path"]).parent.name


@pytest.mark.parametrize("found", [found for found in rows() if "error" in found], ids=lambda found: found["id"])
def test_what_the_server_refuses_exits_3(cli, monkeypatch, found):
    for name, value in found.get("env", {}).items():
        monkeypatch.setenv(name, value)
    result = cli("compute", "--gpu", found["gpu"], *MODELS, "--", *found["args"])
    assert result.code == 3
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert "try: " in result.err


def test_a_whole_launch_line_with_its_environment(cli):
    line = "SGLANG_CACHE_DIR=/cache python -m sglang.launch_server --model-path /models/Qwen3-30B-A3B --tp 8"
    result = cli(
        "compute", "--gpu", "H200", *MODELS, "--json", "--", *line.split(), "--moe-runner-backend=flashinfer_cutlass"
    )
    document = json.loads(result.out)
    assert document["resolved"]["tp_size"] == 8
    assert document["cache_files"][7]["path"].startswith("/cache/flashinfer/autotune/0.7.2/sm90/")


@pytest.mark.parametrize(
    "arguments",
    [
        ("compute",),
        ("compute", "--", "--tp", "8"),  # no GPU
        ("compute", "examples/qwen3-30b-h200-tp1.yaml", "--gpu", "H200"),
        ("compute", "examples/qwen3-30b-h200-tp1.yaml", "--", "--tp", "8"),
        ("compute", "--gpu", "H200", "--engine", "vllm", "--", "--model-path", "/models/Qwen3-30B-A3B"),
        ("run", "examples/qwen3-30b-h200-tp1.yaml", "--", "--tp", "8"),
    ],
)
def test_one_deployment_given_once(cli, arguments):
    result = cli(*arguments)
    assert result.code == 2
    assert "try: " in result.err


def test_a_release_without_rules_with_those_of_another(cli):
    call = ("compute", "--gpu", "H200", "--engine", "sglang==0.5.99", "--json")
    flags = ("--", "--model-path", "Qwen/Qwen3-30B-A3B")
    assert cli(*call, *flags).code == 3
    result = cli(*call, "--assume-rules", "0.5.23", *flags)
    assert result.code == 0
    assert "rules-assumed" in [warning["code"] for warning in json.loads(result.out)["warnings"]]
