"""Dense FP8 linear with per-tensor scales: ``flashinfer.bmm_fp8`` on the cuBLASLt backend.

The call is the one of SGLang 0.5.23, ``layers/quantization/fp8_utils.py:apply_fp8_linear_bmm_flashinfer``: the
activation and the column-major weight get a batch dimension of 1, both scales have shape (1,).
"""

from __future__ import annotations

from typing import Any, ClassVar

from autotune_planner.ops.base import Bind, BoundCall, ComputeCapability, JitModule
from autotune_planner.ops.dense_linear import DenseLinear
from autotune_planner.ops.numerics import rows_of
from autotune_planner.ops.tensors import WORKSPACE, TensorSpec
from autotune_planner.values import dataclass


@dataclass(frozen=True)
class BmmFp8(DenseLinear):
    """FP8 e4m3 linear of one rank: ``(1, M, k) x (1, k, n) -> (1, M, n)`` in bfloat16."""

    family: ClassVar[str] = "bmm_fp8"
    runner: ClassVar[str] = "CublasFp8GemmRunner"

    @property
    def custom_ops(self) -> tuple[str, ...]:
        return ("fp8_gemm",)

    def was_run(self, capability: ComputeCapability) -> bool:
        return capability == (9, 0)

    def unsupported_reason(self, capability: ComputeCapability) -> str | None:
        if capability >= (8, 9):
            return None
        return f"FP8 needs SM89 or newer, this is SM{capability[0]}{capability[1]}"

    def jit_modules(self, capability: ComputeCapability) -> tuple[JitModule, ...]:
        return (JitModule("gemm", "flashinfer.jit.gemm:gen_gemm_module", 3),)

    def weights(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("weight", (1, self.n, self.k), "float8_e4m3fn"),)

    def inputs(self, m: int) -> tuple[TensorSpec, ...]:
        return TensorSpec("input", (1, m, self.k), "float8_e4m3fn"), TensorSpec("scale", (1,), "float32")

    def output(self, m: int) -> TensorSpec:
        return TensorSpec("output", (1, m, self.n), "bfloat16")

    def scratch(self, m: int) -> tuple[tuple[str, int], ...]:
        return (("cuBLASLt workspace", WORKSPACE.bytes),)

    def tuner_inputs(self, bucket: int) -> tuple[TensorSpec, ...]:
        """The workspace is an input with a wildcard size, so the tuner makes one of its own."""
        return self.inputs(bucket)[0], self.output(bucket), WORKSPACE

    @property
    def compute_dtype(self) -> str:
        return "fp8"

    def prepare(self, device: str) -> Bind:
        import torch
        from flashinfer import bmm_fp8

        fp8 = torch.float8_e4m3fn
        weight = _random_fp8((1, self.n, self.k), device).transpose(-2, -1)
        scale = torch.ones(1, dtype=torch.float32, device=device)

        def bind(m: int) -> BoundCall:
            x = torch.randn((1, m, self.k), dtype=torch.bfloat16, device=device).to(fp8)
            return BoundCall(
                launch=lambda: bmm_fp8(x, weight, scale, scale, torch.bfloat16, backend="cublas"),
                reference=lambda rows: rows_of(x[0], rows) @ weight[0].float() * (scale * scale),
            )

        return bind


def _random_fp8(shape: tuple[int, ...], device: str) -> Any:
    import torch

    return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(std=0.02).to(torch.float8_e4m3fn)
