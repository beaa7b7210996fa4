"""Dense MXFP8 linear: ``flashinfer.mm_mxfp8``, FP8 weights and activations in blocks of 32.

The call is the one of SGLang 0.5.23, ``layers/quantization/fp8_utils.py:flashinfer_mxfp8_blockscaled_linear``; scales
come swizzled, in one dimension.
"""

from __future__ import annotations

from typing import Any, ClassVar

from autotune_planner.ops.base import Bind, BoundCall, ComputeCapability, JitModule
from autotune_planner.ops.dense_linear import DenseLinear
from autotune_planner.ops.numerics import rows_of
from autotune_planner.ops.tensors import WORKSPACE, TensorSpec, empty_of, round_up
from autotune_planner.values import dataclass

_BLOCK = 32
_ONE, _SMALL = 127, 121  # 1 and 2^-6 as exponents of 8 bits
_CUTLASS = {(10, 0): "100", (10, 3): "100", (11, 0): "100", (12, 0): "120", (12, 1): "120"}
_OBJECTS = {"100": 9, "120": 7}


@dataclass(frozen=True)
class MmMxfp8(DenseLinear):
    """MXFP8 linear of one rank: ``(M, k) x (k, n) -> (M, n)`` in bfloat16."""

    family: ClassVar[str] = "mm_mxfp8"
    backend: ClassVar[str]

    @property
    def custom_ops(self) -> tuple[str, ...]:
        return ("mxfp8_gemm",)

    def weights(self) -> tuple[TensorSpec, ...]:
        return (
            TensorSpec("weight", (self.n, self.k), "float8_e4m3fn"),
            TensorSpec("weight_scale", (_swizzled(self.n, self.k),), "uint8"),
        )

    def inputs(self, m: int) -> tuple[TensorSpec, ...]:
        scale = TensorSpec("input_scale", (_swizzled(m, self.k),), "uint8")
        return TensorSpec("input", (m, self.k), "float8_e4m3fn"), scale

    def output(self, m: int) -> TensorSpec:
        return TensorSpec("output", (m, self.n), "bfloat16")

    def scratch(self, m: int) -> tuple[tuple[str, int], ...]:
        return (("mm_mxfp8 workspace", WORKSPACE.bytes),)

    def tuner_inputs(self, bucket: int) -> tuple[TensorSpec, ...]:
        return (*self.inputs(bucket), self.output(bucket))

    @property
    def compute_dtype(self) -> str:
        return "fp8"

    def prepare(self, device: str) -> Bind:
        """Blocks of equal scale, so that every layout of the scales is the same."""
        import torch
        from flashinfer.gemm import mm_mxfp8

        weight, weight_scale = (empty_of(spec, device) for spec in self.weights())
        if device != "meta":
            weight.copy_(torch.empty(weight.shape, dtype=torch.bfloat16, device=device).normal_())
            weight_scale.fill_(_SMALL)

        def bind(m: int) -> BoundCall:
            x, x_scale = (empty_of(spec, device) for spec in self.inputs(m))
            if device != "meta":
                x.copy_(torch.randn(x.shape, dtype=torch.bfloat16, device=device))
                x_scale.fill_(_ONE)

            def launch() -> Any:
                bf16 = torch.bfloat16
                return mm_mxfp8(x, weight.t(), x_scale, weight_scale, out_dtype=bf16, backend=self.backend)

            return BoundCall(
                launch, reference=lambda rows: rows_of(x, rows) @ weight.float().T * 2.0 ** (_SMALL - _ONE)
            )

        return bind


@dataclass(frozen=True)
class CuteDslMmMxfp8(MmMxfp8):
    runner: ClassVar[str] = "CuteDSLMxfp8GemmRunner"
    backend: ClassVar[str] = "cute-dsl"

    @property
    def cold_l2(self) -> bool:
        return True

    def keys_verified(self, capability: ComputeCapability) -> bool:
        return capability == (10, 0)

    def unsupported_reason(self, capability: ComputeCapability) -> str | None:
        if capability in ((10, 0), (10, 3)):
            return None
        return f"MXFP8 linears in CuTe DSL need SM100 or SM103, this is SM{capability[0]}{capability[1]}"

    def jit_modules(self, capability: ComputeCapability) -> tuple[JitModule, ...]:
        return ()


@dataclass(frozen=True)
class CutlassMmMxfp8(MmMxfp8):
    runner: ClassVar[str] = "CutlassMxfp8GemmRunner"
    backend: ClassVar[str] = "cutlass"

    def keys_verified(self, capability: ComputeCapability) -> bool:
        return False

    def unsupported_reason(self, capability: ComputeCapability) -> str | None:
        if capability in _CUTLASS:
            return None
        return f"MXFP8 linears in CUTLASS need SM100 or newer, this is SM{capability[0]}{capability[1]}"

    def jit_modules(self, capability: ComputeCapability) -> tuple[JitModule, ...]:
        arch = _CUTLASS[capability]
        generator = f"flashinfer.jit.gemm:gen_gemm_sm{arch}_module_cutlass_mxfp8"
        name = "mxfp8_gemm_cutlass" if arch == "100" else f"mxfp8_gemm_cutlass_sm{arch}"
        return (JitModule(name, generator, _OBJECTS[arch]),)


def _swizzled(rows: int, k: int) -> int:
    """Bytes of the scales of ``rows`` x ``k`` numbers, in whole tiles of 128 x 4 blocks."""
    return round_up(rows, 128) * round_up(k // _BLOCK, 4)
