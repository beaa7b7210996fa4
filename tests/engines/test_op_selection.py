"""Which ops a deployment reaches: experts of a rank, paddings, routing, linears and their rows.

Expected values are those of the reference on the server's cache keys (its surprises S1 to S11 and its list of
paddings), or arithmetic on the models' configurations.
"""

from dataclasses import replace

import pytest

from autotune_planner.deployment.gpus import load_gpu
from autotune_planner.deployment.model import Deployment, Moe, Parallel, Speculative
from autotune_planner.deployment.models import model_from_config, profile_model
from autotune_planner.engines import resolve
from autotune_planner.engines.sglang_0_5_23.layer_quantization import format_of
from autotune_planner.engines.sglang_0_5_23.model import model_facts
from autotune_planner.ops.cute_dsl_moe import CuteDslMoe
from autotune_planner.ops.cutlass_fused_moe import CutlassFusedMoe
from autotune_planner.ops.trtllm_moe import TrtllmMoe
from autotune_planner.plan.plan import make_plan

DP8 = Parallel(tp=8, dp=8, dp_attention=True)


def resolved(model, gpu="B200", runner=None, **changes):
    moe = Moe(runner_backend=runner, a2a_backend=changes.pop("a2a", None))
    model = profile_model(model) if isinstance(model, str) else model
    base = Deployment(gpu=load_gpu(gpu), model=model, model_path="/models/m", moe=moe, kv_token_capacity=1_000_000)
    return resolve(replace(base, **changes), {})


def uses(*args, **changes):
    return {use.layer: use for use in resolved(*args, **changes).ops if use.note is None}


def experts(*args, **changes):
    return uses(*args, **changes)["mlp.experts"].call


