"""MoE runner, expert parallelism and all-to-all. Sources: ``arg_groups/moe_hook.py``, ``arg_groups/overrides.py``,
``arg_groups/model_overrides/*``."""

from __future__ import annotations

from dataclasses import replace

from autotune_planner import profiles
from autotune_planner.engines.sglang_0_5_23 import architectures
from autotune_planner.engines.sglang_0_5_23.arguments import PROFILE, ServerArguments
from autotune_planner.engines.sglang_0_5_23.model import ModelFacts
from autotune_planner.engines.sglang_0_5_23.quantization import (
    argument,
    checkpoint_quantization,
    declared_quantization,
    model_quantization,
)
from autotune_planner.engines.sglang_0_5_23.rejection import rejected
from autotune_planner.values import dataclass

_EP_SPANNING = (
    "megamoe",
    "deepep",
    "deepep_v2",
    "mooncake",
    "nixl",
    "ascend_fuseep",
    "flashinfer",
    "flashinfer_megamoe",
    "mori",
    "pplx",
)
_TRTLLM_DEEPSEEK = ("fp8", "modelopt_fp8", "modelopt_fp4", "modelopt_mixed", None)
_TRTLLM_QWEN3 = ("fp8", "modelopt_fp4", "modelopt_mixed", None)
_TRTLLM_GLM4 = ("modelopt_fp4", None)
_SUPPORTED_QUANTIZATION = {
    "flashinfer_cutlass": ("modelopt_fp4", "modelopt_fp8", "modelopt_mixed", None),
    "flashinfer_cutedsl": ("modelopt_fp4", "modelopt_mixed", "nvfp4_online"),
    "flashinfer_trtllm": (
        "modelopt_fp4",
        "nvfp4_online",
        "fp8",
        "mxfp8",
        "modelopt_fp8",
        "modelopt_mixed",
        "compressed-tensors",
        None,
    ),
    "flashinfer_trtllm_routed": ("fp8", "mxfp8", "modelopt_fp4", "modelopt_mixed", "nvfp4_online", None),
}


_A2A_RUNNERS = {"flashinfer_megamoe": "flashinfer_megamoe", "deepep_v2": "deep_gemm", "pplx": "deep_gemm"}
_MXFP8_RUNNERS = ("cutlass", "deep_gemm", "flashinfer_megamoe", "flashinfer_trtllm", "flashinfer_trtllm_routed")
_NVFP4_ONLINE_RUNNERS = ("flashinfer_trtllm", "flashinfer_trtllm_routed", "flashinfer_cutedsl")


@dataclass(frozen=True)
class MoeResolved:
    runner_backend: str
    a2a_backend: str
    ep_size: int
    quantization: str | None  # as the server's argument stands after resolution; part of its cache key


def resolve_moe(arguments: ServerArguments, model: ModelFacts, capability: tuple[int, int] | None) -> MoeResolved:
    """Runner by model and GPU, then the checks that the server makes of it."""
    major = capability[0] if capability else 0
    runner, quantization = _by_model(arguments, model, major)
    _check_triton_kernel(runner, model, arguments.ep_size)
    runner = _by_quantization(runner, quantization, arguments.moe_a2a_backend)
    if quantization == "modelopt_fp4" and runner == "auto" and major in (11, 12):
        runner = "flashinfer_cutlass"
    _check_runner(runner, quantization, arguments)
    a2a = _a2a_backend(arguments)
    ep_size = arguments.tp_size if a2a in _EP_SPANNING else arguments.ep_size
    runner = _by_a2a(runner, a2a, arguments)
    _check_a2a(replace(arguments, moe_a2a_backend=a2a), runner)
    return MoeResolved(runner, a2a, ep_size, quantization)


def megamoe_alias(arguments: ServerArguments) -> ServerArguments:
    """As a runner, ``megamoe`` means the all-to-all backend of that name. Source:
    ``mega_moe_hook.handle_moe_runner_backend_alias``."""
    if arguments.moe_runner_backend != "megamoe":
        return arguments
    return replace(arguments, moe_runner_backend="auto", moe_a2a_backend="megamoe")


def _a2a_backend(arguments: ServerArguments) -> str:
    """Waterfill brings DeepEP along, after everything else has been chosen without it.

    Sources: ``overrides._a2a_backend_overrides``, ``moe_hook.handle_a2a_moe``.
    """
    given = arguments.moe_a2a_backend
    if arguments.enable_waterfill and given not in ("deepep", "megamoe"):
        return "deepep"
    return "none" if given == "ascend_tp" else given


