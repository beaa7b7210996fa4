"""Kernel choices of the server beside the MoE runner. Sources: ``layers/quantization/fp4_utils.py``,
``layers/quantization/fp8_utils.py``, ``layers/moe/utils.py``, ``arg_groups/moe_hook.py``."""

from __future__ import annotations

from autotune_planner.engines.resolved import Arguments
from autotune_planner.engines.sglang_0_5_23 import environment as variables
from autotune_planner.engines.sglang_0_5_23.arguments import ServerArguments
from autotune_planner.engines.sglang_0_5_23.environment import Environment
from autotune_planner.engines.sglang_0_5_23.op_layout import Kernels

_DEFERRED_ROWS = 192  # environ.SGLANG_MOE_DEFERRED_FINALIZE_MAX_TOKENS
_REPLICATED_BESIDE = (
    "deepep",
    "deepep_v2",
    "pplx",
    "mooncake",
    "nixl",
    "mori",
    "ascend_fuseep",
    "flashinfer",
    "megamoe",
    "flashinfer_megamoe",
)


def kernels_of(
    arguments: ServerArguments,
    resolved: Arguments,
    environment: Environment,
    capability: tuple[int, int],
    cutlass_tune_max: int,
) -> Kernels:
    a2a = resolved.moe_a2a_backend
    allgather = _fp4_allgather(arguments, resolved)
    return Kernels(
        capability=capability,
        moe_runner=resolved.moe_runner_backend,
        a2a_backend=a2a,
        fp4_gemm=fp4_gemm_backend(arguments, capability),
        mxfp8_gemm=_mxfp8_gemm_backend(arguments, capability),
        mxfp4_precision=arguments.flashinfer_mxfp4_moe_precision,
        nvfp4_w4a16=environment.flag(variables.NVFP4_W4A16),
        nvfp4_dispatch=_nvfp4_dispatch(arguments, resolved, environment),
        fp4_allgather=allgather,
        fused_finalize=environment.flag(variables.FUSED_FINALIZE),
        fusion_disabled=arguments.disable_shared_experts_fusion,
        fusion_enforced=arguments.enforce_shared_experts_fusion,
        experts_remapped=_experts_remapped(arguments),
        shared_expert_replicated=(
            a2a in _REPLICATED_BESIDE or allgather or environment.flag(variables.SHARED_EXPERT_TP1)
        ),
        prefill_graph=resolved.cuda_graph_prefill.backend,
        deferred_rows=_deferred_rows(environment),
        cutlass_tune_max=cutlass_tune_max,
    )


def fp4_gemm_backend(arguments: ServerArguments, capability: tuple[int, int] | None) -> str:
    """Source: ``fp4_utils.initialize_fp4_gemm_config``: CuTe DSL on SM100, Marlin before it, CUTLASS elsewhere."""
    if arguments.fp4_gemm_runner_backend != "auto":
        return arguments.fp4_gemm_runner_backend
    major = capability[0] if capability else 0
    return "flashinfer_cutedsl" if major == 10 else "marlin" if major < 10 else "flashinfer_cutlass"


def _mxfp8_gemm_backend(arguments: ServerArguments, capability: tuple[int, int]) -> str:
    """Source: ``fp8_utils.resolve_mxfp8_dense_gemm_backend``; only some values of the flag name such a kernel."""
    given = arguments.fp8_gemm_runner_backend
    if given in ("flashinfer_trtllm", "flashinfer_cutedsl", "flashinfer_cutlass", "deep_gemm"):
        return given
    if capability[0] < 10:
        return "deep_gemm"
    return "flashinfer_cutedsl" if capability in ((10, 0), (10, 3)) else "flashinfer_cutlass"


def _nvfp4_dispatch(arguments: ServerArguments, resolved: Arguments, environment: Environment) -> bool:
    """Whether FlashInfer's all-to-all sends activations in NVFP4. Source: ``moe_hook.handle_a2a_moe``."""
    wanted = arguments.flashinfer_a2a_dispatch_type
    if wanted in ("bf16", "nvfp4", "mxfp8"):
        return wanted == "nvfp4"
    return environment.flag(variables.NVFP4_DISPATCH, default=resolved.quantization == "modelopt_fp4")


def _fp4_allgather(arguments: ServerArguments, resolved: Arguments) -> bool:
    """Activations in NVFP4 before the gather. Source: ``utils.should_use_flashinfer_cutlass_moe_fp4_allgather``."""
    return (
        not arguments.disable_flashinfer_cutlass_moe_fp4_allgather
        and resolved.moe_a2a_backend == "none"
        and resolved.moe_runner_backend == "flashinfer_cutlass"
        and resolved.attn_dp_enabled
        and resolved.quantization == "modelopt_fp4"
        and resolved.moe_ep_size == resolved.attn_dp_size
    )


def _experts_remapped(arguments: ServerArguments) -> bool:
    """Whether chosen experts are mapped to places. Sources: ``topk.is_expert_remapping_enabled``,
    ``parallel_hook.handle_eplb_and_dispatch``, ``ExpertLocationDispatchInfo.init_new``."""
    moved = arguments.enable_eplb or arguments.init_expert_location != "trivial"
    algorithm = arguments.ep_dispatch_algorithm or ("dynamic" if moved else None)
    remapped = moved or arguments.ep_num_redundant_experts > 0 or algorithm in ("fake", "lp")
    return remapped and algorithm is not None


def _deferred_rows(environment: Environment) -> int:
    """Most rows of a captured MoE without its last sum; a limit of 0 or less is none at all."""
    if not environment.flag(variables.DEFERRED_FINALIZE, default=True):
        return 0
    limit = environment.number(variables.DEFERRED_FINALIZE_ROWS)
    limit = _DEFERRED_ROWS if limit is None else limit
    return limit if limit > 0 else 1 << 31
