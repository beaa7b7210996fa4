"""Single rules of SGLang 0.5.23; expected values by the arithmetic written beside them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.deployment.gpus import load_gpu
from autotune_planner.deployment.model import Decode, Deployment, Moe, Parallel, Prefill, Speculative
from autotune_planner.deployment.models import profile_model
from autotune_planner.engines import resolve
from autotune_planner.engines.sglang_0_5_23 import autotune, cuda_graph, memory, parallel, quantization, runtime
from autotune_planner.errors import DeploymentError

SMALL = st.integers(1, 4096)


BASE = Deployment(
    gpu=load_gpu("H200"),
    model=profile_model("qwen3-30b-a3b"),
    model_path="/models/Qwen3-30B-A3B",
    moe=Moe(runner_backend="flashinfer_cutlass"),
    kv_token_capacity=1_000_000,
)


def deployment(**changes):
    return replace(BASE, **changes)


def notices(**changes):
    return {notice.code: notice for notice in resolve(deployment(**changes)).notices}


@pytest.mark.parametrize(
    ("mib", "tp", "chunk", "max_bs"),
    [
        (15360, 1, 2048, 8),
        (20480, 1, 4096, 48),
        (20480, 4, 4096, 160),
        (40960, 1, 4096, 32),
        (61440, 1, 8192, 256),
        (143771, 4, 8192, 512),
        (163840, 1, 16384, 512),
        (None, 8, 4096, 160),
    ],
)
def test_defaults_by_gpu_memory(mib, tp, chunk, max_bs):
    assert memory.memory_defaults(mib, tp) == memory.MemoryDefaults(chunk, max_bs)


@pytest.mark.parametrize(
    ("chunk", "ranks", "per_rank"), [(10000, 8, 1250), (-1, 8, -1), (-5, 2, -3), (7, 8, 0), (100, 1, 100)]
)
def test_the_chunk_is_floored_and_nothing_else(chunk, ranks, per_rank):
    assert parallel.divided_chunk(chunk, ranks) == per_rank


@pytest.mark.parametrize(
    ("chunk", "max_prefill", "dynamic", "pp", "buffer"),
    [
        (8192, 16384, True, 2, 16384),  # max(8192, 16384, ceil(1.25 x 8192))
        (16001, 16384, True, 2, 20002),  # ceil(20001.25)
        (8192, 16384, True, 1, 8192),
        (-1, 16384, True, 2, 0),
    ],
)
def test_prefill_buffer(chunk, max_prefill, dynamic, pp, buffer):
    assert parallel.max_prefill_buffer_tokens(chunk, max_prefill, dynamic_chunking=dynamic, pp_size=pp) == buffer


@given(max_bs=st.integers(1, 2048), speculative=st.booleans(), padding=st.booleans())
def test_decode_sizes_end_at_the_largest(max_bs, speculative, padding):
    sizes = cuda_graph.decode_sizes(max_bs, padding=padding, speculative=speculative)
    assert sizes[-1] == max_bs == max(sizes)
    assert list(sizes) == sorted(set(sizes))


@given(pool=SMALL, alignment=st.integers(1, 16), width=st.integers(1, 8))
def test_captured_sizes_are_aligned_and_within_the_pool(pool, alignment, width):
    sizes = cuda_graph.decode_sizes(512, padding=True, speculative=False)
    captured = cuda_graph.capture_sizes(sizes, pool=pool, alignment=alignment, tokens_per_request=width)
    for size in captured or ():
        assert size * width % alignment == 0
        assert size < pool + alignment


def test_sizes_that_fit_no_alignment_cannot_be_captured():
    assert cuda_graph.capture_sizes((1, 3, 5), pool=4096, alignment=2, tokens_per_request=1) is None


@pytest.mark.parametrize(
    ("given_requests", "attn_dp", "capacity", "context", "requests"),
    [
        (None, 1, 1_000_000, 131072, 3906),  # int(1e6 / 131072 x 512)
        (None, 1, 8 * 40960, 40960, 4096),
        (None, 1, 100_000, 131072, 2048),
        (None, 1, 3000, 131072, 1500),
        (100_000, 1, 1_000_000, 131072, 100_000),  # no cap on a given number
        (100, 8, 1_000_000, 131072, 12),
        (0, 1, 1_000_000, 131072, 1),
    ],
)
def test_requests_of_a_worker(given_requests, attn_dp, capacity, context, requests):
    assert (
        runtime.max_num_requests(given_requests, attn_dp_size=attn_dp, token_capacity=capacity, context_len=context)
        == requests
    )


@given(ceiling=st.integers(1, 200_000), pool=SMALL)
def test_a_packed_extend_dummy_fits_the_pool_and_covers_the_ceiling(ceiling, pool):
    gate = autotune.extend_gate(
        ceiling=ceiling,
        decode_bs=0,
        pool=pool,
        packed=True,
        is_generation=True,
        speculative=False,
        disaggregation_mode="null",
    )
    tokens = gate.shape.max_bs * gate.shape.num_tokens_per_req
    assert gate.shape.max_bs <= pool
    assert ceiling <= tokens < ceiling + gate.shape.num_tokens_per_req


@pytest.mark.parametrize(
    ("flag", "checkpoint", "model"),
    [
        (None, "fp8", "fp8"),
        ("unquant", "fp8", "fp8"),
        ("fp8", None, "fp8"),
        ("awq", "modelopt_fp8", "modelopt_fp8"),
        ("quark_mxfp4", "modelopt_fp8", "quark_mxfp4"),
        ("modelopt_fp4", "fp8", "modelopt_fp4"),
    ],
)
def test_quantization_of_the_model(flag, checkpoint, model):
    quantization.check(flag, checkpoint, 9)
    assert quantization.model_quantization(flag, checkpoint) == model


@pytest.mark.parametrize(
    ("flag", "checkpoint"),
    [("mxfp8", "fp8"), ("fp8", "mxfp4"), ("gptq", None), ("nvfp4_online", None), ("nvfp4_online", "modelopt_fp4")],
)
def test_quantizations_that_do_not_match(flag, checkpoint):
    with pytest.raises(DeploymentError) as caught:
        quantization.check(flag, checkpoint, 9)
    assert caught.value.where == "--quantization"


DP8 = Parallel(tp=8, dp=8, dp_attention=True)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"flags": {"page_size": 64}, "prefill": Prefill(chunked_prefill_size=1000)}, "--chunked-prefill-size"),
        ({"parallel": Parallel(tp=8, ep=2)}, "--ep-size"),
        ({"parallel": Parallel(tp=8, dp=3, dp_attention=True)}, "--dp-size"),
        ({"parallel": Parallel(tp=8, moe_dense_tp=2)}, "--moe-dense-tp-size"),
        ({"parallel": Parallel(dp=2, dp_lm_head=True)}, "--enable-dp-lm-head"),
        ({"moe": Moe("flashinfer_cutlass", "flashinfer"), "parallel": Parallel(tp=8)}, "--moe-a2a-backend"),
        (
            {"moe": Moe("flashinfer_cutlass", "flashinfer"), "parallel": DP8, "prefill": Prefill(-1)},
            "--chunked-prefill-size",
        ),
        ({"flags": {"enable_two_batch_overlap": True}}, "--enable-two-batch-overlap"),
        ({"flags": {"nnodes": 3}, "parallel": Parallel(tp=8)}, "--nnodes"),
        ({"flags": {"nnodes": 2}, "parallel": Parallel(tp=8, dp=2)}, "--dp-size"),
        ({"flags": {"enable_torch_compile": True, "disable_cuda_graph_padding": True}}, "--disable-cuda-graph-padding"),
        ({"flags": {"attention_backend": "trtllm_mla"}}, "--attention-backend"),
        ({"flags": {"attention_backend": "trtllm_mha"}, "gpu": load_gpu("A100-80G")}, "--attention-backend"),
        (
            {"flags": {"attention_backend": "torch_native", "enable_deterministic_inference": True}},
            "--attention-backend",
        ),
        ({"flags": {"enable_kv_cache_sharding": True}}, "--enable-kv-cache-sharding"),
        ({"flags": {"language_only": True}}, "--language-only"),
        ({"flags": {"attn_cp_size": 3}, "parallel": Parallel(tp=8)}, "--attn-cp-size"),
        ({"flags": {"moe_dp_size": 2}, "parallel": Parallel(tp=8)}, "--moe-dp-size"),
        ({"flags": {"enable_mis": True}}, "--enable-mis"),
        ({"speculative": Speculative("NEXTN", num_steps=3)}, "--speculative-eagle-topk"),
        ({"speculative": Speculative("NGRAM"), "parallel": DP8}, "--speculative-algorithm"),
    ],
)
def test_the_server_refuses(changes, where):
    with pytest.raises(DeploymentError) as caught:
        resolve(deployment(**changes))
    assert caught.value.where == where
    assert caught.value.hint


@pytest.mark.parametrize(("backend", "flags"), [("fa3", {}), ("triton", {"prefill_attention_backend": "flashinfer"})])
def test_gpt_oss_needs_attention_sinks(backend, flags):
    changes = {"model": profile_model("gpt-oss-120b"), "moe": Moe(), "flags": {"attention_backend": backend, **flags}}
    if not flags:
        assert resolve(deployment(**changes)).arguments.attention_backend == backend
        return
    with pytest.raises(DeploymentError) as caught:
        resolve(deployment(**changes))
    assert caught.value.where == "--prefill-attention-backend"


@pytest.mark.parametrize("flags", [{"attention_backend": "torch_native"}, {"attention_backend": "flex_attention"}])
def test_backends_without_graphs(flags):
    arguments = resolve(deployment(flags=flags)).arguments
    assert (arguments.cuda_graph_decode.backend, arguments.cuda_graph_prefill.backend) == ("disabled", "disabled")
    assert arguments.cuda_graph_decode.bs


@pytest.mark.parametrize(("model", "gathers"), [("qwen3-30b-a3b", True), ("llama-3.1-8b", False)])
def test_a2a_of_a_model_without_experts_is_never_set(model, gathers):
    """--enable-waterfill means the A2A backend deepep; ``scheduler.init_moe_gemm_config`` sets it for experts only."""
    found = resolve(deployment(model=profile_model(model), moe=Moe(), flags={"enable_waterfill": True}))
    assert found.arguments.moe_a2a_backend == "deepep"
    assert found.runtime.require_attn_tp_gather is gathers
    assert found.runtime.dummy_global_num_tokens == ((found.runtime.decode_autotune_tokens,) if gathers else None)


def test_multi_item_scoring_turns_chunks_off():
    arguments = resolve(deployment(flags={"enable_mis": True, "attention_backend": "flashinfer"})).arguments
    assert arguments.chunked_prefill_size == -1
    assert arguments.autotune_extend_ceiling == 16384
    assert arguments.cuda_graph_prefill.backend == "disabled"


@pytest.mark.parametrize(
    ("gpu", "model", "backend"),
    [
        ("H200", "qwen3-30b-a3b", "fa3"),
        ("A100-80G", "llama-3.1-8b", "fa3"),
        ("RTX5090-32G", "llama-3.1-8b", "flashinfer"),
        ("RTX5090-32G", "deepseek-v3", "triton"),
    ],
)
def test_deterministic_backends(gpu, model, backend):
    chosen = deployment(
        gpu=load_gpu(gpu),
        model=profile_model(model),
        moe=Moe(),
        flags={"enable_deterministic_inference": True},
    )
    assert resolve(chosen).arguments.attention_backend == backend


EXTEND = "SGLANG_FLASHINFER_AUTOTUNE_EXTEND"


@pytest.mark.parametrize(
    ("stated", "in_file", "in_process", "runs"),
    [
        (None, None, None, False),
        (None, None, "1", True),
        (None, "0", "1", False),
        (None, "YES", None, True),
        (None, "on", None, False),  # not a value that the server can read: its default
        (True, None, "0", True),
        (False, "no", "1", False),
    ],
)
def test_extend_switch(stated, in_file, in_process, runs):
    chosen = deployment(
        autotune_extend=stated,
        env={} if in_file is None else {EXTEND: in_file},
    )
    resolved = resolve(chosen, environ={} if in_process is None else {EXTEND: in_process})
    assert [decision.run for decision in resolved.passes if decision.name == "extend"] == [runs]


def test_extend_said_twice_and_differently():
    with pytest.raises(DeploymentError):
        resolve(deployment(autotune_extend=True, env={EXTEND: "0"}))


def test_environment_that_the_server_cannot_read():
    name = "SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
    found = notices(env={name: "many"})
    assert f"{name}=many" in found["env-value-ignored"].message


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("chunk-is-machine-wide", {"parallel": DP8}),
        ("extend-skipped", {"parallel": DP8}),
        ("extend-off", {}),
        ("extend-packed", {"flags": {"attention_backend": "triton"}, "decode": Decode(1000), "autotune_extend": True}),
        ("speculative-requests", {"speculative": Speculative("NGRAM")}),
        ("kv-capacity-assumed", {"kv_token_capacity": None}),
        ("dummy-logits", {}),
        ("model-path-in-key", {}),
        ("moe-bound-clamps", {"parallel": DP8}),
        (
            "op-not-planned",
            {
                "gpu": load_gpu("B200-180G"),
                "model": profile_model("qwen3-30b-a3b-nvfp4"),
                "moe": Moe("flashinfer_trtllm"),
                "flags": {"fp4_gemm_runner_backend": "flashinfer_trtllm"},
            },
        ),
        ("int32-overflow", {"parallel": replace(DP8, ep=8), "prefill": Prefill(chunked_prefill_size=8 * 65536)}),
        (
            "a2a-overflow",
            {
                "gpu": load_gpu("B200-180G"),
                "parallel": DP8,
                "moe": Moe("flashinfer_cutlass", "flashinfer"),
                "decode": Decode(65536),
            },
        ),
        ("ep-does-not-divide-tp", {"parallel": Parallel(tp=8, ep=3), "moe": Moe("triton")}),
        ("cache-not-reused", {"env": {"SGLANG_FLASHINFER_AUTOTUNE_CACHE": "0"}}),
        ("flags-not-modelled", {"flags": {"dcp_size": 1}}),
        ("flags-without-effect", {"flags": {"log_level": "info"}}),
    ],
)
def test_notices(code, changes):
    assert code in notices(**changes)


def test_modules_that_a_checkpoint_leaves_out():
    model = profile_model("llama-3.1-8b-fp8")
    config = dict(model.quantization_config)

    def layers(*patterns):
        changed = replace(model, quantization_config={**config, "ignore": list(patterns)})
        return {use.layer for use in resolve(deployment(model=changed, moe=Moe())).ops}

    everything = {"attn.qkv_proj", "attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"}
    assert layers("lm_head") == everything
    assert layers("model.layers.*.self_attn*") == {"mlp.gate_up_proj", "mlp.down_proj"}
    assert layers("model.layers.0.*") == everything  # the other layers have them
    assert layers("o_proj") == everything - {"attn.o_proj"}