def _by_a2a(runner: str, a2a: str, arguments: ServerArguments) -> str:
    """Source: ``moe_hook.handle_a2a_moe``."""
    if runner == "auto":
        return _A2A_RUNNERS.get(a2a, runner)
    routed = a2a == "flashinfer" and arguments.flashinfer_a2a_dispatch_type is not None
    return "flashinfer_trtllm_routed" if routed and runner == "flashinfer_trtllm" else runner


def _by_model(arguments: ServerArguments, model: ModelFacts, major: int) -> tuple[str, str | None]:
    """Runner, and the quantization argument: on SM100 some families take the checkpoint's over into it.

    Sources: ``model_overrides/qwen3_moe.py``, ``glm4_moe.py``, ``minimax_m2.py``, ``gpt_oss.py``;
    ``overrides._deepseek_moe_quant_resolution``.
    """
    runner, quantization = arguments.moe_runner_backend, argument(arguments.quantization)
    unset = runner == "auto"
    if model.architecture == "GptOssForCausalLM" and unset and model.quant_method == "mxfp4" and major in (10, 12):
        return "flashinfer_mxfp4", quantization
    if major != 10:
        return runner, quantization
    if model.architecture == "MiniMaxM2ForCausalLM":
        routed = unset and model_quantization(arguments.quantization, checkpoint_quantization(model)) == "modelopt_fp4"
        return "flashinfer_trtllm_routed" if routed else runner, quantization
    trtllm = _trtllm_quantizations(model)
    if trtllm is None:
        return runner, quantization
    if arguments.quantization is None:
        quantization = declared_quantization(model)
    if model.architecture in architectures.QWEN3_MOE and "W4A16_NVFP4" in model.quant_expert_algos:
        return _w4a16_runner(runner), quantization
    if unset and arguments.moe_a2a_backend == "none" and (quantization in trtllm or _int4_experts(model)):
        runner = "flashinfer_trtllm"
    return runner, quantization


def _trtllm_quantizations(model: ModelFacts) -> tuple[str | None, ...] | None:
    """Quantizations whose MoE runs in TensorRT-LLM's kernels on SM100; None for a family that keeps ``auto``.

    LongCat chooses among experts without weights too, which those kernels cannot see.
    """
    if model.architecture in architectures.DEEPSEEK:
        return () if model.architecture.startswith("LongcatFlash") else _TRTLLM_DEEPSEEK
    if model.architecture in architectures.QWEN3_MOE:
        return _TRTLLM_QWEN3
    return _TRTLLM_GLM4 if model.architecture == "Glm4MoeForCausalLM" else None


def _int4_experts(model: ModelFacts) -> bool:
    return model.quant_int4_groups and model.architecture in architectures.DEEPSEEK


def _w4a16_runner(runner: str) -> str:
    """Experts with 4-bit weights and 16-bit activations. Source: ``qwen3_moe._qwen3_moe_family_overrides``."""
    if runner not in ("auto", "marlin", "flashinfer_cutedsl"):
        raise rejected(
            "--moe-runner-backend",
            f"{runner} does not run W4A16_NVFP4 experts",
            "--moe-runner-backend marlin",
            source="qwen3_moe._qwen3_moe_family_overrides",
        )
    return "marlin" if runner == "auto" else runner


def _by_quantization(runner: str, quantization: str | None, a2a: str) -> str:
    """Source: ``overrides._moe_runner_backend_quant_constraints``: mxfp8 overrides even a runner that was asked for."""
    if quantization == "mxfp8" and runner not in _MXFP8_RUNNERS:
        return "flashinfer_megamoe" if a2a == "flashinfer_megamoe" else "flashinfer_trtllm"
    if quantization != "nvfp4_online":
        return runner
    if runner == "auto":
        return "flashinfer_trtllm"
    if runner not in _NVFP4_ONLINE_RUNNERS:
        raise rejected(
            "--moe-runner-backend",
            f"{runner} does not work with --quantization nvfp4_online",
            f"one of {', '.join(_NVFP4_ONLINE_RUNNERS)}",
            source="overrides._moe_runner_backend_quant_constraints",
        )
    return runner


