"""Dense linears that run in a FlashInfer op with a tuner, with one rank's shapes.

Sources: ``layers/linear.py``, the model classes, and the linear methods of ``layers/quantization/modelopt_quant.py``
and ``layers/quantization/fp8.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from autotune_planner.engines.resolved import OpUse
from autotune_planner.engines.sglang_0_5_23 import architectures
from autotune_planner.engines.sglang_0_5_23.layer_quantization import Format, format_of
from autotune_planner.engines.sglang_0_5_23.local_experts import fused_shared_experts
from autotune_planner.engines.sglang_0_5_23.model import ModelFacts
from autotune_planner.engines.sglang_0_5_23.op_layout import Kernels, LayerRows, Layout, Rows
from autotune_planner.ops.base import OpCall
from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.ops.mm_bf16_fp4 import MmBf16Fp4
from autotune_planner.ops.mm_fp4 import CuteDslMmFp4, CutlassMmFp4
from autotune_planner.ops.mm_mxfp8 import CuteDslMmMxfp8, CutlassMmMxfp8
from autotune_planner.values import dataclass

_BMM_ALIGNMENT = 16


@dataclass(frozen=True)
class Linear:
    """One linear of a decoder layer: ``module`` by the checkpoint's name, sizes per rank, and the rows that it sees."""

    layer: str
    module: str
    layers: tuple[int, ...]
    n: int
    k: int
    rows: Rows
    own_kernel: bool = False  # the server fuses it into a kernel of its own where it is in NVFP4


def linear_uses(
    model: ModelFacts, quantization: str | None, layout: Layout, kernels: Kernels, rows: LayerRows
) -> Iterator[OpUse]:
    """Every linear with a tuner; equal shapes of several layers are one op each."""
    for linear in linears(model, quantization, layout, kernels, rows):
        call = linear_call(linear, format_of(model, quantization, linear.module, linear.layers), kernels)
        if call is not None:
            seen = linear.rows
            yield OpUse(linear.layer, call, seen.decode_pass, seen.extend_pass, seen.decode, seen.prefill)


def linear_call(linear: Linear, weights: Format, kernels: Kernels) -> OpCall | None:
    n, k = linear.n, linear.k
    if weights == "fp8" and n % _BMM_ALIGNMENT == 0 and k % _BMM_ALIGNMENT == 0:
        return BmmFp8(n=n, k=k)
    if weights == "nvfp4":
        return None if linear.own_kernel else _nvfp4(n, k, kernels)
    if weights == "mxfp8":
        return _mxfp8(n, k, kernels)
    return None


def untuned_reason(linear: Linear, weights: Format, kernels: Kernels) -> str | None:
    """Why a linear has no tuner that we drive; None where it has."""
    if linear_call(linear, weights, kernels) is not None:
        return None
    if weights == "nvfp4" and linear.own_kernel:
        return "runs in the server's own kernel, fused with SwiGLU"
    if weights == "nvfp4":
        return f"NVFP4 in {kernels.fp4_gemm}, which has no tuner that is planned"
    if weights == "mxfp8":
        return f"MXFP8 in {kernels.mxfp8_gemm}, which has no tuner that is planned"
    if weights == "fp8":
        return "sizes are no multiples of 16: runs in another kernel"
    kinds = {"bf16": "bfloat16: torch's own GEMM", "fp8_block": "block FP8: DeepGEMM or Triton, without a tuner"}
    return kinds.get(weights, "this format runs in kernels without FlashInfer's tuner")


def linears(
    model: ModelFacts, quantization: str | None, layout: Layout, kernels: Kernels, rows: LayerRows
) -> Iterator[Linear]:
    """Linears of the decoder layers, attention first. Models with recurrent layers have others, left out."""
    everywhere = tuple(range(model.num_layers))
    if model.architecture not in architectures.RECURRENT_STATE:
        yield from _attention(model, layout, rows.local, everywhere)
    dense = everywhere if not model.num_experts else model.dense_layers
    if dense:
        tp = layout.dense_tp_size
        seen = rows.local if tp == 1 and layout.attn_dp_size > 1 else rows.gathered
        width = model.intermediate_size // tp
        yield Linear("mlp.gate_up_proj", "mlp.gate_up_proj", dense, 2 * width, model.hidden_size, seen)
        yield Linear("mlp.down_proj", "mlp.down_proj", dense, model.hidden_size, width, seen)
    if model.shared_intermediate and not fused_shared_experts(model, quantization, layout, kernels):
        yield from _shared_expert(model, layout, kernels, rows)


