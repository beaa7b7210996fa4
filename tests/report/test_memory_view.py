"""Memory, rows and warm-ups of a plan: in JSON whole, on the console summarised."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from autotune_planner.deployment.gpus import load_gpu
from autotune_planner.deployment.model import Decode, Deployment, Moe, Parallel
from autotune_planner.deployment.models import profile_model
from autotune_planner.engines import resolve
from autotune_planner.plan.plan import make_plan
from autotune_planner.report.memory_view import memory_view
from autotune_planner.report.plan_document import plan_document

# DeepSeek-V3 in block FP8 on two pipeline stages of four: DeepGEMM compiles its list, and the ranks sweep.
SWEEP = Deployment(
    gpu=load_gpu("H200"),
    model=profile_model("deepseek-v3"),
    model_path="/models/DeepSeek-V3",
    parallel=Parallel(tp=4, dp=4, dp_attention=True, pp=2),
    env={"SGLANG_PP_PARALLEL_DEEPGEMM_WARMUP": "1", "SGLANG_JIT_DEEPGEMM_FAST_WARMUP": "1"},
    kv_token_capacity=1_000_000,
)
TUNED = replace(
    SWEEP,
    model=profile_model("qwen3-30b-a3b"),
    model_path="/models/Qwen3-30B-A3B",
    moe=Moe(runner_backend="flashinfer_cutlass"),
    decode=Decode(max_running_requests=256),
    autotune_extend=True,
    env={},
)


@pytest.fixture(scope="module")
def document():
    def made(deployment):
        plan = make_plan(resolve(deployment))
        found = plan_document(plan, plan.resolved.cache_place, keys=None, explain=False)
        return json.loads(json.dumps(found))

    return made


def shown(deployment):
    console = Console(width=120, no_color=True)
    with console.capture() as capture:
        for part in memory_view(make_plan(resolve(deployment))):
            console.print(part)
    return capture.get()


def test_lists_are_whole_in_the_document(document):
    compiled, sweep = document(SWEEP)["warmups"]
    # Chunk 8192 / 4 = 2048 a rank: 1..1024, 512 up to 2046, 2048.
    assert (compiled["name"], compiled["run"], compiled["count"]) == ("deep_gemm", True, 1024 + 511 + 1)
    assert compiled["m"] == [*range(1, 1025), *range(1026, 2048, 2), 2048]
    assert (sweep["name"], sweep["m"], sweep["modes"]) == (
        "deep_gemm_pp",
        [1, 128, 1024, 2112, 8448],
        ["DECODE", "EXTEND"],
    )


def test_sets_and_their_users(document):
    buffers = document(TUNED)["buffers"]
    decode, extend = buffers["reuse"]
    assert (decode["pass"], decode["set"], decode["alive"]) == ("decode", "decode", ["decode"])
    assert (extend["pass"], extend["set"], extend["alive"]) == ("extend", "extend", ["decode", "extend"])
    assert decode["gpu_bytes"] == buffers["gpu_bytes"] == gpu_bytes(buffers["decode"])
    assert decode["host_bytes"] == buffers["host_bytes"] == 8 * 64
    assert extend["gpu_bytes"] == gpu_bytes(buffers["extend"])
    assert buffers["deep_gemm_pp"] == []


def gpu_bytes(buffers):
    return sum(buffer["bytes"] for buffer in buffers if buffer["device"] == "cuda")


def test_peaks_are_the_sums_of_their_terms(document):
    memory = document(TUNED)["memory"]
    assert [found["pass"] for found in memory["passes"]] == ["decode", "extend"]
    for found in [*memory["passes"], memory["largest_work_unit"]]:
        assert found["total"] == sum(term["bytes"] for term in found["terms"])
    assert document(SWEEP)["memory"]["largest_work_unit"] is None


def test_row_checks_and_token_lists(document):
    found = document(TUNED)
    assert [check["buffer"] for check in found["row_checks"] if check["pass"] == "extend"] == [
        "input_ids",
        "seq_lens",
        "dp_buffer",
    ]
    assert found["passes"][0]["global_num_tokens"] == [64] * 4
    assert found["passes"][0]["dp_buffer_rows"] == 256


def test_the_console_summarises():
    text = shown(SWEEP)
    assert "1536: 1 .. 2048" in text
    assert "5: 1 .. 8448" in text
    assert "next_token_logits_buffer" in text
    assert max(map(len, text.splitlines())) <= 120
    tuned = shown(TUNED)
    assert "tuning here, largest unit" in tuned
    assert "Kernel warm-ups" not in tuned  # none runs
    assert "input_ids" not in tuned  # it fits by construction


def test_the_console_has_nothing_where_nothing_runs():
    assert shown(replace(TUNED, moe=Moe(runner_backend="triton"))) == ""