def _check_triton_kernel(runner: str, model: ModelFacts, ep_size: int) -> None:
    """Source: ``model_hook.handle_model_specific_adjustments``."""
    if model.architecture == "GptOssForCausalLM" and runner == "triton_kernel" and ep_size != 1:
        raise rejected(
            "--ep-size",
            f"triton_kernel supports 1 only, got {ep_size}",
            "--ep-size 1, or --moe-runner-backend triton",
            source="model_hook.handle_model_specific_adjustments",
        )


def _check_runner(runner: str, quantization: str | None, arguments: ServerArguments) -> None:
    """Source: ``moe_hook.handle_moe_kernel_config``."""
    source = "moe_hook.handle_moe_kernel_config"
    supported = _SUPPORTED_QUANTIZATION.get(runner)
    if supported is not None and quantization not in supported:
        names = ", ".join("bfloat16" if name is None else name for name in supported)
        raise rejected(
            "--moe-runner-backend",
            f"{runner} does not support quantization {quantization or 'bfloat16'}; it supports {names}",
            "--moe-runner-backend auto",
            source=source,
        )
    if runner in ("flashinfer_cutlass", "flashinfer_cutedsl") and arguments.ep_size not in (1, arguments.tp_size):
        raise rejected(
            "--ep-size",
            f"{runner} needs 1 or tp_size ({arguments.tp_size}), got {arguments.ep_size}",
            f"--ep-size {arguments.tp_size}",
            source=source,
        )


def _check_a2a(arguments: ServerArguments, runner: str) -> None:
    """Source: ``moe_hook.handle_a2a_moe``."""
    if arguments.moe_a2a_backend != "flashinfer":
        return
    source = "moe_hook.handle_a2a_moe"
    if arguments.attn_dp_size == 1 or arguments.attn_dp_size != arguments.tp_size:
        raise rejected(
            "--moe-a2a-backend",
            f"flashinfer needs as many attention-DP groups as tp_size, got {arguments.attn_dp_size} and "
            f"{arguments.tp_size}",
            f"--enable-dp-attention --dp-size {arguments.tp_size}",
            source=source,
        )
    supported = (
        "flashinfer_cutlass",
        "flashinfer_cutedsl",
        "flashinfer_trtllm",
        "flashinfer_trtllm_routed",
        "deep_gemm",
    )
    if runner not in supported:
        raise rejected(
            "--moe-a2a-backend",
            f"flashinfer does not work with --moe-runner-backend {runner}",
            f"--moe-runner-backend, one of {', '.join(supported)}",
            source=source,
        )


def a2a_capacity(buffer_tokens: int, override: int | None) -> int:
    """Tokens per rank that the A2A workspace holds. Source: ``flashinfer_a2a_max_dispatch_tokens_per_rank``."""
    if override is not None:
        return override
    return max(buffer_tokens, int(profiles.load("engines", PROFILE)["flashinfer_a2a_min_tokens"]))


def check_a2a_budget(
    *,
    arguments: ServerArguments,
    chunk: int,
    buffer_tokens: int,
    prefill_graph_max_bs: int | None,
    decode_graph_max_bs: int,
    draft_tokens: int,
    max_running_requests: int | None,
    capacity: int,
) -> None:
    """Source: ``moe_hook.validate_flashinfer_a2a_token_budget``. All in tokens or requests per rank."""
    if arguments.moe_a2a_backend != "flashinfer":
        return
    source = "moe_hook.validate_flashinfer_a2a_token_budget"
    decode_only = arguments.disaggregation_mode == "decode"
    if not decode_only and chunk <= 0:
        raise rejected(
            "--chunked-prefill-size",
            "FlashInfer A2A needs chunked prefill: the whole per-rank batch goes through a workspace of fixed size",
            "--chunked-prefill-size 8192 (machine-wide)",
            source=source,
        )
    tokens = 0 if decode_only else max(buffer_tokens, prefill_graph_max_bs or 0)
    graph = decode_graph_max_bs
    if max_running_requests is not None:
        graph = min(graph, max(1, max_running_requests // arguments.attn_dp_size))
    required = max(tokens, graph * draft_tokens)
    if required > capacity:
        raise rejected(
            "SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
            f"the A2A workspace holds {capacity} tokens per rank, {required} are needed",
            f"set it to {required}, or leave it unset",
            source=source,
        )