def _attention(model: ModelFacts, layout: Layout, rows: Rows, layers: tuple[int, ...]) -> Iterator[Linear]:
    """Split over attention-TP; KV heads are replicated where there are fewer than ranks."""
    hidden, heads = model.hidden_size, model.num_heads // layout.attn_tp_size
    latent = model.latent
    if not model.is_mla or latent is None:
        kv_heads = max(1, model.num_kv_heads // layout.attn_tp_size)
        width = (heads + 2 * kv_heads) * model.head_dim
        yield Linear("attn.qkv_proj", "self_attn.qkv_proj", layers, width, hidden, rows)
        yield Linear("attn.o_proj", "self_attn.o_proj", layers, hidden, heads * model.head_dim, rows)
        return
    head = latent.nope_dim + latent.rope_dim
    compressed = latent.kv_rank + latent.rope_dim
    if latent.q_rank:
        name = "fused_qkv_a_proj_with_mqa"
        yield Linear(f"attn.{name}", f"self_attn.{name}", layers, latent.q_rank + compressed, hidden, rows)
        yield Linear("attn.q_b_proj", "self_attn.q_b_proj", layers, heads * head, latent.q_rank, rows)
    else:
        yield Linear("attn.q_proj", "self_attn.q_proj", layers, heads * head, hidden, rows)
        name = "kv_a_proj_with_mqa"
        yield Linear(f"attn.{name}", f"self_attn.{name}", layers, compressed, hidden, rows)
    yield Linear("attn.o_proj", "self_attn.o_proj", layers, hidden, heads * latent.v_dim, rows)


def _shared_expert(model: ModelFacts, layout: Layout, kernels: Kernels, rows: LayerRows) -> Iterator[Linear]:
    """Replicated, on local rows, beside a dispatch of quantized or scattered tokens; otherwise split like the experts.

    Source: ``deepseek_v2.DeepseekV2MoE.__init__``, which also fuses gate and up with SwiGLU in NVFP4.
    """
    replicated = kernels.shared_expert_replicated
    width = model.shared_intermediate // (1 if replicated else layout.tp_size)
    seen = rows.local if replicated else rows.gathered
    layers = tuple(layer for layer in range(model.num_layers) if layer not in model.dense_layers)
    own_kernel = (
        model.architecture in architectures.DEEPSEEK_MOE
        and kernels.capability[0] == 10
        and kernels.fp4_gemm not in ("marlin", "flashinfer_trtllm")
        and not kernels.nvfp4_w4a16
        and 2 * width % 128 == 0
        and kernels.prefill_graph != "tc_piecewise"
    )
    name = model.shared_module
    gate_up, down = f"mlp.{name}.gate_up_proj", f"mlp.{name}.down_proj"
    yield Linear(gate_up, gate_up, layers, 2 * width, model.hidden_size, seen, own_kernel)
    yield Linear(down, down, layers, model.hidden_size, width, seen)


def _nvfp4(n: int, k: int, kernels: Kernels) -> OpCall | None:
    call: OpCall
    if kernels.fp4_gemm == "flashinfer_cutedsl":
        call = MmBf16Fp4(n=n, k=k) if kernels.nvfp4_w4a16 else CuteDslMmFp4(n=n, k=k)
    elif kernels.fp4_gemm == "flashinfer_cutlass":
        call = CutlassMmFp4(n=n, k=k)
    else:
        return None
    return call if call.unsupported_reason(kernels.capability) is None else None


def _mxfp8(n: int, k: int, kernels: Kernels) -> OpCall | None:
    call: OpCall
    if kernels.mxfp8_gemm == "flashinfer_cutedsl":
        call = CuteDslMmMxfp8(n=n, k=k)
    elif kernels.mxfp8_gemm == "flashinfer_cutlass":
        call = CutlassMmMxfp8(n=n, k=k)
    else:
        return None
    return call if call.unsupported_reason(kernels.capability) is None else None
