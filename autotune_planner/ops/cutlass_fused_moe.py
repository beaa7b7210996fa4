"""CUTLASS fused MoE: ``flashinfer.fused_moe.cutlass_fused_moe``.

The call is the one of SGLang 0.5.23, ``layers/moe/moe_runner/flashinfer_cutlass.py:_run_flashinfer_cutlass``:
``use_fused_finalize`` False by default (SGLANG_FLASHINFER_MOE_FUSED_FINALIZE), ``enable_pdl`` left to FlashInfer.
"""

from __future__ import annotations

from typing import Any, ClassVar

from autotune_planner.ops.base import Bind, BoundCall, ComputeCapability, JitModule, OpCall
from autotune_planner.ops.numerics import gated_moe
from autotune_planner.ops.tensors import TensorSpec
from autotune_planner.values import dataclass

_ARCHITECTURES = {(8, 9): "89", (9, 0): "90", (10, 0): "100", (10, 3): "103", (12, 0): "120", (12, 1): "120"}
_OBJECTS = 248  # SM90; the other architectures' counts are of the same order
_BF16, _INT, _LONG = 2, 4, 8
_ROUTING_SAMPLES = 16  # NUM_ROUTING_SAMPLES of the profiler, each with three maps of the routed rows
_TMA_BYTES = 256  # upper estimate of the descriptors of one expert's GEMM: pointers, strides and shape
_TMA_SETS = _ROUTING_SAMPLES * 2 * 2 + 1  # NUM_FUSION_TYPES x NUM_SWAP_AB_TYPES


