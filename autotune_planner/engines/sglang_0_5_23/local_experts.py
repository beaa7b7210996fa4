"""Experts of one rank, and whether they are chosen before the kernel runs.

Sources: ``layers/moe/fused_moe_triton/layer.FusedMoE``, ``layers/moe/utils.resolve_shared_experts_config``,
``layers/moe/topk`` and ``shared_experts_fusion_disable_reason`` of the model classes.
"""

from __future__ import annotations

from autotune_planner.engines.sglang_0_5_23 import architectures
from autotune_planner.engines.sglang_0_5_23.layer_quantization import Format
from autotune_planner.engines.sglang_0_5_23.model import ModelFacts
from autotune_planner.engines.sglang_0_5_23.op_layout import Kernels, Layout
from autotune_planner.values import dataclass

_VALIDATED_COUNTS = (256,)  # routed experts; 384 (Kimi) only for a Quark checkpoint
_A2A_WITHOUT_FUSION = ("flashinfer", "flashinfer_megamoe", "deepep_v2")
_DEEPEP = ("deepep", "mooncake", "nixl", "mori", "pplx")


@dataclass(frozen=True)
class Experts:
    """``total`` counts redundant experts and fused shared ones; ``top_k`` counts fused shared ones."""

    total: int
    local: int
    top_k: int
    fused_shared: int


def experts_of(model: ModelFacts, quantization: str | None, layout: Layout, kernels: Kernels) -> Experts:
    """Shared experts that are fused stand on every rank; the others are divided over EP."""
    fused = fused_shared_experts(model, quantization, layout, kernels)
    routed = model.num_experts + layout.redundant_experts
    return Experts(routed + fused, routed // layout.moe_ep_size + fused, model.top_k + fused, fused)


def fused_shared_experts(model: ModelFacts, quantization: str | None, layout: Layout, kernels: Kernels) -> int:
    """Shared experts that run as one more routed expert. Sources: ``overrides._moe_runner_fusion_disable``,
    ``overrides._a2a_fusion_adjustments``, ``deepseek_v2`` and ``glm4_moe`` (both with
    ``shared_experts_fusion_disable_reason``)."""
    if kernels.fusion_disabled or kernels.is_trtllm or kernels.moe_runner == "flashinfer_cutedsl":
        return 0
    if kernels.a2a_backend in _A2A_WITHOUT_FUSION:
        return 0
    if model.architecture == "Glm4MoeForCausalLM":
        fusable = layout.moe_ep_size == 1 and kernels.a2a_backend not in ("deepep", "mori")
        return model.shared_experts if fusable and quantization != "w4afp8" else 0
    if model.architecture not in architectures.FUSES_SHARED_EXPERT:
        return 0
    if kernels.fusion_enforced:
        return model.shared_experts
    fusable = (
        model.shared_experts == 1
        and model.num_experts in _VALIDATED_COUNTS
        and layout.moe_ep_size == 1
        and kernels.a2a_backend not in _DEEPEP
        and quantization != "w4afp8"
        and not (quantization == "modelopt_fp4" and kernels.capability[0] == 9 and kernels.moe_runner == "marlin")
    )
    return 1 if fusable else 0


def is_routed(model: ModelFacts, layout: Layout, kernels: Kernels, weights: Format) -> bool:
    """Whether the TensorRT-LLM MoE gets chosen experts instead of the router's logits.

    Sources: ``topk._can_bypass_trtllm_routing``, ``flashinfer_trtllm.fused_experts_none_to_flashinfer_trtllm_fp8``
    (FP8 materialises where padded rows are to be masked, under EP without attention DP, or experts are remapped) and
    ``forward_batch_info.moe_num_token_non_padded``.
    """
    if kernels.moe_runner == "flashinfer_trtllm_routed" or kernels.a2a_backend == "flashinfer":
        return True
    if not _router_is_native(model):
        return True
    if weights not in ("fp8", "fp8_block", "mxfp8"):
        return False
    masked = layout.moe_ep_size > 1 and layout.attn_dp_size == 1
    return masked or kernels.experts_remapped


def declares_routing(model: ModelFacts) -> bool:
    """Whether the model class names a routing method: without one the FP8 MoE stays in Triton."""
    return model.architecture in (
        architectures.GROUPED_SIGMOID_ROUTER | architectures.SOFTMAX_ROUTER | architectures.LLAMA4_ROUTER
    )


def _router_is_native(model: ModelFacts) -> bool:
    """Whether the kernel can choose the experts as the model's router would."""
    if model.architecture in architectures.GROUPED_SIGMOID_ROUTER:
        return model.router_bias and model.renormalizes
    if model.architecture in architectures.SOFTMAX_ROUTER:
        return model.renormalizes
    return model.architecture in architectures.LLAMA4_ROUTER and model.top_k == 1
