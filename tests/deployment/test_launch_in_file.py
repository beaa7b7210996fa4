"""``launch:`` in a deployment file: what it says is what fields say."""

import pytest

from autotune_planner.deployment.load import deployment_from
from autotune_planner.engines import resolve
from tests.engines.parity import accepted
from tests.engines.truth import CAPACITY, DATA, rows

LINE = (
    "SGLANG_CACHE_DIR=/c python3 -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --tp 8 --dp 8 --page-size=64"
)
MODELS = str(DATA / "models")


def of(**content):
    return deployment_from({"gpu": "H200", **content})


@pytest.mark.parametrize("line", [LINE, LINE.split()])
def test_text_and_words(line):
    found = of(launch=line)
    assert found.model_path == "Qwen/Qwen3-30B-A3B"
    assert found.model.architecture == "Qwen3MoeForCausalLM"
    assert found.flags == {"tp_size": 8, "dp_size": 8, "page_size": 64}
    assert found.env == {"SGLANG_CACHE_DIR": "/c"}


def test_fields_beside_the_line():
    found = of(
        launch=LINE, parallel={"tp": 8, "ep": 8}, flags={"page_size": 64}, env={"A": "1", "SGLANG_CACHE_DIR": "/c"}
    )
    assert found.parallel.ep == 8
    assert found.env == {"A": "1", "SGLANG_CACHE_DIR": "/c"}
    assert resolve(found).arguments.moe_ep_size == 8


def test_the_model_beside_the_line():
    found = of(launch="sglang serve /m/Q --tp 2", model="qwen3-30b-a3b")
    assert (found.model.name, found.model_path) == ("qwen3-30b-a3b", "/m/Q")


def test_the_draft_model_of_the_line():
    draft = "--speculative-algorithm EAGLE3 --speculative-draft-model-path /m/EAGLE3-Llama-3.1-8B"
    line = f"sglang serve /m/Llama-3.1-8B {draft}"
    found = deployment_from({"gpu": "H200", "launch": line}, model_dir=MODELS)
    assert found.draft_model is not None
    assert found.draft_model.architecture == "LlamaForCausalLMEagle3"


def test_lists_are_compared_by_their_elements():
    found = of(
        launch="sglang serve Qwen/Qwen3-30B-A3B --cuda-graph-bs-decode 1 2 4",
        decode={"cuda_graph_bs_decode": [1, 2, 4]},
    )
    assert resolve(found).arguments.cuda_graph_decode.bs == (1, 2, 4)


@pytest.mark.parametrize("row", [row for row in rows() if accepted(row)][::6], ids=lambda row: row["id"])
def test_rows_of_the_truth_by_a_file_with_a_launch_line(row):
    """``attn_tp_size`` and the EXTEND budget of the server itself, from a file that only has its launch line."""
    env = {"SGLANG_CACHE_DIR": "/cache", **row.get("env", {})}
    content = {"gpu": row["gpu"], "launch": row["args"], "env": env, "kv_token_capacity": CAPACITY}
    resolved = resolve(deployment_from(content, model_dir=MODELS)).arguments
    for name in ("attn_tp_size", "autotune_extend_ceiling", "moe_runner_backend", "page_size"):
        assert getattr(resolved, name) == row["resolved"][name]
