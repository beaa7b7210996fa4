"""Which FlashInfer MoE a deployment runs, with the shapes of one rank as the server pads them.

Sources: ``layers/moe/fused_moe_triton/layer.py``, ``layers/moe/moe_runner/flashinfer_*.py`` and the quantization
methods under ``layers/quantization``.
"""

from __future__ import annotations

from dataclasses import replace

from autotune_planner.engines.sglang_0_5_23 import architectures
from autotune_planner.engines.sglang_0_5_23.layer_quantization import Format
from autotune_planner.engines.sglang_0_5_23.local_experts import Experts, declares_routing, experts_of, is_routed
from autotune_planner.engines.sglang_0_5_23.model import ModelFacts
from autotune_planner.engines.sglang_0_5_23.op_layout import Kernels, Layout
from autotune_planner.ops.base import OpCall
from autotune_planner.ops.cute_dsl_moe import CuteDslMoe, CuteDslMoeW4A16
from autotune_planner.ops.cutlass_fused_moe import CutlassFusedMoe
from autotune_planner.ops.cutlass_fused_moe import Quant as CutlassQuant
from autotune_planner.ops.tensors import round_up
from autotune_planner.ops.trtllm_moe import Quant as TrtllmQuant
from autotune_planner.ops.trtllm_moe import TrtllmMoe

_TRTLLM_STEP, _NVFP4_STEP = 128, 64  # fused_moe_triton/layer.py; modelopt_quant.ModelOptNvFp4FusedMoEMethod
_MXFP4_STEP, _MXFP4_HIDDEN_STEP = 128, 256
_FP8_CUTLASS_STEP = 16
_SCALE_TILE = 128
_TRTLLM: dict[Format, TrtllmQuant] = {
    "bf16": "bf16",
    "fp8": "fp8_per_tensor",
    "fp8_block": "fp8_block",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
    "int4": "mxint4",
}
_CUTLASS: dict[Format, CutlassQuant] = {"bf16": "bf16", "fp8": "fp8", "nvfp4": "nvfp4"}


def moe_call(
    model: ModelFacts, quantization: str | None, weights: Format, layout: Layout, kernels: Kernels
) -> OpCall | None:
    """The MoE of one rank; None where the experts do not run in a FlashInfer op with a tuner.

    ``weights`` is the format of the experts, ``quantization`` the model's.
    """
    experts = experts_of(model, quantization, layout, kernels)
    if kernels.moe_runner == "flashinfer_cutlass":
        return _cutlass(model, weights, experts, layout, kernels)
    if kernels.moe_runner == "flashinfer_mxfp4" and weights == "mxfp4":
        return _mxfp4(model, experts, layout, kernels)
    if kernels.moe_runner == "flashinfer_cutedsl" and weights in ("nvfp4", "w4a16_nvfp4"):
        return _cute_dsl(model, weights, experts, layout, kernels)
    if kernels.is_trtllm and weights in _TRTLLM:
        return _trtllm(model, weights, experts, layout, kernels)
    return None


def deferred(call: OpCall, model: ModelFacts, kernels: Kernels) -> OpCall | None:
    """The MoE as captured decode graphs call it where the last sum is left to the server; None where it is not.

    Sources: ``deepseek_v2.DeepseekV2MoE.forward_normal_dual_stream``, ``FusedMoE.supports_deferred_finalize``.
    """
    if not isinstance(call, TrtllmMoe) or call.quant != "nvfp4" or call.routed or kernels.deferred_rows == 0:
        return None
    if kernels.moe_runner != "flashinfer_trtllm" or model.architecture not in architectures.DEEPSEEK_MOE:
        return None
    if not model.shared_experts or kernels.shared_expert_replicated:
        return None
    return replace(call, finalize=False)


def uneven_blocks(model: ModelFacts, weights: Format, layout: Layout, kernels: Kernels) -> str | None:
    """Quantized experts that cannot be split over the ranks, as text: the server fails while it creates their weights.

    Sources: ``fp8.Fp8MoEMethod.create_weights`` (TensorRT-LLM's runners pad instead),
    ``modelopt_quant.ModelOptNvFp4FusedMoEMethod.process_weights_after_loading``.
    """
    width = model.moe_intermediate_size // layout.moe_tp_size
    block = model.weight_block[0] if model.weight_block else 0
    if weights == "fp8_block" and block and width % block and not kernels.is_trtllm:
        return f"{width} rows of an expert per rank in blocks of {block} weights"
    swizzled = kernels.moe_runner in ("flashinfer_cutlass", "flashinfer_cutedsl")
    if weights == "nvfp4" and swizzled and 2 * width % _SCALE_TILE:
        return f"{2 * width} rows of an expert's gate and up projections per rank in tiles of {_SCALE_TILE} scales"
    return None


