"""Dense linear of NVFP4 weights and bfloat16 activations: ``flashinfer.mm_bf16_fp4`` in CuTe DSL.

The call is the one of SGLang 0.5.23, ``layers/quantization/modelopt_quant.py:ModelOptFp4LinearMethod.apply`` with
SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16=1.
"""

from __future__ import annotations

from typing import Any, ClassVar

from autotune_planner.ops.base import Bind, BoundCall, ComputeCapability, JitModule
from autotune_planner.ops.dense_linear import DenseLinear
from autotune_planner.ops.tensors import TensorSpec, empty_of, round_up
from autotune_planner.values import dataclass

_BLOCK = 16
_ONE = 56  # 1.0 in FP8 E4M3


@dataclass(frozen=True)
class MmBf16Fp4(DenseLinear):
    """W4A16 linear of one rank: ``(M, k) x (k, n) -> (M, n)`` in bfloat16."""

    family: ClassVar[str] = "mm_bf16_fp4"
    runner: ClassVar[str] = "CuteDslSm100Bf16Fp4Runner"

    @property
    def custom_ops(self) -> tuple[str, ...]:
        return ("bf16_fp4_cute_dsl_sm100_gemm",)

    def keys_verified(self, capability: ComputeCapability) -> bool:
        return False

    @property
    def label(self) -> str:
        return f"N{self.n} K{self.k} w4a16"

    def unsupported_reason(self, capability: ComputeCapability) -> str | None:
        if capability in ((10, 0), (10, 3)):
            return None
        return f"W4A16 NVFP4 linears are planned for SM100 and SM103, this is SM{capability[0]}{capability[1]}"

    def jit_modules(self, capability: ComputeCapability) -> tuple[JitModule, ...]:
        return ()

    def weights(self) -> tuple[TensorSpec, ...]:
        scales = (round_up(self.n, 128), round_up(self.k // _BLOCK, 4))
        return (
            TensorSpec("weight", (self.n, self.k // 2), "uint8"),
            TensorSpec("weight_scale", scales, "float8_e4m3fn"),
            TensorSpec("alpha", (1,), "float32"),
        )

    def inputs(self, m: int) -> tuple[TensorSpec, ...]:
        return (TensorSpec("input", (m, self.k), "bfloat16"),)

    def output(self, m: int) -> TensorSpec:
        return TensorSpec("output", (m, self.n), "bfloat16")

    def scratch(self, m: int) -> tuple[tuple[str, int], ...]:
        return ()

    def tuner_inputs(self, bucket: int) -> tuple[TensorSpec, ...]:
        return (*self.inputs(bucket), self.output(bucket))

    def prepare(self, device: str) -> Bind:
        """Any 4-bit numbers in blocks of scale 1, so that every layout of the scales is the same."""
        import torch
        from flashinfer.gemm import mm_bf16_fp4, prepare_bf16_fp4_weights

        from autotune_planner.ops.numerics import e2m1, rows_of

        weight, weight_scale, alpha = (empty_of(spec, device) for spec in self.weights())
        if device != "meta":
            weight.random_(0, 256)
            weight_scale.view(torch.uint8).fill_(_ONE)
            alpha.fill_(2.0**-6)
        prepared = prepare_bf16_fp4_weights(weight, weight_scale, alpha, backend="cute-dsl")

        def bind(m: int) -> BoundCall:
            x = torch.randn((m, self.k), dtype=torch.bfloat16, device=device)

            def launch() -> Any:
                return mm_bf16_fp4(x, *prepared, backend="cute-dsl", out_dtype=torch.bfloat16)

            return BoundCall(launch, reference=lambda rows: rows_of(x, rows) @ e2m1(weight).T * alpha)

        return bind