@dataclass(frozen=True)
class CutlassFusedMoe(OpCall):
    """bf16 gated MoE of one rank.

    Weights: fc1 ``(local_experts, 2 * intermediate_size, hidden_size)``, fc2 ``(local_experts, hidden_size,
    intermediate_size)``; ``intermediate_size`` is per rank. Two custom ops with the same profile: gemm1 and gemm2.
    """

    family: ClassVar[str] = "cutlass_fused_moe"
    runner: ClassVar[str] = "MoERunner"

    num_experts: int
    local_experts: int
    hidden_size: int
    intermediate_size: int
    top_k: int
    tp_size: int
    ep_size: int
    tune_max_num_tokens: int
    use_fused_finalize: bool = False
    enable_alltoall: bool = False

    @property
    def custom_ops(self) -> tuple[str, ...]:
        return ("trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2")

    @property
    def tune_max(self) -> int:
        return self.tune_max_num_tokens

    @property
    def label(self) -> str:
        return f"E{self.local_experts} H{self.hidden_size} I{self.intermediate_size} k{self.top_k}"

    def unsupported_reason(self, capability: ComputeCapability) -> str | None:
        if capability in _ARCHITECTURES:
            return None
        return f"FlashInfer's CUTLASS fused MoE has no module for SM{capability[0]}{capability[1]}"

    def jit_modules(self, capability: ComputeCapability) -> tuple[JitModule, ...]:
        arch = _ARCHITECTURES[capability]
        generator = f"flashinfer.jit.fused_moe:gen_cutlass_fused_moe_sm{arch}_module"
        return (JitModule(f"fused_moe_{arch}", generator, _OBJECTS),)

    def weights(self) -> tuple[TensorSpec, ...]:
        experts, hidden, width = self.local_experts, self.hidden_size, self.intermediate_size
        return (
            TensorSpec("fc1_expert_weights", (experts, 2 * width, hidden), "bfloat16"),
            TensorSpec("fc2_expert_weights", (experts, hidden, width), "bfloat16"),
        )

    def inputs(self, m: int) -> tuple[TensorSpec, ...]:
        return (
            TensorSpec("input", (m, self.hidden_size), "bfloat16"),
            TensorSpec("token_selected_experts", (m, self.top_k), "int32"),
            TensorSpec("token_final_scales", (m, self.top_k), "float32"),
        )

    def output(self, m: int) -> TensorSpec:
        return TensorSpec("output", (m, self.hidden_size), "bfloat16")

    def scratch(self, m: int) -> tuple[tuple[str, int], ...]:
        """Workspace of one run; every token is expanded to ``top_k`` routed rows, whoever holds the expert.

        Source: FlashInfer 0.7.2, ``cutlass_fused_moe_kernels.cuh:getWorkspaceDeviceBufferSizes``: permuted input and
        fc2 result share one buffer, both halves of the gated fc1 result and the fc2 result the other. Its counters and
        CUTLASS's own workspace, below 1 MB together, are left out.
        """
        routed, experts = m * self.top_k, self.local_experts
        hidden, width = self.hidden_size, self.intermediate_size
        maps = 4 if self.use_fused_finalize else 3  # permuted rows, experts, destinations, and scales to fuse
        return (
            ("routed rows in", routed * max(hidden, width) * _BF16),
            ("routed rows x intermediate", routed * max(2 * width, hidden) * _BF16),
            ("routing maps", routed * maps * _INT + 2 * experts * m * _INT + 2 * experts * _TMA_BYTES),
        )

    def tuner_inputs(self, bucket: int) -> tuple[TensorSpec, ...]:
        return self.inputs(bucket)[:1]

    def weight_share(self, m: int) -> float:
        return min(1.0, m * self.top_k / self.num_experts)

    def flops(self, custom_op: str, m: int) -> float:
        """Of all routed rows; gemm1 computes the linear and the gate half."""
        halves = 2 if custom_op == self.custom_ops[0] else 1
        return 2.0 * m * self.top_k * halves * self.intermediate_size * self.hidden_size

    def profiler_bytes(self, custom_op: str, bucket: int) -> int:
        """Workspace of FlashInfer's GEMM profiler; the weights are ours.

        Source: FlashInfer 0.7.2, ``cutlass_fused_moe_kernels.cuh:GemmProfilerBackend::getProfilerWorkspaces``.
        """
        routed, experts = bucket * self.top_k, self.local_experts
        hidden, width = self.hidden_size, self.intermediate_size
        # Input, output and intermediate result; gemm2's output is one row.
        gemm1 = routed * (hidden + width + 2 * width) * _BF16
        gemm2 = routed * (width + hidden) * _BF16 + hidden * _BF16
        maps = (3 * _ROUTING_SAMPLES + 2) * routed * _INT + experts * bucket * _INT
        tables = (experts + 1) * _LONG * _ROUTING_SAMPLES + experts * (_LONG + _TMA_BYTES * _TMA_SETS)
        return (gemm1 if custom_op == self.custom_ops[0] else gemm2) + maps + tables

    def prepare(self, device: str) -> Bind:
        import torch
        from flashinfer.fused_moe import cutlass_fused_moe
        from flashinfer.fused_moe.core import ActivationType

        bf16 = torch.bfloat16
        fc1 = _weights((self.local_experts, 2 * self.intermediate_size, self.hidden_size), device)
        fc2 = _weights((self.local_experts, self.hidden_size, self.intermediate_size), device)

        def bind(m: int) -> BoundCall:
            x = torch.randn((m, self.hidden_size), dtype=bf16, device=device)
            # Global ids: under EP the kernel skips the experts of other ranks, as in serving.
            ids = torch.rand((m, self.num_experts), device=device).topk(self.top_k, dim=1).indices.to(torch.int32)
            scales = torch.full((m, self.top_k), 1.0 / self.top_k, dtype=torch.float32, device=device)

            def launch() -> Any:
                return cutlass_fused_moe(
                    output=torch.empty((m, self.hidden_size), dtype=bf16, device=device),
                    input=x,
                    token_selected_experts=ids,
                    token_final_scales=scales,
                    fc1_expert_weights=fc1,
                    fc2_expert_weights=fc2,
                    output_dtype=bf16,
                    input_sf=None,
                    quant_scales=None,
                    swiglu_alpha=None,
                    swiglu_beta=None,
                    swiglu_limit=None,
                    ep_size=self.ep_size,
                    ep_rank=0,
                    tp_size=self.tp_size,
                    tp_rank=0,
                    tune_max_num_tokens=self.tune_max_num_tokens,
                    activation_type=ActivationType.Swiglu,
                    enable_alltoall=self.enable_alltoall,
                    use_fused_finalize=self.use_fused_finalize,
                )[0]

            return BoundCall(launch, reference=lambda: gated_moe(x, ids, scales, fc1, fc2))

        return bind


def _weights(shape: tuple[int, ...], device: str) -> Any:
    """Random bf16 weights small enough that activations stay finite; filled in place, so the peak is the weights."""
    import torch

    return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(std=0.02)
