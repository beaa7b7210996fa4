"""Which FlashInfer ops a deployment reaches, and with how many rows."""

from __future__ import annotations

from autotune_planner.engines.resolved import OpUse, UnseenOp
from autotune_planner.engines.sglang_0_5_23 import architectures
from autotune_planner.engines.sglang_0_5_23.layer_quantization import Format, format_of
from autotune_planner.engines.sglang_0_5_23.linear_ops import linear_uses, linears, untuned_reason
from autotune_planner.engines.sglang_0_5_23.model import ModelFacts
from autotune_planner.engines.sglang_0_5_23.moe_ops import deferred, moe_call, uneven_blocks
from autotune_planner.engines.sglang_0_5_23.op_layout import Kernels, LayerRows, Layout
from autotune_planner.ops.base import OpCall

_EXPERTS = "mlp.experts"
_CAPTURED = "mlp.experts (captured)"


def select_ops(
    model: ModelFacts, quantization: str | None, layout: Layout, kernels: Kernels, rows: LayerRows
) -> tuple[OpUse, ...]:
    """Every op with a tuner that we can drive; ``quantization`` is the model's by the server's name."""
    uses = []
    call = _moe(model, quantization, layout, kernels)
    if call is not None:
        seen = rows.moe
        uses.append(OpUse(_EXPERTS, call, seen.decode_pass, seen.extend_pass, seen.decode, seen.prefill))
        captured = deferred(call, model, kernels)
        if captured is not None and rows.captured is not None and seen.decode is not None:
            most = min(rows.captured, kernels.deferred_rows)
            note = "captured graphs leave the last sum to the server, which tunes it finalized only"
            uses.append(OpUse(_CAPTURED, captured, None, None, most, None, note))
    return (*uses, *linear_uses(model, quantization, layout, kernels, rows))


def uneven_shape(model: ModelFacts, quantization: str | None, layout: Layout, kernels: Kernels) -> str | None:
    """What of a model cannot be split evenly over the ranks, as text; None where all can.

    The server resolves its arguments all the same, and fails an assertion when it builds its layers
    (``layers/moe/fused_moe_triton/layer.py``, ``layers/linear.py`` and the model classes).
    """
    experts = model.num_experts + layout.redundant_experts
    parts = [("attention heads", model.num_heads, layout.attn_tp_size)]
    if model.num_experts:
        parts += [
            ("experts", experts, layout.moe_ep_size),
            ("MoE intermediate size", model.moe_intermediate_size, layout.moe_tp_size),
        ]
    else:
        parts.append(("intermediate size", model.intermediate_size, layout.tp_size))
    found = next((f"{what} {total} over {ranks} ranks" for what, total, ranks in parts if total % max(ranks, 1)), None)
    if found is None and model.num_experts and layout.moe_tp_size:
        return uneven_blocks(model, expert_format(model, quantization), layout, kernels)
    return found


def unplanned_ops(
    model: ModelFacts, quantization: str | None, layout: Layout, kernels: Kernels, autotuned_runners: list[str]
) -> str | None:
    """What the server may tune here and we cannot plan, as text; None where nothing is left out."""
    if kernels.moe_runner in autotuned_runners and model.num_experts:
        weights = expert_format(model, quantization)
        in_triton = weights in ("fp8_block", "fp8", "bf16")  # without a FlashInfer kernel there
        if _moe(model, quantization, layout, kernels) is None and not in_triton:
            return f"the {kernels.moe_runner} MoE with {quantization or 'bfloat16'} weights"
    other_fp4 = kernels.fp4_gemm in ("flashinfer_trtllm", "flashinfer_cudnn")
    if other_fp4 and quantization in ("modelopt_fp4", "modelopt_mixed"):
        return f"linear layers in NVFP4 with --fp4-gemm-backend {kernels.fp4_gemm}"
    if kernels.mxfp8_gemm == "flashinfer_trtllm" and quantization == "mxfp8":
        return "linear layers in MXFP8 with --fp8-gemm-backend flashinfer_trtllm"
    modelopt = quantization in ("modelopt_fp8", "modelopt_fp4", "modelopt_mixed", "mxfp8")
    if modelopt and model.architecture in architectures.RECURRENT_STATE:
        return f"linear layers of the recurrent attention in {quantization}"
    return None


def unseen_ops(
    model: ModelFacts,
    quantization: str | None,
    layout: Layout,
    kernels: Kernels,
    rows: LayerRows,
    attention: str | None,
    *,
    drafted: bool,
    no_autotune: str | None = None,
) -> tuple[UnseenOp, ...]:
    """What runs in every forward and no plan tunes, each with the reason; ``drafted``: there is a draft model.

    ``no_autotune`` is why the server tunes nothing at all, None where it does.
    """
    off = None if no_autotune is None else f"not autotuned: {no_autotune}"
    found = []
    if model.num_experts and (off or _moe(model, quantization, layout, kernels) is None):
        reason = f"the {kernels.moe_runner} runner has no op here that FlashInfer's tuner can tune"
        found.append(UnseenOp(_EXPERTS, "MoE", off or reason))
    for linear in linears(model, quantization, layout, kernels, rows):
        form = format_of(model, quantization, linear.module, linear.layers)
        reason_ = untuned_reason(linear, form, kernels) or off
        if reason_ is not None:
            found.append(UnseenOp(linear.layer, f"GEMM N{linear.n} K{linear.k}", reason_))
    if model.is_mla:
        # deepseek_common/attention_forward_methods/forward_mla.py: sglang.kernels.ops.gemm.bmm_fp8, or torch.bmm
        reason = "absorbed into the attention by SGLang's own batched GEMM, which has no tuner"
        found.append(UnseenOp("attn.kv_b_proj", "batched GEMMs", reason))
    if model.num_experts:
        found.append(UnseenOp("mlp.gate", "router GEMM", "bfloat16 or float32: no tuner"))
    found.append(UnseenOp("attn", f"attention ({attention})", _attention_reason(model, attention)))
    found.append(UnseenOp("lm_head", "LM head GEMM", "the server's passes skip it, and torch's own GEMM has no tuner"))
    if drafted:
        reason = (
            "the server tunes it while it captures its graphs, into cache files of its own (draft_quant in their key)"
        )
        found.append(UnseenOp("draft model", "all of its ops", reason))
    if layout.tp_size > 1:
        found.append(UnseenOp("collectives", "all-reduce, all-gather, all-to-all", "run across ranks: no tuner"))
    return tuple(found)


def expert_format(model: ModelFacts, quantization: str | None) -> Format:
    layers = (layer for layer in range(model.num_layers) if layer not in model.dense_layers)
    return format_of(model, quantization, _EXPERTS, layers)


def _moe(model: ModelFacts, quantization: str | None, layout: Layout, kernels: Kernels) -> OpCall | None:
    if not model.num_experts:
        return None
    return moe_call(model, quantization, expert_format(model, quantization), layout, kernels)


def _attention_reason(model: ModelFacts, attention: str | None) -> str:
    if model.is_mla and attention in ("trtllm_mla", "cutedsl_mla"):
        return (
            "trtllm_batch_decode_mla: its keys hold the block table's width and the workspace of the running server, "
            "so it is tuned there and not ahead of time"
        )
    return "no tuner"