@pytest.mark.parametrize(
    ("parallel", "width"),
    [((1, 1), 2944), ((2, 1), 1536), ((4, 1), 768), ((8, 1), 384), ((8, 2), 768), ((8, 4), 1536), ((8, 8), 2944)],
)
@pytest.mark.parametrize("gpu", ["H200", "B200"])
def test_paddings_of_gpt_oss(gpu, parallel, width):
    tp, ep = parallel
    call = experts("gpt-oss-120b", gpu, "flashinfer_mxfp4", parallel=Parallel(tp=tp, ep=ep))
    assert (call.hidden_size, call.intermediate_size, call.local_experts) == (3072, width, 128 // ep)
    assert call.output(5).shape == (5, 2880 if gpu == "B200" else 3072)


@pytest.mark.parametrize(
    ("model", "runner", "tp", "width"),
    [
        ("qwen3-30b-a3b", "flashinfer_trtllm", 4, 256),
        ("qwen3-30b-a3b", "flashinfer_trtllm", 8, 128),
        ("qwen3-30b-a3b-fp8", "flashinfer_trtllm", 8, 128),
        ("qwen3-30b-a3b-fp8-modelopt", "flashinfer_trtllm", 4, 256),
        ("qwen3-30b-a3b-nvfp4", "flashinfer_trtllm", 4, 192),
        ("qwen3-30b-a3b-nvfp4", "flashinfer_trtllm", 8, 128),
        ("qwen3-30b-a3b", "flashinfer_cutlass", 8, 96),
        ("qwen3-30b-a3b-fp8-modelopt", "flashinfer_cutlass", 8, 96),
        ("qwen3-30b-a3b-fp8-modelopt", "flashinfer_cutlass", 32, 32),  # 24, to a multiple of 16
    ],
)
def test_paddings_of_qwen3(model, runner, tp, width):
    assert experts(model, "B200", runner, parallel=Parallel(tp=tp)).intermediate_size == width


class TestSharedExpertFusion:
    """S3: one more expert and one more choice, at EP1 on CUTLASS only."""

    @pytest.mark.parametrize(
        ("parallel", "a2a", "numbers"),
        [
            (DP8, None, (257, 257, 9)),
            (replace(DP8, ep=8), None, (256, 32, 8)),
            (DP8, "flashinfer", (256, 32, 8)),
            (Parallel(tp=8), None, (257, 257, 9)),
        ],
    )
    def test_on_cutlass(self, parallel, a2a, numbers):
        call = experts("deepseek-v3-nvfp4", "B200", "flashinfer_cutlass", parallel=parallel, a2a=a2a)
        assert (call.num_experts, call.local_experts, call.top_k) == numbers

    def test_not_on_trtllm(self):
        call = experts("deepseek-v3-nvfp4", "B200", "flashinfer_trtllm", parallel=DP8)
        assert (call.num_experts, call.local_experts, call.top_k) == (256, 256, 8)

    def test_not_where_it_is_switched_off(self):
        flags = {"disable_shared_experts_fusion": True}
        call = experts("deepseek-v3-nvfp4", "B200", "flashinfer_cutlass", parallel=Parallel(tp=8), flags=flags)
        assert (call.num_experts, call.top_k) == (256, 8)


def test_redundant_experts_are_spread_over_the_ranks():
    parallel, flags = Parallel(tp=8, ep=8), {"ep_num_redundant_experts": 16}
    call = experts("qwen3-30b-a3b", "H200", "flashinfer_cutlass", parallel=parallel, flags=flags)
    assert (call.num_experts, call.local_experts) == (144, 18)


class TestRouting:
    """S1: FP8 is routed under EP without attention DP; other formats are not; A2A and the routed runner always are."""

    EP8 = Parallel(tp=8, ep=8)

    @pytest.mark.parametrize(
        ("model", "parallel", "routed"),
        [
            ("deepseek-v3", Parallel(tp=8), False),
            ("deepseek-v3", EP8, True),
            ("deepseek-v3", replace(DP8, ep=8), False),
            ("qwen3-30b-a3b-fp8", EP8, True),
            ("qwen3-30b-a3b-fp8-modelopt", EP8, True),
            ("qwen3-30b-a3b", EP8, False),
            ("qwen3-30b-a3b-nvfp4", EP8, False),
            ("deepseek-v3-nvfp4", EP8, False),
        ],
    )
    def test_by_format(self, model, parallel, routed):
        assert experts(model, "B200", "flashinfer_trtllm", parallel=parallel).routed is routed

    def test_by_runner_and_all_to_all(self):
        assert experts("deepseek-v3", "B200", "flashinfer_trtllm_routed", parallel=Parallel(tp=8)).routed
        assert experts("deepseek-v3", "B200", "flashinfer_trtllm", parallel=DP8, a2a="flashinfer").routed
        assert not experts("gpt-oss-120b", "B200", "flashinfer_mxfp4", parallel=self.EP8).routed

    def test_a_router_that_the_kernel_does_not_know(self):
        """MiniMax-M2 names no routing method: its experts are chosen before."""
        assert experts("minimax-m2", "B200", "flashinfer_trtllm", parallel=Parallel(tp=4)).routed

    def test_fp8_experts_where_placement_is_remapped(self):
        flags = {"init_expert_location": "placement.json"}
        assert experts("deepseek-v3", "B200", "flashinfer_trtllm", parallel=DP8, flags=flags).routed


class TestActivations:
    """S4: NVFP4 before the gather where EP and attention DP are equal, and through FlashInfer's all-to-all."""

    @pytest.mark.parametrize(
        ("parallel", "a2a", "quantized"),
        [
            (DP8, None, False),
            (replace(DP8, ep=8), None, True),
            (DP8, "flashinfer", True),
            (Parallel(tp=8), None, False),
        ],
    )
    def test_nvfp4(self, parallel, a2a, quantized):
        call = experts("deepseek-v3-nvfp4", "B200", "flashinfer_cutlass", parallel=parallel, a2a=a2a)
        assert call.quantized_input is quantized
        assert call.enable_alltoall is (a2a is not None)

    @pytest.mark.parametrize(
        ("gpu", "precision", "quant"),
        [
            ("H200", "default", "w4a16_mxfp4"),
            ("H200", "fp8", "w4a8_mxfp4"),
            ("RTX5090", "default", "mxfp8_mxfp4"),
            ("B200", "default", "mxfp4_mxfp8"),
            ("B200", "bf16", "mxfp4_bf16"),
            ("B200", "fp8", "mxfp4_mxfp8"),
        ],
    )
    def test_mxfp4(self, gpu, precision, quant):
        flags = {"flashinfer_mxfp4_moe_precision": precision}
        assert experts("gpt-oss-20b", gpu, "flashinfer_mxfp4", flags=flags).quant == quant


class TestRunners:
    def test_block_fp8_stays_in_triton_on_cutlass(self):
        """S13: the server tunes nothing there."""
        found = resolved("deepseek-v3", "H200", "flashinfer_cutlass", parallel=Parallel(tp=8))
        assert found.ops == ()
        assert "op-not-planned" not in {notice.code for notice in found.notices}
        assert {op.layer for op in found.unseen_ops} >= {"mlp.experts", "lm_head", "attn", "collectives"}

    def test_trtllm_has_no_kernels_before_sm100(self):
        assert resolved("qwen3-30b-a3b", "H200", "flashinfer_trtllm").ops == ()

    def test_classes_of_calls(self):
        assert isinstance(experts("qwen3-30b-a3b", "B200", "flashinfer_trtllm"), TrtllmMoe)
        assert isinstance(experts("qwen3-30b-a3b", "B200", "flashinfer_cutlass"), CutlassFusedMoe)
        call = experts("qwen3-30b-a3b-nvfp4", "B200", "flashinfer_cutedsl")
        assert isinstance(call, CuteDslMoe)
        assert not call.bf16_input

    def test_cute_dsl_with_bf16_activations(self):
        env = {"SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16": "1"}
        found = uses("qwen3-30b-a3b-nvfp4", "B200", "flashinfer_cutedsl", env=env)
        assert found["mlp.experts"].call.bf16_input
        assert found["attn.o_proj"].call.custom_ops == ("bf16_fp4_cute_dsl_sm100_gemm",)


class TestDeferredFinalize:
    """S2: captured graphs of DeepSeek in NVFP4 look up keys of their own, up to 192 rows."""

    def deferred(self, **changes):
        found = resolved("deepseek-v3-nvfp4", "B200", "flashinfer_trtllm", **changes)
        return [use for use in found.ops if use.note is not None]

    def test_rows(self):
        (use,) = self.deferred(parallel=Parallel(tp=8))
        assert (use.decode_pass_rows, use.extend_pass_rows, use.decode_rows, use.prefill_rows) == (
            None,
            None,
            192,
            None,
        )
        assert use.call.finalize is False
        planned = [op for op in make_plan(resolved("deepseek-v3-nvfp4", "B200", "flashinfer_trtllm")).ops if op.beyond]
        assert (1, 2, 4, 8, 16, 32, 64, 128, 256) in {op.buckets for op in planned}

    def test_off(self):
        assert self.deferred(parallel=Parallel(tp=8), env={"SGLANG_ENABLE_MOE_DEFERRED_FINALIZE": "0"}) == []
        assert self.deferred(parallel=Parallel(tp=8), disaggregation="prefill") == []
        assert self.deferred(parallel=Parallel(tp=8), flags={"disable_cuda_graph": True}) == []

    def test_not_for_other_formats_or_models(self):
        for model in ("deepseek-v3", "qwen3-30b-a3b-nvfp4"):
            assert all(use.note is None for use in resolved(model, "B200", "flashinfer_trtllm").ops)


class TestLinears:
    def test_deepseek_in_nvfp4(self):
        """S6: 18432 and 2048 over 8 ranks; gate and up of the shared expert run in the server's own kernel."""
        found = uses("deepseek-v3-nvfp4", "B200", "flashinfer_trtllm", parallel=DP8)
        shapes = {layer: (use.call.n, use.call.k) for layer, use in found.items() if layer != "mlp.experts"}
        assert shapes == {
            "mlp.gate_up_proj": (2 * 18432 // 8, 7168),
            "mlp.down_proj": (7168, 18432 // 8),
            "mlp.shared_experts.down_proj": (7168, 2048 // 8),
        }
        assert {use.decode_pass_rows for use in found.values()} == {25000}

    def test_the_shared_expert_is_replicated_beside_a_dispatch(self):
        found = uses("deepseek-v3-nvfp4", "B200", "flashinfer_cutlass", parallel=replace(DP8, ep=8))
        shared = found["mlp.shared_experts.down_proj"]
        assert (shared.call.n, shared.call.k, shared.decode_pass_rows) == (7168, 2048, 3125)
        assert found["mlp.down_proj"].decode_pass_rows == 25000

    def test_a_replicated_dense_mlp_sees_local_rows(self):
        found = uses("deepseek-v3-nvfp4", "B200", "flashinfer_trtllm", parallel=replace(DP8, moe_dense_tp=1))
        dense = found["mlp.gate_up_proj"]
        assert (dense.call.n, dense.call.k, dense.decode_pass_rows) == (2 * 18432, 7168, 3125)

    def test_latent_attention_over_attention_tp(self):
        """DeepSeek-V3 with everything in FP8: 1536 + 512 + 64 compressed, 128 heads of 192 and 128 over 8 ranks."""
        config = dict(profile_model("deepseek-v3").config)
        config.pop("quantization_config", None)
        model = model_from_config(config, {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}})
        found = uses(model, "H200", parallel=Parallel(tp=8))
        assert {layer: (use.call.n, use.call.k) for layer, use in found.items() if layer.startswith("attn.")} == {
            "attn.fused_qkv_a_proj_with_mqa": (2112, 7168),
            "attn.q_b_proj": (128 * 192 // 8, 1536),
            "attn.o_proj": (7168, 128 * 128 // 8),
        }

    @pytest.mark.parametrize(
        ("backend", "runner"), [("auto", "CuteDSLFp4GemmRunner"), ("flashinfer_cutlass", "CutlassFp4GemmRunner")]
    )
    def test_backends_of_nvfp4(self, backend, runner):
        flags = {"fp4_gemm_runner_backend": backend}
        assert uses("llama-3.1-8b-nvfp4", "B200", flags=flags)["mlp.down_proj"].call.runner == runner

    def test_nvfp4_before_sm100_is_marlin(self):
        assert resolved("llama-3.1-8b-nvfp4", "H200", "flashinfer_cutlass").ops == ()

    @pytest.mark.parametrize(
        ("gpu", "runner"), [("B200", "CuteDSLMxfp8GemmRunner"), ("RTX5090", "CutlassMxfp8GemmRunner")]
    )
    def test_mxfp8(self, gpu, runner):
        """S7."""
        found = uses("qwen3-30b-a3b", gpu, "flashinfer_trtllm", flags={"quantization": "mxfp8"})
        assert found["attn.qkv_proj"].call.runner == runner


class TestUneven:
    """S11: the server accepts these and fails when it builds the model."""

    @pytest.mark.parametrize(
        ("model", "gpu", "runner", "tp"),
        [
            ("qwen3-30b-a3b-fp8", "H200", "flashinfer_cutlass", 4),  # 192 % 128
            ("qwen3-30b-a3b-nvfp4", "B200", "flashinfer_cutlass", 8),  # 2 x 96 % 128
        ],
    )
    def test_named(self, model, gpu, runner, tp):
        found = resolved(model, gpu, runner, parallel=Parallel(tp=tp))
        assert "shapes-do-not-divide" in {notice.code for notice in found.notices}
        assert found.ops == ()

    def test_padded_runners_take_them(self):
        assert resolved("qwen3-30b-a3b-fp8", "B200", "flashinfer_trtllm", parallel=Parallel(tp=4)).ops


class TestLayerQuantization:
    def facts(self, **quantization):
        config = dict(profile_model("qwen3-30b-a3b").config)
        return model_facts(model_from_config(config, {"quantization": quantization}), "auto", None)

    @pytest.mark.parametrize(
        ("patterns", "module", "expected"),
        [
            (["lm_head"], "self_attn.qkv_proj", "nvfp4"),
            (["model.layers.*.self_attn*"], "self_attn.qkv_proj", "bf16"),
            (["model.layers.*.mlp.gate"], "mlp.gate_up_proj", "nvfp4"),
            (["model.layers.0.mlp*"], "mlp.experts", "nvfp4"),  # the other layers keep it
            (["model.layers.*.self_attn.q_proj"], "self_attn.qkv_proj", "nvfp4"),
            ([f"model.layers.*.self_attn.{name}_proj" for name in "qkv"], "self_attn.qkv_proj", "bf16"),
            (["language_model.model.layers.*.mlp.experts*"], "mlp.experts", "bf16"),
            (["model.layers.*.self_attn.kv_a_proj_with_mqa"], "self_attn.fused_qkv_a_proj_with_mqa", "bf16"),
            (["model.layers.*.self_attn.q_a_proj"], "self_attn.fused_qkv_a_proj_with_mqa", "nvfp4"),  # no part of it
        ],
    )
    def test_left_out_by_name(self, patterns, module, expected):
        facts = self.facts(quant_algo="NVFP4", exclude_modules=patterns)
        assert format_of(facts, "modelopt_fp4", module, range(facts.num_layers)) == expected

    def test_mixed_precision(self):
        layers = {
            "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
            "model.layers.0.mlp.experts.0.gate_proj": {"quant_algo": "NVFP4"},
        }
        facts = self.facts(quant_algo="MIXED_PRECISION", quantized_layers=layers)
        assert format_of(facts, "modelopt_mixed", "self_attn.qkv_proj", [0]) == "fp8"
        assert format_of(facts, "modelopt_mixed", "mlp.experts", [0]) == "nvfp4"
        assert format_of(facts, "modelopt_mixed", "self_attn.o_proj", [0]) == "bf16"


def test_reasons_of_sizes_beyond_the_server():
    plan = make_plan(resolved("qwen3-30b-a3b", "B200", "flashinfer_trtllm"))
    decode, extend = plan.ops
    assert decode.beyond is None
    assert extend.full_reason == (
        "production; buckets 8192..16384: prefill sizes above the rows of the server's passes, which leave them "
        "untuned; keys verified, not run on hardware"
    )


def test_speculative_verification_is_inside_the_server_s_pass():
    """48 requests x 4 drafted tokens = 192 rows, which the DECODE dummy sends too."""
    speculative = Speculative("EAGLE", num_steps=3, eagle_topk=1, num_draft_tokens=4)
    use = uses("deepseek-v3", "B200", "flashinfer_trtllm", parallel=Parallel(tp=8), speculative=speculative)
    assert use["mlp.experts"].decode_pass_rows == use["mlp.experts"].decode_rows == 192


def test_the_draft_model_is_listed_with_its_reason():
    speculative = Speculative("EAGLE", num_steps=3, eagle_topk=1, num_draft_tokens=4)
    found = resolved("deepseek-v3", "B200", "flashinfer_trtllm", parallel=Parallel(tp=8), speculative=speculative)
    (draft,) = [op for op in found.unseen_ops if op.layer == "draft model"]
    assert "draft_quant" in draft.reason


def test_latent_decode_attention_is_listed_with_its_reason():
    found = resolved("deepseek-v3", "B200", "flashinfer_trtllm", parallel=Parallel(tp=8))
    (attention,) = [op for op in found.unseen_ops if op.layer == "attn"]
    assert attention.what == "attention (trtllm_mla)"
    assert "trtllm_batch_decode_mla" in attention.reason


def test_latent_attention_names_its_absorbed_products():
    found = resolved("deepseek-v3", "B200", "flashinfer_trtllm", parallel=Parallel(tp=8))
    assert [op.what for op in found.unseen_ops if op.layer == "attn.kv_b_proj"] == ["batched GEMMs"]


def test_what_is_not_tuned_is_listed_where_nothing_is():
    """The triton runner of gpt-oss on an H200: the server does not autotune, so neither experts nor attention are."""
    found = resolved("gpt-oss-120b", "H200", "triton")
    assert found.ops == ()
    why = {op.layer: op.reason for op in found.unseen_ops}
    assert why["mlp.experts"].startswith("not autotuned: no op needs it")
    assert {"attn", "lm_head", "mlp.gate"} <= why.keys()