def _cutlass(
    model: ModelFacts, weights: Format, experts: Experts, layout: Layout, kernels: Kernels
) -> CutlassFusedMoe | None:
    quant = _CUTLASS.get(weights)
    if quant is None:
        return None  # block FP8 stays in Triton
    width = model.moe_intermediate_size // layout.moe_tp_size
    alltoall = kernels.a2a_backend == "flashinfer"
    call = CutlassFusedMoe(
        num_experts=experts.total,
        local_experts=experts.local,
        hidden_size=model.hidden_size,
        intermediate_size=round_up(width, _FP8_CUTLASS_STEP) if quant == "fp8" else width,
        top_k=experts.top_k,
        tp_size=layout.moe_tp_size,
        ep_size=layout.moe_ep_size,
        tune_max_num_tokens=kernels.cutlass_tune_max,
        use_fused_finalize=kernels.fused_finalize,
        enable_alltoall=alltoall,
        quant=quant,
        quantized_input=quant == "nvfp4" and (kernels.fp4_allgather or (alltoall and kernels.nvfp4_dispatch)),
    )
    return call if call.unsupported_reason(kernels.capability) is None else None


def _mxfp4(model: ModelFacts, experts: Experts, layout: Layout, kernels: Kernels) -> OpCall:
    """Source: ``mxfp4.Mxfp4MoEMethod``: TensorRT-LLM on SM100, CUTLASS on SM90 and SM120; the flag for FP8 activations
    is read on SM90 only."""
    width = round_up(model.moe_intermediate_size // layout.moe_tp_size, _MXFP4_STEP)
    hidden = round_up(model.hidden_size, _MXFP4_HIDDEN_STEP)
    major = kernels.capability[0]
    if major == 10:
        return TrtllmMoe(
            quant="mxfp4_bf16" if kernels.mxfp4_precision == "bf16" else "mxfp4_mxfp8",
            num_experts=experts.total,
            local_experts=experts.local,
            hidden_size=hidden,
            intermediate_size=width,
            top_k=experts.top_k,
            output_size=model.hidden_size,
            biased=True,
        )
    quant: CutlassQuant = "mxfp8_mxfp4" if major == 12 else "w4a16_mxfp4"
    if major == 9 and kernels.mxfp4_precision == "fp8":
        quant = "w4a8_mxfp4"
    return CutlassFusedMoe(
        num_experts=experts.total,
        local_experts=experts.local,
        hidden_size=hidden,
        intermediate_size=width,
        top_k=experts.top_k,
        tp_size=layout.moe_tp_size,
        ep_size=layout.moe_ep_size,
        tune_max_num_tokens=kernels.cutlass_tune_max,
        use_fused_finalize=kernels.fused_finalize,
        quant=quant,
        biased=True,
    )


def _cute_dsl(
    model: ModelFacts, weights: Format, experts: Experts, layout: Layout, kernels: Kernels
) -> CuteDslMoe | None:
    made = CuteDslMoeW4A16 if kernels.nvfp4_w4a16 or weights == "w4a16_nvfp4" else CuteDslMoe
    call = made(
        num_experts=experts.total,
        local_experts=experts.local,
        hidden_size=model.hidden_size,
        intermediate_size=model.moe_intermediate_size // layout.moe_tp_size,
        top_k=experts.top_k,
        use_fused_finalize=kernels.fused_finalize,
    )
    return call if call.unsupported_reason(kernels.capability) is None else None


def _trtllm(model: ModelFacts, weights: Format, experts: Experts, layout: Layout, kernels: Kernels) -> TrtllmMoe | None:
    routed = is_routed(model, layout, kernels, weights)
    if weights == "fp8" and (kernels.moe_runner == "flashinfer_trtllm_routed" or not declares_routing(model)):
        return None  # ModelOptFp8MoEMethod.create_moe_runner: Triton
    step = _NVFP4_STEP if weights == "nvfp4" else _TRTLLM_STEP
    call = TrtllmMoe(
        quant=_TRTLLM[weights],
        num_experts=experts.total,
        local_experts=experts.local,
        hidden_size=model.hidden_size,
        intermediate_size=round_up(model.moe_intermediate_size // layout.moe_tp_size, step),
        top_k=experts.top_k,
        routed=routed and weights != "int4",
    )
    return call if call.unsupported_reason(kernels.capability) is None else None
