"""DeepGEMM's warm-ups by the release's rule (``deep_gemm_wrapper/compile_utils.py``); counts by arithmetic."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.deployment.gpus import load_gpu
from autotune_planner.deployment.model import Deployment, Moe, Parallel, Prefill, Speculative
from autotune_planner.deployment.models import profile_model
from autotune_planner.engines import resolve
from autotune_planner.engines.sglang_0_5_23 import deep_gemm

DEEPSEEK = Deployment(
    gpu=load_gpu("H200"),
    model=profile_model("deepseek-v3"),
    model_path="/models/DeepSeek-V3",
    parallel=Parallel(tp=8),
    kv_token_capacity=1_000_000,
)
QWEN = replace(DEEPSEEK, model=profile_model("qwen3-30b-a3b"), model_path="/models/Qwen3-30B-A3B")
SWEEP = {"SGLANG_PP_PARALLEL_DEEPGEMM_WARMUP": "1"}


def warmup(name, deployment):
    return next(found for found in resolve(deployment).warmups if found.name == name)


@pytest.mark.parametrize(
    ("chunk", "last"),
    [(-1, 65536), (0, 65536), (4096, 16384), (8192, 16384), (8193, 16386), (16384, 32768), (100_000, 131072)],
)
def test_the_full_list_has_every_m(chunk, last):
    assert deep_gemm.full_sizes(chunk) == tuple(range(1, last + 1))


def test_the_fast_list_samples_512_sizes_between_powers_of_two():
    # 1024, then 512 from each of 1024, 2048, 4096 and 8192 (1024 is there already), then 16384 itself.
    sizes = deep_gemm.fast_sizes(16384)
    assert len(sizes) == 1024 + 511 + 3 * 512 + 1 == 3072
    assert sizes[1022:1027] == (1023, 1024, 1026, 1028, 1030)
    assert sizes[-3:] == (8192 + 510 * 16, 8192 + 511 * 16, 16384)
    assert deep_gemm.fast_sizes(-1) == sizes


def test_the_fast_list_overshoots_a_chunk_between_powers_of_two():
    assert deep_gemm.fast_sizes(3000)[-1] == 2048 + 511 * 4 == 4092
    assert 3000 in deep_gemm.fast_sizes(3000)
    assert 3001 not in deep_gemm.fast_sizes(3000)
    assert deep_gemm.fast_sizes(500) == tuple(range(1, 1025))
    assert deep_gemm.fast_sizes(100_000)[-1] == 32768


@given(chunk=st.integers(-10, 200_000))
def test_both_lists_ascend_and_hold_small_batches(chunk):
    full, fast = deep_gemm.full_sizes(chunk), deep_gemm.fast_sizes(chunk)
    assert list(fast) == sorted(set(fast))
    assert full[:1024] == fast[:1024] == tuple(range(1, 1025))
    assert len(fast) <= len(full) <= 131072


@pytest.mark.parametrize(
    ("sms", "cp", "attn_tp", "sync", "sizes"),
    [
        # H200: 132 // 8 = 16 and 132 // 4 = 33 blocks of 64.
        (132, 1, 1, False, (1, 128, 1024, 2112, 8448)),
        (132, 1, 4, False, (1, 128, 1024, 2112, 8448)),
        (132, 1, 4, True, (4, 128, 1024, 2112, 8448)),
        (132, 2, 3, True, (6, 132, 1026, 2112, 8448)),  # lcm 6
        (132, 2, 3, False, (2, 128, 1024, 2112, 8448)),
        (8, 1, 1, False, (1, 128, 256, 512)),  # at least 2 and 4 blocks
    ],
)
def test_sizes_of_the_pipeline_sweep(sms, cp, attn_tp, sync, sizes):
    assert deep_gemm.sweep_sizes(sms, cp_padding=cp, attn_tp_size=attn_tp, mlp_sync=sync) == sizes


@given(sms=st.integers(1, 300), cp=st.integers(1, 8), attn_tp=st.integers(1, 16))
def test_sweep_sizes_are_whole_for_context_parallelism_and_attention_tp(sms, cp, attn_tp):
    sizes = deep_gemm.sweep_sizes(sms, cp_padding=cp, attn_tp_size=attn_tp, mlp_sync=True)
    assert all(size % math.lcm(cp, attn_tp) == 0 for size in sizes)


def test_block_fp8_linears_compile_the_list():
    # H200: chunk 8192, so 16384 sizes; its MoE runner is auto without all-to-all: Triton.
    found = warmup("deep_gemm", DEEPSEEK)
    assert (found.run, len(found.m), found.m[-1]) == (True, 16384, 16384)
    assert found.reason.startswith("linears go through DeepGEMM")
    fast = warmup("deep_gemm", replace(DEEPSEEK, env={"SGLANG_JIT_DEEPGEMM_FAST_WARMUP": "1"}))
    assert len(fast.m) == 1024 + 511 + 2 * 512 + 1  # up to 8192


def test_the_list_follows_the_chunk_of_one_rank_though_layers_see_gathered_rows():
    deployment = replace(
        DEEPSEEK, parallel=Parallel(tp=8, dp=8, dp_attention=True), prefill=Prefill(chunked_prefill_size=131072)
    )
    assert warmup("deep_gemm", deployment).m[-1] == 32768  # twice 131072 / 8
    (notice,) = [found for found in resolve(deployment).notices if found.code == "deep-gemm-list-short"]
    assert "M = 32768" in notice.message
    assert "131072 gathered rows" in notice.message
    small = replace(deployment, prefill=Prefill(chunked_prefill_size=16384))
    assert all(found.code != "deep-gemm-list-short" for found in resolve(small).notices)  # 16384 rows, list to 16384


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"env": {"SGLANG_ENABLE_JIT_DEEPGEMM": "0"}}, "SGLANG_ENABLE_JIT_DEEPGEMM=0"),
        ({"env": {"SGLANG_JIT_DEEPGEMM_PRECOMPILE": "0"}}, "SGLANG_JIT_DEEPGEMM_PRECOMPILE=0"),
        ({"gpu": load_gpu("A100-80G")}, "SM80"),
        ({"flags": {"fp8_gemm_runner_backend": "triton"}}, "no layer"),
        ({"model": QWEN.model}, "no layer"),
    ],
)
def test_why_nothing_is_compiled(changes, reason):
    found = warmup("deep_gemm", replace(DEEPSEEK, **changes))
    assert (found.run, found.m) == (False, ())
    assert reason in found.reason


def test_the_backend_flag_of_fp8_linears_is_no_flag_without_effect():
    notices = resolve(replace(DEEPSEEK, flags={"fp8_gemm_runner_backend": "triton"})).notices
    assert all("fp8_gemm_runner_backend" not in notice.message for notice in notices)


@pytest.mark.parametrize(
    ("quantization", "block", "backend", "capability", "uses"),
    [
        ("fp8", [128, 128], "auto", (9, 0), True),
        ("fp8", [128, 128], "auto", (10, 0), True),
        ("fp8", [128, 128], "flashinfer_deepgemm", (9, 0), True),  # from M = 32
        ("fp8", [128, 128], "flashinfer_trtllm", (10, 0), False),
        ("fp8", [32, 32], "auto", (9, 0), True),
        ("fp8", [32, 32], "auto", (10, 0), False),
        ("fp8", None, "auto", (9, 0), False),  # one scale a tensor
        ("mxfp8", None, "auto", (9, 0), True),
        ("mxfp8", None, "auto", (10, 0), False),
        (None, [128, 128], "auto", (9, 0), False),
    ],
)
def test_which_linears_use_it(quantization, block, backend, capability, uses):
    found = deep_gemm.linears_use_it(quantization=quantization, block=block, backend=backend, capability=capability)
    assert found is uses


@pytest.mark.parametrize(
    ("runner", "a2a", "quantization", "uses"),
    [
        ("deep_gemm", "none", None, True),
        ("auto", "deepep", "fp8", True),
        ("auto", "none", "fp8", False),
        ("auto", "deepep", None, False),
        ("triton", "deepep", "fp8", False),
    ],
)
def test_which_experts_use_it(runner, a2a, quantization, uses):
    assert deep_gemm.experts_use_it(num_experts=8, runner=runner, a2a_backend=a2a, quantization=quantization) is uses
    assert not deep_gemm.experts_use_it(num_experts=0, runner=runner, a2a_backend=a2a, quantization=quantization)


@pytest.mark.parametrize(
    ("changes", "modes"),
    [
        ({}, ("DECODE", "EXTEND")),
        ({"disaggregation": "prefill"}, ("EXTEND",)),
        ({"disaggregation": "decode"}, ("DECODE",)),
    ],
)
def test_the_pipeline_sweep_runs_without_any_fp8(changes, modes):
    found = warmup("deep_gemm_pp", replace(QWEN, parallel=Parallel(tp=4, pp=2), env=SWEEP, **changes))
    assert (found.run, found.m, found.modes) == (True, (1, 128, 1024, 2112, 8448), modes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"env": {}}, "off by default"),
        ({"parallel": Parallel(tp=4)}, "pipeline parallelism"),
        ({"env": {**SWEEP, "SGLANG_ENABLE_JIT_DEEPGEMM": "0"}}, "SGLANG_ENABLE_JIT_DEEPGEMM=0"),
        ({"gpu": replace(QWEN.gpu, sm_count=None)}, "sm_count"),
    ],
)
def test_why_the_pipeline_sweep_does_not_run(changes, reason):
    deployment = replace(QWEN, parallel=Parallel(tp=4, pp=2), env=SWEEP)
    found = warmup("deep_gemm_pp", replace(deployment, **changes))
    assert (found.run, found.m) == (False, ())
    assert reason in found.reason


def test_speculative_servers_skip_the_sweep():
    speculative = Speculative(algorithm="EAGLE", num_steps=3, eagle_topk=1, num_draft_tokens=4)
    found = warmup("deep_gemm_pp", replace(QWEN, speculative=speculative, env=SWEEP, parallel=Parallel(tp=4)))
    assert found.run is False


def notices_of(deployment, code):
    return [notice for notice in resolve(deployment).notices if notice.code == code]


def test_the_sweep_s_lm_head_computes_every_rank_s_rows():
    # 8448 rows x 4 ranks x 151936 x 2 bytes = 10.3 GB; attention-TP is 1.
    deployment = replace(QWEN, parallel=Parallel(tp=4, dp=4, dp_attention=True, pp=2), env=SWEEP)
    assert warmup("deep_gemm_pp", deployment).logits_rows == 4 * 8448
    (notice,) = notices_of(deployment, "local-rows-buffer")
    assert (notice.level, "10.3 GB" in notice.message) == ("warning", True)
    local = replace(deployment, parallel=replace(deployment.parallel, dp_lm_head=True))
    assert notices_of(local, "local-rows-buffer") == []


def test_a_packed_extend_dummy_overflows_an_a2a_workspace_of_the_chunk():
    # B200 packs: 48 / 4 = 12 requests, ceil(8192 / 12) = 683 tokens each, 8196 against max(8192, 4096).
    deployment = replace(
        QWEN,
        gpu=load_gpu("B200"),
        parallel=Parallel(tp=4, dp=4, dp_attention=True),
        prefill=Prefill(chunked_prefill_size=32768),
        moe=Moe(runner_backend="flashinfer_cutlass", a2a_backend="flashinfer"),
        autotune_extend=True,
    )
    deployment = replace(deployment, decode=replace(deployment.decode, max_running_requests=48))
    (notice,) = notices_of(deployment, "local-rows-buffer")
    assert notice.level == "error"
    assert "8196 tokens per rank through an A2A workspace for 8192" in notice.message
    assert notices_of(deployment, "a2a-overflow") == []  # the DECODE dummy sends 12
    assert notices_of(replace(deployment, autotune_extend=None), "local-rows-buffer") == []
