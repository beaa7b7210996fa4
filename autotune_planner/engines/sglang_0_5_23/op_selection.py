"""Which FlashInfer ops a deployment reaches, and with how many rows. Sources: ``layers/moe``, ``layers/quantization``
and the model classes of the release."""

from __future__ import annotations

import re
from collections.abc import Iterator

from autotune_planner.engines.resolved import OpUse
from autotune_planner.engines.sglang_0_5_23.model import ModelFacts
from autotune_planner.ops.base import OpCall
from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.ops.cutlass_fused_moe import CutlassFusedMoe
from autotune_planner.values import dataclass


@dataclass(frozen=True)
class Rows:
    """Tokens that a layer sees: in the server's two dummies (None: no such pass) and, at most, in production (None:
    this worker has no such phase)."""

    decode_pass: int | None
    extend_pass: int | None
    decode: int | None
    prefill: int | None


@dataclass(frozen=True)
class Layout:
    """Parallel sizes of one rank's layers."""

    tp_size: int
    attn_tp_size: int
    moe_tp_size: int
    moe_ep_size: int
    redundant_experts: int
    enable_alltoall: bool
    use_fused_finalize: bool
    cutlass_tune_max: int


def select_ops(
    model: ModelFacts, *, runner: str, quantization: str | None, layout: Layout, local: Rows, moe: Rows
) -> tuple[OpUse, ...]:
    """Every op with a tuner that we can drive; ``quantization`` is the checkpoint's by the server's name."""
    uses = []
    if runner == "flashinfer_cutlass" and model.num_experts and quantization is None:
        uses.append(_use("mlp.experts", _cutlass_moe(model, layout), moe))
    if quantization == "modelopt_fp8":
        # A dense MLP is split over TP like the experts and runs on gathered rows; attention is local.
        uses += [
            _use(layer, call, moe if layer.startswith("mlp.") else local)
            for layer, call in _fp8_linears(model, layout)
            if _is_quantized(model, layer)
        ]
    return tuple(uses)


def uneven_shape(model: ModelFacts, layout: Layout) -> str | None:
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
    return next((f"{what} {total} over {ranks} ranks" for what, total, ranks in parts if total % max(ranks, 1)), None)


def unplanned_ops(
    model: ModelFacts, *, runner: str, quantization: str | None, autotuned_runners: list[str]
) -> str | None:
    """What the server tunes here and we cannot plan yet, as text; None where nothing is left out."""
    planned = runner == "flashinfer_cutlass" and quantization is None
    if runner in autotuned_runners and model.num_experts and not planned:
        return f"the {runner} MoE with {quantization or 'bfloat16'} weights"
    if quantization in ("modelopt_fp4", "modelopt_mixed", "mxfp8") or (quantization == "modelopt_fp8" and model.is_mla):
        return f"linear layers in {quantization}"
    return None


def _is_quantized(model: ModelFacts, layer: str) -> bool:
    """Whether any decoder layer has this linear in FP8: checkpoints leave modules out by name, whole or in parts.

    Source: ``layers/quantization/modelopt_quant.is_layer_excluded``.
    """
    patterns = [re.compile(re.escape(pattern).replace(r"\*", ".*")) for pattern in model.not_quantized]
    module = layer.replace("attn.", "self_attn.")
    names = (f"model.layers.{index}.{module}" for index in range(model.num_layers))
    return any(not any(p.fullmatch(part) for p in patterns for part in (name, *name.split("."))) for name in names)


def _use(layer: str, call: OpCall, rows: Rows) -> OpUse:
    return OpUse(layer, call, rows.decode_pass, rows.extend_pass, rows.decode, rows.prefill)


def _cutlass_moe(model: ModelFacts, layout: Layout) -> CutlassFusedMoe:
    """Source: ``layers/quantization/unquant.py`` and ``moe_runner/flashinfer_cutlass.py``; bf16 is not padded."""
    experts = model.num_experts + layout.redundant_experts
    return CutlassFusedMoe(
        num_experts=experts,
        local_experts=experts // layout.moe_ep_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.moe_intermediate_size // layout.moe_tp_size,
        top_k=model.top_k,
        tp_size=layout.moe_tp_size,
        ep_size=layout.moe_ep_size,
        tune_max_num_tokens=layout.cutlass_tune_max,
        use_fused_finalize=layout.use_fused_finalize,
        enable_alltoall=layout.enable_alltoall,
    )


def _fp8_linears(model: ModelFacts, layout: Layout) -> Iterator[tuple[str, BmmFp8]]:
    """Linears of one decoder layer per rank: attention is split over attention-TP, a dense MLP over TP. KV heads are
    replicated where there are fewer than ranks. Latent attention has other projections."""
    if model.is_mla:
        return
    attn_tp = layout.attn_tp_size
    heads = model.num_heads // attn_tp
    kv_heads = max(1, model.num_kv_heads // attn_tp)
    hidden, head = model.hidden_size, model.head_dim
    yield "attn.qkv_proj", BmmFp8(n=(heads + 2 * kv_heads) * head, k=hidden)
    yield "attn.o_proj", BmmFp8(n=hidden, k=heads * head)
    if not model.num_experts:
        width = model.intermediate_size // layout.tp_size
        yield "mlp.gate_up_proj", BmmFp8(n=2 * width, k=hidden)
        yield "mlp.down_proj", BmmFp8(n=hidden, k=width)
