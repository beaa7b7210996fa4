"""MoE of TensorRT-LLM's generated kernels: ``flashinfer.fused_moe.trtllm_*_moe``, on SM100 and SM103.

The calls are those of SGLang 0.5.23, ``layers/moe/moe_runner/flashinfer_trtllm.py`` (bf16, FP8, FP4) and
``layers/quantization/compressed_tensors/schemes/compressed_tensors_w4a4_mxint4_moe.py``. Every call bounds its buckets
by the next power of two of its own M. Weights are no input of the tuner: their layout enters the key by flags.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from autotune_planner.ops.base import Bind, BoundCall, ComputeCapability, JitModule
from autotune_planner.ops.routed_moe import RoutedMoe
from autotune_planner.ops.tensors import TensorSpec, empty_of
from autotune_planner.values import dataclass

Quant = Literal["bf16", "fp8_per_tensor", "fp8_block", "mxfp8", "nvfp4", "mxfp4_bf16", "mxfp4_mxfp8", "mxint4"]

_OBJECTS = 18  # launcher, routing and helper kernels; the GEMMs are downloaded as cubins
_OPS = {
    "bf16": "trtllm_bf16_moe",
    "fp8_per_tensor": "trtllm_fp8_per_tensor_scale_moe",
    "fp8_block": "trtllm_fp8_block_scale_moe",
    "mxfp8": "trtllm_fp8_block_scale_moe",
    "nvfp4": "trtllm_fp4_block_scale_moe",
    "mxfp4_bf16": "trtllm_fp4_block_scale_moe",
    "mxfp4_mxfp8": "trtllm_fp4_block_scale_moe",
    "mxint4": "trtllm_mxint4_block_scale_moe",
}
_RENORMALIZE, _TOP_K = 1, 5  # RoutingMethodType: what the key does not hold and every model's router allows
_BF16, _INT = 2, 4
_TILE = 128  # rows: the largest tile that a routed expert is padded to


@dataclass(frozen=True)
class TrtllmMoe(RoutedMoe):
    """Gated MoE of one rank; ``hidden_size`` and ``intermediate_size`` per rank, as the server pads them.

    ``output_size`` is the width of the output where it is narrower than the padded hidden size. ``routed``: experts
    were chosen before the call, which gets ids and weights; otherwise it gets the router's logits. ``finalize`` False:
    the weighted sum over the chosen experts is left to a kernel of the server.
    """

    family: ClassVar[str] = "trtllm_moe"
    runner: ClassVar[str] = "MoERunner"

    quant: Quant
    output_size: int | None = None
    routed: bool = False
    finalize: bool = True
    biased: bool = False

    @property
    def custom_ops(self) -> tuple[str, ...]:
        name = _OPS[self.quant]
        if self.routed and self.quant == "fp8_per_tensor":
            name = "trtllm_fp8_per_tensor_scale_routed_moe"
        return (f"flashinfer::{name}",)

    @property
    def tune_max(self) -> None:
        return None

    @property
    def cold_l2(self) -> bool:
        return True

    def bound_of(self, m: int) -> int:
        return _next_power_of_two(m)

    def keys_verified(self, capability: ComputeCapability) -> bool:
        return capability == (10, 0) and self.quant != "mxint4"

    @property
    def label(self) -> str:
        shape = f"{self.shape} {self.quant}"
        return f"{shape}{' routed' if self.routed else ''}{'' if self.finalize else ' not finalized'}"

    def unsupported_reason(self, capability: ComputeCapability) -> str | None:
        if capability in ((10, 0), (10, 3)):
            return None
        return f"TensorRT-LLM's MoE kernels need SM100 or SM103, this is SM{capability[0]}{capability[1]}"

    def jit_modules(self, capability: ComputeCapability) -> tuple[JitModule, ...]:
        generator = "flashinfer.jit.fused_moe:gen_trtllm_gen_fused_moe_sm100_module"
        return (JitModule("fused_moe_trtllm_sm100", generator, _OBJECTS),)

    def weights(self) -> tuple[TensorSpec, ...]:
        return (*self._matrices(), *self._scales(), *self._gate())

    def inputs(self, m: int) -> tuple[TensorSpec, ...]:
        return (*self._routing(m), *self._activation(m))

    def output(self, m: int) -> TensorSpec:
        """Finalized; otherwise the routed rows, padded to tiles by expert at most."""
        rows = m if self.finalize else self._padded_rows(m)
        return TensorSpec("output", (rows, self.output_size or self.hidden_size), "bfloat16")

    def scratch(self, m: int) -> tuple[tuple[str, int], ...]:
        """An upper estimate: routed rows are padded to the largest tile for each expert, activations to bfloat16.

        Source: FlashInfer 0.7.2, ``csrc/trtllm_fused_moe_kernel_launcher.cu``: gemm1's output, its gated half where the
        gate is a kernel of its own, gemm2's output, and maps of the routed rows.
        """
        rows, routed = self._padded_rows(m), m * self.top_k
        return (
            ("routed rows x intermediate", rows * 3 * self.intermediate_size * _BF16),
            ("routed rows out", rows * self.hidden_size * _BF16 if self.finalize else 0),
            ("routing maps", (3 * routed + 2 * rows) * _INT),
        )

    def tuner_inputs(self, bucket: int) -> tuple[TensorSpec, ...]:
        """Inputs of the tuner that grow with M, in its order: empty placeholders are filled up too."""
        width = 0 if not self.finalize else self.output_size or self.hidden_size
        made = [TensorSpec("output", (bucket, width), "bfloat16")]
        if self.routed:
            made += self._routing(bucket)
        else:
            logits = self._routing(bucket)[0]
            made.append(logits)
            one = (bucket, self.top_k) if self.quant in _PLACEHOLDERS_HAVE_WIDTH else (bucket,)
            made += [TensorSpec("topk_ids", one, "int32"), TensorSpec("expert_weights", one, logits.dtype)]
        return (*made, *self._activation(bucket))

    @property
    def compute_dtype(self) -> str:
        """No profile has a rate for FP4: twice that of FP8, so those forecasts are upper estimates."""
        return "bf16" if self.quant in ("bf16", "mxfp4_bf16", "mxint4") else "fp8"

    def profiler_bytes(self, custom_op: str, bucket: int) -> int:
        return 0

    def prepare(self, device: str) -> Bind:
        """Synthetic weights: any bytes, blocks of scale 1. No reference: only the kernels know their shuffled layouts,
        and the logits' routing happens inside."""
        import torch

        tensors = {spec.name: empty_of(spec, device) for spec in self.weights()}
        if device != "meta":
            _fill(tensors)

        def bind(m: int) -> BoundCall:
            call = {spec.name: _random(spec, device) for spec in self.inputs(m)}
            if self.routed:
                ids = torch.rand((m, self.num_experts), device=device).topk(self.top_k, dim=1).indices
                call["topk_ids"] = ids.to(torch.int32)
            return BoundCall(lambda: self._launch(m, tensors, call), reference=None)

        return bind

    def _launch(self, m: int, weights: dict[str, Any], inputs: dict[str, Any]) -> Any:
        """The server's public call."""
        import flashinfer.fused_moe as fused_moe
        import torch

        mode = {"routing_method_type": _TOP_K if self.routed else _RENORMALIZE}
        if self.quant in ("nvfp4", "mxfp4_bf16", "mxfp4_mxfp8") and self.routed:
            mode = {"routing_method_type": _RENORMALIZE}
        arguments: dict[str, Any] = {
            "hidden_states": inputs["hidden_states"],
            "num_experts": self.num_experts,
            "top_k": self.top_k,
            "n_group": None,
            "topk_group": None,
            "intermediate_size": self.intermediate_size,
            "local_expert_offset": 0,
            "local_num_experts": self.local_experts,
            "routed_scaling_factor": 1.0,
            "tune_max_num_tokens": self.bound_of(m),
            **mode,
            **{spec.name: weights[spec.name] for spec in (*self._matrices(), *self._scales())},
            **self._variant(weights, inputs),
        }
        if self.routed:
            arguments["topk_ids"] = (inputs["topk_ids"], inputs["topk_weights"])
        else:
            arguments["routing_logits"] = inputs["routing_logits"]
            arguments["routing_bias"] = None
        if (
            self.finalize
            and self.quant not in ("bf16", "mxint4")
            and not (self.quant == "fp8_per_tensor" and not self.routed)
        ):
            width = self.output_size or self.hidden_size
            arguments["output"] = torch.empty((m, width), dtype=torch.bfloat16, device=inputs["hidden_states"].device)
        name = _OPS[self.quant].removesuffix("_moe")
        result = getattr(fused_moe, f"{name}{'_routed' if self.routed else ''}_moe")(**arguments)
        return result[0] if isinstance(result, list | tuple) else result

    def _variant(self, weights: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
        """Arguments that only some of the public functions take."""
        from flashinfer.fused_moe import Fp8QuantizationType
        from flashinfer.tllm_enums import SfLayout

        extra: dict[str, Any] = {} if self.finalize else {"do_finalize": False}
        if self.routed and self.quant != "bf16":
            extra["routing_bias"] = None
        if self.quant == "fp8_per_tensor":
            return {**extra, "use_routing_scales_on_input": False}
        if self.quant in ("fp8_block", "mxfp8"):
            kind = Fp8QuantizationType.MxFp8 if self.quant == "mxfp8" else Fp8QuantizationType.DeepSeekFp8
            extra |= {"use_shuffled_weight": self.quant == "mxfp8", "fp8_quantization_type": kind}
            return {**extra, "hidden_states_scale": inputs["hidden_states_scale"]}
        gate = {f"gemm1_{name}": weights.get(f"gemm1_{name}") for name in ("alpha", "beta", "clamp_limit")}
        if self.quant == "mxint4":
            return {**extra, **gate}
        if self.quant == "bf16":
            return extra
        biases = {f"gemm{number}_bias": weights.get(f"gemm{number}_bias") for number in (1, 2)}
        if self.quant != "nvfp4":
            extra |= dict.fromkeys(("output1_scale_scalar", "output1_scale_gate_scalar", "output2_scale_scalar"))
        if "hidden_states_scale" in inputs:
            extra["hidden_states_scale_layout"] = SfLayout.layout_linear  # what FlashInfer infers where it is left out
        return {**extra, **gate, **biases, "hidden_states_scale": inputs.get("hidden_states_scale")}

    def _matrices(self) -> tuple[TensorSpec, ...]:
        experts, hidden, width = self.local_experts, self.hidden_size, self.intermediate_size
        gemm1: tuple[int, ...]
        gemm2: tuple[int, ...]
        if self.quant == "bf16":  # blocks of 128 bytes along the reduction
            gemm1, gemm2 = (experts, hidden // 64, 2 * width, 64), (experts, width // 64, hidden, 64)
            dtype = "bfloat16"
        elif self.quant in ("fp8_per_tensor", "fp8_block", "mxfp8"):
            gemm1, gemm2, dtype = (experts, 2 * width, hidden), (experts, hidden, width), "float8_e4m3fn"
        elif self.quant == "mxint4":
            gemm1, gemm2 = (experts, hidden // 256, 2 * width, 128), (experts, width // 256, hidden, 128)
            dtype = "uint8"
        else:
            gemm1, gemm2, dtype = (experts, 2 * width, hidden // 2), (experts, hidden, width // 2), "uint8"
        return TensorSpec("gemm1_weights", gemm1, dtype), TensorSpec("gemm2_weights", gemm2, dtype)

    def _scales(self) -> tuple[TensorSpec, ...]:
        experts, hidden, width = self.local_experts, self.hidden_size, self.intermediate_size
        if self.quant == "bf16":
            return ()
        per_expert = ("output1_scales_scalar", "output1_scales_gate_scalar", "output2_scales_scalar")
        if self.quant == "fp8_per_tensor":
            return tuple(TensorSpec(name, (experts,), "float32") for name in per_expert)
        if self.quant == "fp8_block":
            gemm1, gemm2 = (experts, 2 * width // 128, hidden // 128), (experts, hidden // 128, width // 128)
            dtype = "float32"
        else:
            block = 16 if self.quant == "nvfp4" else 32
            gemm1, gemm2 = (experts, 2 * width, hidden // block), (experts, hidden, width // block)
            dtype = {"mxfp8": "uint8", "mxint4": "bfloat16"}.get(self.quant, "float8_e4m3fn")
        scales = TensorSpec("gemm1_weights_scale", gemm1, dtype), TensorSpec("gemm2_weights_scale", gemm2, dtype)
        if self.quant != "nvfp4":
            return scales
        names = (name.replace("scales_", "scale_") for name in per_expert)
        return (*scales, *(TensorSpec(name, (experts,), "float32") for name in names))

    def _gate(self) -> tuple[TensorSpec, ...]:
        if not self.biased:
            return ()
        experts = self.local_experts
        return (
            TensorSpec("gemm1_bias", (experts, 2 * self.intermediate_size), "float32"),
            TensorSpec("gemm2_bias", (experts, self.hidden_size), "float32"),
            *(TensorSpec(f"gemm1_{name}", (experts,), "float32") for name in ("alpha", "beta", "clamp_limit")),
        )

    def _routing(self, m: int) -> tuple[TensorSpec, ...]:
        if self.routed:
            width = (m, self.top_k)
            return TensorSpec("topk_ids", width, "int32"), TensorSpec("topk_weights", width, "float32")
        dtype = "float32" if self.quant == "fp8_block" else "bfloat16"
        return (TensorSpec("routing_logits", (m, self.num_experts), dtype),)

    def _activation(self, m: int) -> tuple[TensorSpec, ...]:
        hidden = self.hidden_size
        if self.quant in ("bf16", "mxfp4_bf16", "mxint4"):
            return (TensorSpec("hidden_states", (m, hidden), "bfloat16"),)
        if self.quant == "nvfp4":
            scale = TensorSpec("hidden_states_scale", (m, hidden // 16), "float8_e4m3fn")
            return TensorSpec("hidden_states", (m, hidden // 2), "uint8"), scale
        states = TensorSpec("hidden_states", (m, hidden), "float8_e4m3fn")
        if self.quant == "fp8_per_tensor":
            return (states,)
        if self.quant == "fp8_block":
            return states, TensorSpec("hidden_states_scale", (hidden // 128, m), "float32")
        dtype = "uint8" if self.quant == "mxfp8" else "float8_e4m3fn"
        return states, TensorSpec("hidden_states_scale", (m, hidden // 32), dtype)

    def _padded_rows(self, m: int) -> int:
        routed = m * self.top_k
        return routed + min(self.local_experts, routed) * (_TILE - 1)


_PLACEHOLDERS_HAVE_WIDTH = ("fp8_per_tensor", "nvfp4", "mxfp4_bf16", "mxfp4_mxfp8")


def _next_power_of_two(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


def _random(spec: TensorSpec, device: str) -> Any:
    """An input: numbers near 1 where they are numbers, any bytes where they are packed, blocks of scale 1."""
    import torch

    if spec.name == "hidden_states_scale":
        return _ones(spec, device)
    if spec.dtype == "uint8":
        return torch.randint(0, 256, spec.shape, dtype=torch.uint8, device=device)
    if spec.dtype == "int32":
        return torch.zeros(spec.shape, dtype=torch.int32, device=device)
    return torch.randn(spec.shape, dtype=torch.bfloat16, device=device).to(getattr(torch, spec.dtype))


def _ones(spec: TensorSpec, device: str) -> Any:
    """Scales of 1, in float32 or as an exponent of 8 bits."""
    import torch

    if spec.dtype == "uint8":
        return torch.full(spec.shape, 127, dtype=torch.uint8, device=device)
    return torch.full(spec.shape, 1.0, dtype=torch.float32, device=device).to(getattr(torch, spec.dtype))


def _fill(tensors: dict[str, Any]) -> None:
    """Synthetic weights, filled in place expert by expert."""
    import torch

    for name, tensor in tensors.items():
        for part in tensor:
            if tensor.dtype == torch.uint8:
                part.fill_(127) if "scale" in name else part.random_(0, 256)
            elif "scale" in name:
                part.copy_(torch.full(part.shape, 2.0**-6, device=part.device))
            else:
                part.copy_(torch.empty(part.shape, dtype=torch.bfloat16, device=part.device).normal_(std=0.02))
