"""Dense NVFP4 linear: ``flashinfer.mm_fp4``, 4-bit weights and activations in blocks of 16.

The call is the one of SGLang 0.5.23, ``layers/quantization/modelopt_quant.py:ModelOptFp4LinearMethod.apply``: weights
are padded to multiples of 32, scales to whole tiles of 128 x 4, and ``alpha`` has no dimension. The backend is
``--fp4-gemm-backend``; CuTe DSL compiles each tactic in the process, CUTLASS is a module of its own.
"""

from __future__ import annotations

from typing import Any, ClassVar

from autotune_planner.ops.base import Bind, BoundCall, ComputeCapability, JitModule
from autotune_planner.ops.dense_linear import DenseLinear
from autotune_planner.ops.tensors import WORKSPACE, TensorSpec, empty_of, round_up
from autotune_planner.values import dataclass

_BLOCK, _ALIGNMENT = 16, 32  # FP4_GEMM_ALIGNMENT
_ONE = 56  # 1.0 in FP8 E4M3
_CUTLASS = {(10, 0): "100", (11, 0): "100", (10, 3): "103", (12, 0): "120", (12, 1): "120"}
_OBJECTS = {"100": 9, "103": 23, "120": 17}


@dataclass(frozen=True)
class MmFp4(DenseLinear):
    """NVFP4 linear of one rank: ``(M, k) x (k, n) -> (M, n)`` in bfloat16, both sizes as the checkpoint has them."""

    family: ClassVar[str] = "mm_fp4"
    backend: ClassVar[str]

    @property
    def custom_ops(self) -> tuple[str, ...]:
        return ("fp4_gemm",)

    @property
    def cold_l2(self) -> bool:
        return True

    def keys_verified(self, capability: ComputeCapability) -> bool:
        return capability == (10, 0)

    def weights(self) -> tuple[TensorSpec, ...]:
        n, k = round_up(self.n, _ALIGNMENT), round_up(self.k, _ALIGNMENT)
        return (
            TensorSpec("weight", (n, k // 2), "uint8"),
            TensorSpec("weight_scale", (round_up(self.n, 128), round_up(self.k // _BLOCK, 4)), "float8_e4m3fn"),
            TensorSpec("alpha", (), "float32"),
        )

    def inputs(self, m: int) -> tuple[TensorSpec, ...]:
        k = round_up(self.k, _ALIGNMENT)
        scale = (round_up(m, 128), round_up(self.k // _BLOCK, 4))
        return TensorSpec("input", (m, k // 2), "uint8"), TensorSpec("input_scale", scale, "uint8")

    def output(self, m: int) -> TensorSpec:
        return TensorSpec("output", (m, round_up(self.n, _ALIGNMENT)), "bfloat16")

    def scratch(self, m: int) -> tuple[tuple[str, int], ...]:
        return (("mm_fp4 workspace", WORKSPACE.bytes),)

    def tuner_inputs(self, bucket: int) -> tuple[TensorSpec, ...]:
        """The workspace is an input with a wildcard size, so the tuner makes one of its own."""
        return (*self.inputs(bucket), self.output(bucket), WORKSPACE)

    @property
    def compute_dtype(self) -> str:
        """No profile has a rate for FP4: twice that of FP8, so these forecasts are upper estimates."""
        return "fp8"

    def prepare(self, device: str) -> Bind:
        """Any 4-bit numbers in blocks of scale 1, so that every layout of the scales is the same."""
        import torch
        from flashinfer.gemm import mm_fp4

        from autotune_planner.ops.numerics import e2m1

        weight, weight_scale, alpha = (empty_of(spec, device) for spec in self.weights())
        if device != "meta":
            weight.random_(0, 256)
            weight_scale.view(torch.uint8).fill_(_ONE)
            alpha.fill_(2.0**-6)

        def bind(m: int) -> BoundCall:
            x, x_scale = (empty_of(spec, device) for spec in self.inputs(m))
            if device != "meta":
                x.random_(0, 256)
                x_scale.fill_(_ONE)

            def launch() -> Any:
                return mm_fp4(x, weight.T, x_scale, weight_scale.T, alpha, torch.bfloat16, backend=self.backend)

            return BoundCall(launch, reference=lambda rows: e2m1(x[rows]) @ e2m1(weight).T * alpha)

        return bind


@dataclass(frozen=True)
class CuteDslMmFp4(MmFp4):
    runner: ClassVar[str] = "CuteDSLFp4GemmRunner"
    backend: ClassVar[str] = "cute-dsl"

    def unsupported_reason(self, capability: ComputeCapability) -> str | None:
        if capability[0] in (10, 12):
            return None
        return f"NVFP4 linears in CuTe DSL need SM100 or newer, this is SM{capability[0]}{capability[1]}"

    def jit_modules(self, capability: ComputeCapability) -> tuple[JitModule, ...]:
        return ()


@dataclass(frozen=True)
class CutlassMmFp4(MmFp4):
    runner: ClassVar[str] = "CutlassFp4GemmRunner"
    backend: ClassVar[str] = "cutlass"

    def unsupported_reason(self, capability: ComputeCapability) -> str | None:
        if capability in _CUTLASS:
            return None
        return f"NVFP4 linears in CUTLASS need SM100 or newer, this is SM{capability[0]}{capability[1]}"

    def jit_modules(self, capability: ComputeCapability) -> tuple[JitModule, ...]:
        arch = _CUTLASS[capability]
        generator = f"flashinfer.jit.gemm:gen_gemm_sm{arch}_module_cutlass_fp4"
        name = "fp4_gemm_cutlass" if arch == "100" else f"fp4_gemm_cutlass_sm{arch}"
        return (JitModule(name, generator, _OBJECTS[arch]),)
