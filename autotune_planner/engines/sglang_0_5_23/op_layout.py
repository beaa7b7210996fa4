"""What the choice of ops reads beside the model: rows, parallel sizes of one rank's layers, and kernel choices."""

from __future__ import annotations

from autotune_planner.ops.base import ComputeCapability
from autotune_planner.values import dataclass


@dataclass(frozen=True)
class Rows:
    """Tokens that a layer sees: in the server's two dummies (None: no such pass) and, at most, in production (None:
    this worker has no such phase)."""

    decode_pass: int | None
    extend_pass: int | None
    decode: int | None
    prefill: int | None

    def largest(self) -> int:
        values = (self.decode_pass, self.extend_pass, self.decode, self.prefill)
        return max((value for value in values if value is not None), default=0)


@dataclass(frozen=True)
class LayerRows:
    """``local``: tokens of one attention-DP rank. ``gathered``: of all of them, as a layer sees them that is split over
    TP. ``moe``: after the dispatch, where there is an all-to-all. ``captured``: the MoE's largest rows in a decode
    CUDA graph, None without graphs."""

    local: Rows
    gathered: Rows
    moe: Rows
    captured: int | None


@dataclass(frozen=True)
class Layout:
    """Parallel sizes. ``dense_tp_size`` is 1 where a dense MLP is replicated (``--moe-dense-tp-size 1``)."""

    tp_size: int
    attn_tp_size: int
    attn_dp_size: int
    moe_tp_size: int
    moe_ep_size: int
    dense_tp_size: int
    redundant_experts: int


@dataclass(frozen=True)
class Kernels:
    """Choices among kernels, resolved. ``fp4_gemm`` and ``mxfp8_gemm`` are backends by the server's names;
    ``deferred_rows`` is the most rows whose last sum a captured graph leaves to a kernel of its own (0: never)."""

    capability: ComputeCapability
    moe_runner: str
    a2a_backend: str
    fp4_gemm: str
    mxfp8_gemm: str
    mxfp4_precision: str
    nvfp4_w4a16: bool
    nvfp4_dispatch: bool
    fp4_allgather: bool
    fused_finalize: bool
    fusion_disabled: bool
    fusion_enforced: bool
    experts_remapped: bool
    shared_expert_replicated: bool
    prefill_graph: str
    deferred_rows: int
    cutlass_tune_max: int

    @property
    def is_trtllm(self) -> bool:
        return self.moe_runner in ("flashinfer_trtllm", "flashinfer_trtllm_routed")
