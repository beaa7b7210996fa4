"""Token lists and rows of every pass: against the real server, and by the arithmetic of its dummy run."""

from dataclasses import replace

import pytest

from autotune_planner.deployment.gpus import load_gpu
from autotune_planner.deployment.model import Decode, Deployment, Moe, Parallel, Prefill, Speculative
from autotune_planner.deployment.models import profile_model
from autotune_planner.engines import resolve
from autotune_planner.plan.buffers import BufferUse, buffer_uses, sweep_buffers, total_bytes
from autotune_planner.plan.rows import row_checks
from tests.engines.parity import equal
from tests.engines.truth import deployment_of, rows

ANNOUNCED = [
    found
    for found in rows()
    if "error" not in found and "dummy_global_num_tokens" in found["resolved"].get("runtime", {})
]
DP4 = Deployment(
    gpu=load_gpu("H200"),
    model=profile_model("qwen3-30b-a3b"),
    model_path="/models/Qwen3-30B-A3B",
    parallel=Parallel(tp=4, dp=4, dp_attention=True),
    prefill=Prefill(chunked_prefill_size=32768),
    decode=Decode(max_running_requests=256),
    moe=Moe(runner_backend="flashinfer_cutlass"),
    autotune_extend=True,
    kv_token_capacity=1_000_000,
)


@pytest.mark.parametrize("found", ANNOUNCED, ids=lambda found: found["id"])
def test_the_token_list_of_the_decode_pass_equals_the_servers(found):
    runtime = found["resolved"]["runtime"]
    decision = resolve(deployment_of(found, runtime["assumed_token_capacity"])).passes[0]
    assert equal(decision.global_num_tokens, runtime["dummy_global_num_tokens"])
    assert decision.dp_buffer_rows == (sum(decision.global_num_tokens) if decision.global_num_tokens else None)


def test_there_are_many_of_them():
    assert len(ANNOUNCED) > 200


def lists(deployment):
    return {found.name: (found.global_num_tokens, found.dp_buffer_rows) for found in resolve(deployment).passes}


def test_an_mlp_gather_announces_every_rank_s_tokens():
    # 256 / 4 = 64 requests and 32768 / 4 = 8192 tokens of each of 4 ranks.
    assert lists(DP4) == {"decode": ((64,) * 4, 256), "extend": ((8192,) * 4, 32768)}


def test_nothing_is_announced_where_nothing_is_gathered():
    assert lists(replace(DP4, parallel=Parallel(tp=4))) == {"decode": (None, None), "extend": (None, None)}


def test_an_attention_gather_announces_its_own_tokens():
    # Without DP attention, a dense MLP of its own TP size gathers over attention-TP.
    assert lists(replace(DP4, parallel=Parallel(tp=4, moe_dense_tp=1))) == {
        "decode": ((256,), 256),
        "extend": ((32768,), 32768),
    }


def test_the_draft_model_announces_in_the_same_way():
    speculative = Speculative(algorithm="EAGLE", num_steps=3, eagle_topk=1, num_draft_tokens=4)
    passes = {found.name: found for found in resolve(replace(DP4, speculative=speculative)).passes}
    tokens = passes["draft"].tokens_per_rank
    assert passes["draft"].run
    assert passes["draft"].global_num_tokens == (tokens,) * 4
    assert passes["draft"].dp_buffer_rows == 4 * tokens


def checks(deployment):
    return {
        (check.pass_name, check.buffer): (check.capacity, check.rows, check.bytes)
        for check in row_checks(resolve(deployment))
    }


def test_rows_against_buffers_under_dp_attention():
    assert checks(DP4) == {
        ("decode", "input_ids"): (64, 64, 64 * 8),
        ("decode", "seq_lens"): (64, 64, 64 * 8),
        ("decode", "dp_buffer"): (256, 256, 256 * 2048 * 2),
        ("extend", "input_ids"): (8192, 8192, 8192 * 8),
        ("extend", "seq_lens"): (8192, 8192, 8192 * 8),
        ("extend", "dp_buffer"): (32768, 32768, 32768 * 2048 * 2),
    }


def test_a_prefill_target_slices_a_set_of_all_drafted_tokens():
    # 256 / 4 requests: the set has 4 tokens for each, the pass sends 1.
    speculative = Speculative(algorithm="EAGLE", num_steps=3, eagle_topk=1, num_draft_tokens=4)
    found = checks(replace(DP4, disaggregation="prefill", speculative=speculative))
    assert found["decode", "input_ids"][:2] == (4 * 64, 64)


def test_rows_over_the_a2a_workspace_are_compared_with_its_capacity():
    deployment = replace(DP4, moe=replace(DP4.moe, a2a_backend="flashinfer"), decode=Decode(max_running_requests=65536))
    found = {(check.pass_name, check.buffer): check for check in row_checks(resolve(deployment))}
    check = found["decode", "flashinfer_a2a"]
    assert (check.capacity, check.rows, check.fits) == (8192, 16384, False)  # 65536 / 4
    assert ("extend", "flashinfer_a2a") not in found  # 8192 tokens are not more than 16384 requests


SWEEP = replace(
    DP4,
    parallel=replace(DP4.parallel, pp=2),
    env={"SGLANG_PP_PARALLEL_DEEPGEMM_WARMUP": "1"},
)


def test_the_sweep_shares_one_set_of_its_largest_batch():
    buffers = sweep_buffers(resolve(SWEEP))
    tokens, hidden, vocab = 8448, 2048, 151936  # 132 SM x 64
    shapes = {buffer.name: buffer.shape for buffer in buffers}
    assert shapes["input_embeds"] == (tokens, hidden)
    assert shapes["next_token_logits_buffer"] == (tokens, vocab)
    # 24T + 24T + T*H*2 + 16bs + (bs + T) + 4TV + 8 * 4 ranks + two proxies of T*H*2
    expected = 48 * tokens + 16 * tokens + 2 * tokens + 4 * tokens * vocab + 8 * 4 + 3 * tokens * hidden * 2
    assert total_bytes(buffers, "cuda") == expected
    assert total_bytes(buffers, "cpu") == 8 * tokens
    assert sweep_buffers(resolve(DP4)) == ()


def test_the_sweep_s_logits_do_not_fit_the_local_buffer():
    found = {(check.pass_name, check.buffer): check for check in row_checks(resolve(SWEEP))}
    check = found["deep_gemm_pp", "next_token_logits_buffer"]
    assert (check.capacity, check.rows, check.fits) == (8448, 4 * 8448, False)
    assert found["deep_gemm_pp", "dp_buffer"].rows == 4 * 8448


def test_the_decode_set_stays_beside_the_others():
    assert buffer_uses(resolve(SWEEP)) == (
        BufferUse("decode", "decode", ("decode",)),
        BufferUse("extend", "extend", ("decode", "extend")),
        BufferUse("deep_gemm_pp", "deep_gemm_pp", ("decode", "deep_gemm_pp")),
    )


def test_a_server_that_does_not_autotune_still_sweeps():
    untuned = replace(SWEEP, moe=Moe(runner_backend="triton"))
    assert buffer_uses(resolve(untuned)) == (BufferUse("deep_gemm_pp", "deep_gemm_pp", ("deep_gemm_pp",)),)


def test_the_draft_model_uses_the_buffers_of_its_graphs():
    speculative = Speculative(algorithm="EAGLE", num_steps=3, eagle_topk=1, num_draft_tokens=4)
    uses = buffer_uses(resolve(replace(DP4, speculative=speculative)))
    assert uses[-1] == BufferUse("draft", "cuda_graph", ("cuda_graph",))
