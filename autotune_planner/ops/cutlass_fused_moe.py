"""CUTLASS fused MoE: ``flashinfer.fused_moe.cutlass_fused_moe``, in every format of weights that servers give it.

The calls are those of SGLang 0.5.23, ``layers/moe/moe_runner/flashinfer_cutlass.py``: ``_run_flashinfer_cutlass``
(bf16, FP8 per tensor, NVFP4) and ``_fused_experts_flashinfer_mxfp4_cutlass`` (MXFP4). ``use_fused_finalize`` is False
by default (SGLANG_FLASHINFER_MOE_FUSED_FINALIZE), ``enable_pdl`` left to FlashInfer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from autotune_planner.ops.base import Bind, BoundCall, ComputeCapability, JitModule
from autotune_planner.ops.numerics import COMPARED_ROWS, EXPERTS_AT_ONCE, Gate, e2m1, gated_moe, rows_of
from autotune_planner.ops.routed_moe import RoutedMoe
from autotune_planner.ops.tensors import TensorSpec, empty_of, round_up
from autotune_planner.values import dataclass

Quant = Literal["bf16", "fp8", "nvfp4", "w4a16_mxfp4", "w4a8_mxfp4", "mxfp8_mxfp4"]

_ARCHITECTURES = {(8, 9): "89", (9, 0): "90", (10, 0): "100", (10, 3): "103", (12, 0): "120", (12, 1): "120"}
_OBJECTS = {"89": 248, "90": 248, "100": 270, "103": 282, "120": 96}  # of SM89 not counted
_BF16, _INT, _FLOAT32, _LONG = 2, 4, 4, 8
_ROUTING_SAMPLES = 16  # NUM_ROUTING_SAMPLES of the profiler, each with three maps of the routed rows
_TMA_BYTES = 256  # upper estimate of the descriptors of one expert's GEMM: pointers, strides and shape
_TMA_SETS = _ROUTING_SAMPLES * 2 * 2 + 1  # NUM_FUSION_TYPES x NUM_SWAP_AB_TYPES
_GATE = {"alpha": 1.702, "beta": 1.0, "limit": 7.0}  # gpt-oss
_RUN = ("bf16", "fp8", "w4a16_mxfp4")  # formats that were tuned on an H200
_EXPONENT = 121  # of MXFP4 blocks: 2^-6, so that activations stay finite
_FP8_BETWEEN = 8.0  # times the tolerance: one in seventy hidden activations is rounded to the other FP8 neighbour
_PATTERNS = 7  # distinct experts of FP4 weights, dealt in turn: each is packed, laid out and decoded once


class _Format(NamedTuple):
    """``per_item``: numbers in one stored element of a weight; ``block``: numbers that share a scale, 0 for none."""

    weight: str
    per_item: int
    block: int
    compute: str
    flags: tuple[str, ...]
    runs_on: tuple[ComputeCapability, ...]


_ALL = tuple(_ARCHITECTURES)
_BLACKWELL = ((10, 0), (10, 3), (12, 0), (12, 1))
_FORMATS: dict[Quant, _Format] = {
    "bf16": _Format("bfloat16", 1, 0, "bf16", (), _ALL),
    "fp8": _Format("float8_e4m3fn", 1, 0, "fp8", (), _ALL),
    # No profile has a rate for FP4: twice that of FP8, so these forecasts are upper estimates.
    "nvfp4": _Format("int64", 16, 16, "fp8", (), _BLACKWELL),
    "w4a16_mxfp4": _Format("uint8", 2, 32, "bf16", ("use_w4_group_scaling",), ((9, 0),)),
    "w4a8_mxfp4": _Format("uint8", 2, 32, "fp8", ("use_w4_group_scaling", "use_wfp4afp8_humming"), ((9, 0),)),
    "mxfp8_mxfp4": _Format("int64", 16, 32, "fp8", ("use_mxfp8_act_scaling",), _BLACKWELL),
}


@dataclass(frozen=True)
class CutlassFusedMoe(RoutedMoe):
    """Gated MoE of one rank.

    Weights: fc1 ``(local_experts, 2 * intermediate_size, hidden_size)``, fc2 ``(local_experts, hidden_size,
    intermediate_size)``, in numbers; both sizes are per rank and as the server pads them. Two custom ops with the same
    profile: gemm1 and gemm2. ``quantized_input`` is NVFP4 that was quantized before a gather or an all-to-all.
    ``biased`` adds gpt-oss's biases and its clamped gate.
    """

    family: ClassVar[str] = "cutlass_fused_moe"
    runner: ClassVar[str] = "MoERunner"

    tp_size: int
    ep_size: int
    tune_max_num_tokens: int
    use_fused_finalize: bool = False
    enable_alltoall: bool = False
    quant: Quant = "bf16"
    quantized_input: bool = False
    biased: bool = False

    @property
    def custom_ops(self) -> tuple[str, ...]:
        return ("trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2")

    @property
    def tune_max(self) -> int:
        return self.tune_max_num_tokens

    @property
    def label(self) -> str:
        return self.shape if self.quant == "bf16" else f"{self.shape} {self.quant}"

    @property
    def searched_as(self) -> str:
        return f"{super().searched_as}/{self.quant}"

    def keys_verified(self, capability: ComputeCapability) -> bool:
        return capability in ((9, 0), (10, 0)) and self.quant != "mxfp8_mxfp4"

    def was_run(self, capability: ComputeCapability) -> bool:
        return capability == (9, 0) and self.quant in _RUN

    def unsupported_reason(self, capability: ComputeCapability) -> str | None:
        name = f"SM{capability[0]}{capability[1]}"
        if capability not in _ARCHITECTURES:
            return f"FlashInfer's CUTLASS fused MoE has no module for {name}"
        if capability not in self._format.runs_on:
            return f"FlashInfer's CUTLASS fused MoE has no {self.quant} kernels for {name}"
        return None

    def jit_modules(self, capability: ComputeCapability) -> tuple[JitModule, ...]:
        arch = _ARCHITECTURES[capability]
        generator = f"flashinfer.jit.fused_moe:gen_cutlass_fused_moe_sm{arch}_module"
        return (JitModule(f"fused_moe_{arch}", generator, _OBJECTS[arch]),)

    def weights(self) -> tuple[TensorSpec, ...]:
        experts, hidden, width = self.local_experts, self.hidden_size, self.intermediate_size
        form = self._format
        return (
            TensorSpec("fc1_expert_weights", (experts, 2 * width, hidden // form.per_item), form.weight),
            TensorSpec("fc2_expert_weights", (experts, hidden, width // form.per_item), form.weight),
            *self._quant_scales(),
            *self._gate(),
        )

    def inputs(self, m: int) -> tuple[TensorSpec, ...]:
        return (
            *self._activation(m),
            TensorSpec("token_selected_experts", (m, self.top_k), "int32"),
            TensorSpec("token_final_scales", (m, self.top_k), "float32"),
        )

    def output(self, m: int) -> TensorSpec:
        return TensorSpec("output", (m, self.hidden_size), "bfloat16")

    def scratch(self, m: int) -> tuple[tuple[str, int], ...]:
        """Workspace of one run; every token is expanded to ``top_k`` routed rows, whoever holds the expert.

        Source: FlashInfer 0.7.2, ``cutlass_fused_moe_kernels.cuh:getWorkspaceDeviceBufferSizes``: permuted input and
        fc2 result share one buffer, both halves of the gated fc1 result and the fc2 result the other. Its counters and
        CUTLASS's own workspace, below 1 MB together, are left out; narrower activations are counted as bfloat16.
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

    @property
    def compute_dtype(self) -> str:
        return self._format.compute

    def flops(self, custom_op: str, m: int) -> float:
        """Of all routed rows; gemm1 computes the linear and the gate half."""
        halves = 2 if custom_op == self.custom_ops[0] else 1
        return 2.0 * m * self.top_k * halves * self.intermediate_size * self.hidden_size

    def check_bytes(self, m: int) -> int:
        """First matrices of some experts as they are and in float32, and of each routed row of the compared ones three
        copies of its inputs and six of its intermediates. MXFP4 has its matrices decoded to bfloat16 beside."""
        if not self._has_reference:
            return super().check_bytes(m)
        routed = min(m, COMPARED_ROWS) * self.top_k
        matrix = 2 * self.intermediate_size * self.hidden_size
        experts = min(self.local_experts, EXPERTS_AT_ONCE, routed)
        decoded = 3 * _PATTERNS * matrix if self.quant == "w4a16_mxfp4" else 0
        rows = _FLOAT32 * routed * (3 * self.hidden_size + 6 * self.intermediate_size)
        return super().check_bytes(m) + experts * matrix * (_BF16 + _FLOAT32) + decoded + rows

    def profiler_bytes(self, custom_op: str, bucket: int) -> int:
        """Workspace of FlashInfer's GEMM profiler; the weights are ours.

        Source: FlashInfer 0.7.2, ``cutlass_fused_moe_kernels.cuh:GemmProfilerBackend::getProfilerWorkspaces``; narrower
        activations are counted as bfloat16.
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
        tensors = {spec.name: empty_of(spec, device) for spec in self.weights()}
        if device != "meta":
            self._fill(tensors)
        gate = [tensors.get(name) for name in ("swiglu_alpha", "swiglu_beta", "swiglu_limit")]
        biases = [tensors.get(name) for name in ("fc1_expert_biases", "fc2_expert_biases")]
        decoded = {name: _Decoded(self, name, device) for name in ("fc1_expert_weights", "fc2_expert_weights")}
        scales_of_weights = [tensors[spec.name] for spec in self._quant_scales()]
        flags = dict.fromkeys(self._format.flags, True)

        def bind(m: int) -> BoundCall:
            x, input_sf = self._bound_activation(m, device)
            # Global ids: under EP the kernel skips the experts of other ranks, as in serving.
            ids = torch.rand((m, self.num_experts), device=device).topk(self.top_k, dim=1).indices.to(torch.int32)
            scales = torch.full((m, self.top_k), 1.0 / self.top_k, dtype=torch.float32, device=device)

            def launch() -> Any:
                return cutlass_fused_moe(
                    output=torch.empty((m, self.hidden_size), dtype=bf16, device=device),
                    input=x,
                    token_selected_experts=ids,
                    token_final_scales=scales,
                    fc1_expert_weights=tensors["fc1_expert_weights"],
                    fc2_expert_weights=tensors["fc2_expert_weights"],
                    output_dtype=bf16,
                    input_sf=input_sf,
                    quant_scales=scales_of_weights or None,
                    fc1_expert_biases=biases[0],
                    fc2_expert_biases=biases[1],
                    swiglu_alpha=gate[0],
                    swiglu_beta=gate[1],
                    swiglu_limit=gate[2],
                    ep_size=self.ep_size,
                    ep_rank=0,
                    tp_size=self.tp_size,
                    tp_rank=0,
                    tune_max_num_tokens=self.tune_max_num_tokens,
                    activation_type=ActivationType.Swiglu,
                    enable_alltoall=self.enable_alltoall,
                    use_fused_finalize=self.use_fused_finalize,
                    **flags,
                )[0]

            reference = self._reference(x, ids, scales, decoded if self._format.block else tensors, tensors)
            return BoundCall(launch, reference, _FP8_BETWEEN if self.quant == "fp8" else 1.0)

        return bind

    @property
    def _has_reference(self) -> bool:
        return self.quant in ("bf16", "fp8", "w4a16_mxfp4")

    @property
    def _format(self) -> _Format:
        return _FORMATS[self.quant]

    def _quant_scales(self) -> tuple[TensorSpec, ...]:
        """``quant_scales`` of the call, in its order."""
        experts, hidden, width = self.local_experts, self.hidden_size, self.intermediate_size

        def each(name: str) -> TensorSpec:
            return TensorSpec(name, (experts,), "float32")

        def one(name: str) -> TensorSpec:
            return TensorSpec(name, (), "float32")

        def blocks(name: str, rows: int, columns: int, *, padded: bool = True) -> TensorSpec:
            """Scales of 8 bits, four in an element; layouts of Blackwell pad to whole tiles of 128 x 4."""
            count = columns // self._format.block
            if padded:
                rows, count = round_up(rows, 128), round_up(count, 4)
            return TensorSpec(name, (experts, rows, count // 4), "int32")

        if self.quant == "fp8":
            return each("fc1_dequant"), one("fc2_quant"), each("fc2_dequant"), one("fc1_input_dequant")
        if self.quant == "nvfp4":
            fc1, fc2 = blocks("fc1_weight_block", 2 * width, hidden), blocks("fc2_weight_block", hidden, width)
            first, second = (one("fc1_act_global"), fc1, each("fc1_global")), (fc2, each("fc2_global"))
            return (*first, one("fc2_act_global"), *second)
        if self.quant == "mxfp8_mxfp4":
            fc1, fc2 = blocks("fc1_weight_block", 2 * width, hidden), blocks("fc2_weight_block", hidden, width)
            return fc1, each("fc1_global"), fc2, each("fc2_global")
        if self.quant == "bf16":
            return ()
        fc1 = blocks("fc1_weight_block", 2 * width, hidden, padded=False)
        fc2 = blocks("fc2_weight_block", hidden, width, padded=False)
        if self.quant == "w4a16_mxfp4":
            return fc1, fc2
        return fc1, each("fc1_residual"), one("fc2_act_scale"), fc2, each("fc2_residual")

    def _gate(self) -> tuple[TensorSpec, ...]:
        if not self.biased:
            return ()
        experts = self.local_experts
        return (
            TensorSpec("fc1_expert_biases", (experts, 2 * self.intermediate_size), "bfloat16"),
            TensorSpec("fc2_expert_biases", (experts, self.hidden_size), "bfloat16"),
            *(TensorSpec(f"swiglu_{name}", (experts,), "float32") for name in _GATE),
        )

    def _activation(self, m: int) -> tuple[TensorSpec, ...]:
        hidden = self.hidden_size
        if self.quantized_input:
            return TensorSpec("input", (m, hidden // 2), "uint8"), TensorSpec("input_sf", (m, hidden // 16), "uint8")
        if self.quant == "mxfp8_mxfp4":
            blocks = round_up(m, 128) * round_up(hidden // 32, 4)
            return TensorSpec("input", (m, hidden), "float8_e4m3fn"), TensorSpec("input_sf", (blocks,), "uint8")
        return (TensorSpec("input", (m, hidden), "float8_e4m3fn" if self.quant == "fp8" else "bfloat16"),)

    def _bound_activation(self, m: int, device: str) -> tuple[Any, Any]:
        import torch

        first, *rest = self._activation(m)
        if first.dtype == "uint8":
            x = torch.randint(0, 256, first.shape, dtype=torch.uint8, device=device)
        else:
            x = torch.randn(first.shape, dtype=torch.bfloat16, device=device).to(getattr(torch, first.dtype))
        # 2^0 as FP8 of NVFP4's blocks (0x38) or as an exponent of MXFP8's.
        filled = [
            torch.full(one.shape, 56 if self.quant == "nvfp4" else 127, dtype=torch.uint8, device=device)
            for one in rest
        ]
        return x, filled[0] if filled else None

    def _fill(self, tensors: dict[str, Any]) -> None:
        """Synthetic weights, small enough that activations stay finite; filled in place, so the peak is the weights."""
        import torch

        for name, tensor in tensors.items():
            if name.endswith("_expert_weights"):
                self._fill_weights(name, tensor, tensors[f"{name[:3]}_weight_block"] if self._format.block else None)
            elif tensor.dtype == torch.float32:
                tensor.fill_(_GATE.get(name.removeprefix("swiglu_"), 1.0))
            elif tensor.dtype == torch.bfloat16:
                tensor.normal_(std=0.02)
        if self.quant == "nvfp4":
            # Blocks of 1, and a small scale for each expert.
            for name in ("fc1", "fc2"):
                tensors[f"{name}_weight_block"].view(torch.uint8).fill_(56)
                tensors[f"{name}_global"].fill_(2.0**-6)

    def _fill_weights(self, name: str, tensor: Any, blocks: Any) -> None:
        import torch

        if self.quant == "bf16":
            tensor.normal_(std=0.02)
            return
        if self.quant == "fp8":
            for expert in range(self.local_experts):
                numbers = torch.empty(tensor.shape[1:], dtype=torch.bfloat16, device=tensor.device).normal_(std=0.02)
                tensor[expert].copy_(numbers.to(tensor.dtype))
            return
        for pattern in range(min(_PATTERNS, self.local_experts)):
            packed = self._packed(name, pattern, tensor.device)
            if self.quant == "w4a16_mxfp4":
                from flashinfer.fused_moe import interleave_moe_weights_for_sm90_mixed_gemm

                # Equal exponents are equal in every layout of scales.
                packed = interleave_moe_weights_for_sm90_mixed_gemm(packed[None], "fp4")[0]
            tensor.view(torch.uint8)[pattern::_PATTERNS] = packed
        if blocks is not None:
            blocks.view(torch.uint8).fill_(_EXPONENT)

    def _packed(self, name: str, pattern: int, device: Any) -> Any:
        """An expert's FP4 weight in the checkpoint's layout, two numbers a byte; the same bytes at every call."""
        import torch

        rows, columns = self._matrix(name)
        generator = torch.Generator(device=device).manual_seed(2 * pattern + (name == "fc2_expert_weights"))
        return torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, device=device, generator=generator)

    def _matrix(self, name: str) -> tuple[int, int]:
        hidden, width = self.hidden_size, self.intermediate_size
        return (2 * width, hidden) if name == "fc1_expert_weights" else (hidden, width)

    def _reference(self, x: Any, ids: Any, scales: Any, weights: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
        """float32 of what was quantized. None for formats whose kernel quantizes activations by scales of its own."""
        import torch

        if not self._has_reference:
            return None
        fc1, fc2 = weights["fc1_expert_weights"], weights["fc2_expert_weights"]
        gate = Gate(tensors["fc1_expert_biases"], tensors["fc2_expert_biases"], **_GATE) if self.biased else None
        between = torch.float8_e4m3fn if self.quant == "fp8" else None
        return lambda rows: gated_moe(
            rows_of(x, rows), ids[rows], scales[rows], fc1, fc2, gate_of=gate, between=between
        )


class _Decoded:
    """Experts of an MXFP4 weight as matrices of bfloat16, which holds them exactly; decoded when first asked for."""

    def __init__(self, call: CutlassFusedMoe, name: str, device: str) -> None:
        self._call, self._name, self._device = call, name, device
        self._patterns: dict[int, Any] = {}
        self.shape = (call.local_experts,)

    def __getitem__(self, expert: int) -> Any:
        import torch

        pattern = expert % _PATTERNS
        if pattern not in self._patterns:
            numbers = e2m1(self._call._packed(self._name, pattern, self._device)) * 2.0 ** (_EXPONENT - 127)
            self._patterns[pattern] = numbers.to(torch.bfloat16)
        return self._patterns[pattern]
