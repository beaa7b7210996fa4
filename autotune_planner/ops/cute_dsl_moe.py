"""NVFP4 MoE in CuTe DSL: ``flashinfer.CuteDslMoEWrapper.run``, on SM100 and SM103.

The call is the one of SGLang 0.5.23, ``layers/moe/moe_runner/flashinfer_cutedsl.py``: one wrapper a layer,
``use_fused_finalize`` False by default. Every tactic is compiled in the process when it is first timed.
"""

from __future__ import annotations

from typing import Any, ClassVar

from autotune_planner.errors import NotPossibleHereError
from autotune_planner.ops.base import Bind, BoundCall, ComputeCapability, JitModule
from autotune_planner.ops.routed_moe import RoutedMoe
from autotune_planner.ops.tensors import TensorSpec, empty_of
from autotune_planner.values import dataclass

_BLOCK = 16
_BF16, _INT = 2, 4
_TILE = 128  # rows that the routed rows of an expert are padded to
_OBJECTS = 9  # sorting of routed rows; the GEMMs are compiled by CuTe DSL
_ONE = 56  # 1.0 in FP8 E4M3


@dataclass(frozen=True)
class CuteDslMoe(RoutedMoe):
    """Gated NVFP4 MoE of one rank; sizes per rank. ``bf16_input``: W4A16, activations stay in bfloat16."""

    family: ClassVar[str] = "cute_dsl_moe"
    runner: ClassVar[str] = "CuteDslFusedMoERunner"

    use_fused_finalize: bool = False
    bf16_input: bool = False

    @property
    def custom_ops(self) -> tuple[str, ...]:
        return (f"CuteDslMoEWrapper::run::{'W4A16' if self.bf16_input else 'w4a4'}::Swiglu",)

    @property
    def tune_max(self) -> None:
        return None

    @property
    def cold_l2(self) -> bool:
        return True

    def keys_verified(self, capability: ComputeCapability) -> bool:
        return False

    @property
    def label(self) -> str:
        return f"{self.shape} {'w4a16' if self.bf16_input else 'nvfp4'}"

    def unsupported_reason(self, capability: ComputeCapability) -> str | None:
        if capability in ((10, 0), (10, 3)):
            return None
        return f"the MoE in CuTe DSL needs SM100 or SM103, this is SM{capability[0]}{capability[1]}"

    def jit_modules(self, capability: ComputeCapability) -> tuple[JitModule, ...]:
        return (JitModule("moe_utils", "flashinfer.jit.moe_utils:gen_moe_utils_module", _OBJECTS),)

    def weights(self) -> tuple[TensorSpec, ...]:
        experts, hidden, width = self.local_experts, self.hidden_size, self.intermediate_size
        return (
            TensorSpec("w1_weight", (experts, 2 * width, hidden // 2), "uint8"),
            TensorSpec("w1_weight_sf", (experts, 2 * width * hidden // _BLOCK), "uint8"),
            TensorSpec("w1_alpha", (experts,), "float32"),
            *(() if self.bf16_input else (TensorSpec("fc2_input_scale", (1,), "float32"),)),
            TensorSpec("w2_weight", (experts, hidden, width // 2), "uint8"),
            TensorSpec("w2_weight_sf", (experts, hidden * width // _BLOCK), "uint8"),
            TensorSpec("w2_alpha", (experts,), "float32"),
        )

    def inputs(self, m: int) -> tuple[TensorSpec, ...]:
        routing = (
            TensorSpec("token_selected_experts", (m, self.top_k), "int32"),
            TensorSpec("token_final_scales", (m, self.top_k), "float32"),
        )
        if self.bf16_input:
            return TensorSpec("x", (m, self.hidden_size), "bfloat16"), *routing
        scale = TensorSpec("x_sf", (m, self.hidden_size // _BLOCK), "float8_e4m3fn")
        return TensorSpec("x", (m, self.hidden_size // 2), "uint8"), scale, *routing

    def output(self, m: int) -> TensorSpec:
        return TensorSpec("output", (m, self.hidden_size), "bfloat16")

    def scratch(self, m: int) -> tuple[tuple[str, int], ...]:
        """An upper estimate: routed rows of each expert padded to a tile, in bfloat16."""
        routed = m * self.top_k
        rows = routed + min(self.local_experts, routed) * (_TILE - 1)
        return (
            ("routed rows x intermediate", rows * self.intermediate_size * _BF16),
            ("routed rows out", 0 if self.use_fused_finalize else rows * self.hidden_size * _BF16),
            ("routing maps", (3 * routed + 2 * rows) * _INT),
        )

    def tuner_inputs(self, bucket: int) -> tuple[TensorSpec, ...]:
        return (*self.inputs(bucket), self.output(bucket))

    @property
    def compute_dtype(self) -> str:
        """No profile has a rate for FP4: twice that of FP8, so these forecasts are upper estimates."""
        return "bf16" if self.bf16_input else "fp8"

    def profiler_bytes(self, custom_op: str, bucket: int) -> int:
        return 0

    def prepare(self, device: str) -> Bind:
        """Any 4-bit weights in blocks of scale 1. No reference: the kernel quantizes between its two GEMMs."""
        import torch
        from flashinfer import ActivationType
        from flashinfer.cute_dsl.utils import convert_sf_to_mma_layout

        wrapper_class = _wrapper_class()

        tensors = {spec.name: empty_of(spec, device) for spec in self.weights()}
        if device != "meta":
            for name, tensor in tensors.items():
                if name.endswith("_weight"):
                    tensor.random_(0, 256)
                else:
                    tensor.fill_(_ONE if name.endswith("_sf") else 2.0**-6 if name.endswith("alpha") else 1.0)
        for name, rows, columns in (
            ("w1_weight_sf", 2 * self.intermediate_size, self.hidden_size),
            ("w2_weight_sf", self.hidden_size, self.intermediate_size),
        ):
            flat = tensors[name].view(torch.float8_e4m3fn).flatten()
            tensors[name] = convert_sf_to_mma_layout(flat, m=rows, k=columns, num_groups=self.local_experts)
        wrapper = wrapper_class(
            num_experts=self.num_experts,
            top_k=self.top_k,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            use_cuda_graph=False,  # only its streams: in no key
            num_local_experts=self.local_experts,
            output_dtype=torch.bfloat16,
            device=device,
            use_fused_finalize=self.use_fused_finalize,
            activation_type=ActivationType.Swiglu,
            quant_mode="w4a16" if self.bf16_input else "w4a4",
        )

        def bind(m: int) -> BoundCall:
            call = {spec.name: empty_of(spec, device) for spec in self.inputs(m)}
            ids = torch.rand((m, self.num_experts), device=device).topk(self.top_k, dim=1).indices.to(torch.int32)
            call["token_selected_experts"] = ids
            if device != "meta":
                call["token_final_scales"].fill_(1.0 / self.top_k)
                if self.bf16_input:
                    call["x"].normal_()
                else:
                    call["x"].random_(0, 256)
                    call["x_sf"].view(torch.uint8).fill_(_ONE)

            def launch() -> Any:
                absent = {"x_sf": None, "fc2_input_scale": None}
                return wrapper.run(**{**absent, **call, **tensors})

            return BoundCall(launch, reference=None)

        return bind


def _wrapper_class() -> Any:
    """FlashInfer leaves it out where triton is missing, which torch for CUDA brings and torch for CPUs does not."""
    try:
        from flashinfer import CuteDslMoEWrapper
    except ImportError as error:
        raise NotPossibleHereError(
            f"FlashInfer's MoE in CuTe DSL cannot be imported: {error}",
            code="cute-dsl-missing",
            hint="pip install triton nvidia-cutlass-dsl, or run it in the server's image",
        ) from error
    return CuteDslMoEWrapper


@dataclass(frozen=True)
class CuteDslMoeW4A16(CuteDslMoe):
    runner: ClassVar[str] = "CuteDslFusedMoEW4A16Runner"
    bf16_input: bool = True
