"""DeepGEMM's warm-ups at start: when DeepGEMM is on, which M it compiles, and the sweep of pipeline-parallel ranks.

Sources: ``layers/deep_gemm_wrapper/configurer.py`` and ``compile_utils.py``, ``layers/quantization/fp8_utils.py``,
``model_executor/runner/base_runner.py:_warmup``. All M in tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from autotune_planner.deployment.model import Deployment
from autotune_planner.engines.resolved import Arguments, Warmup
from autotune_planner.engines.sglang_0_5_23.arguments import ServerArguments
from autotune_planner.engines.sglang_0_5_23.cuda_graph import ceil_to
from autotune_planner.engines.sglang_0_5_23.environment import (
    DEEPGEMM,
    DEEPGEMM_FAST,
    DEEPGEMM_PP,
    DEEPGEMM_PRECOMPILE,
    Environment,
)
from autotune_planner.engines.sglang_0_5_23.model import ModelFacts
from autotune_planner.values import dataclass

_LARGEST, _UNCHUNKED, _SMALLEST = 128 * 1024, 64 * 1024, 16 * 1024  # ends of the full list
_LARGE_CHUNK = 8192
_FAST_LARGEST, _FAST_UNCHUNKED, _FAST_DENSE = 32 * 1024, 16 * 1024, 1024
_FAST_STEPS = 512  # sizes between two powers of two
_BLOCK_M = 64
_DEEPGEMM_A2A = ("deepep", "mooncake", "nixl")


def off_reason(*, vendor: str, capability: tuple[int, int] | None, enabled: bool) -> str | None:
    """Why DeepGEMM is off; None where it is on. The release pins a package that serves SM120 too.

    Source: ``configurer._compute_enable_deep_gemm``.
    """
    if vendor != "nvidia":
        return "DeepGEMM needs an NVIDIA GPU"
    if not enabled:
        return f"{DEEPGEMM}=0"
    if capability is None or capability[0] < 9:
        shown = "unknown" if capability is None else f"SM{capability[0]}{capability[1]}"
        return f"DeepGEMM needs SM90 or newer, the GPU is {shown}"
    return None


def linears_use_it(
    *, quantization: str | None, block: Sequence[int] | None, backend: str, capability: tuple[int, int] | None
) -> bool:
    """Whether FP8 linears go through DeepGEMM where it is on. ``block`` is the checkpoint's (n, k), None without.

    Source: ``fp8_utils.dispatch_w8a8_block_fp8_linear`` and ``resolve_mxfp8_dense_gemm_backend``; shapes that DeepGEMM
    cannot serve fall back to Triton one by one. On SM100 only checkpoints with UE8M0 scales take 32 x 32 blocks.
    """
    sm90 = capability is not None and capability[0] == 9
    if quantization == "mxfp8":
        return backend == "deep_gemm" or (backend == "auto" and sm90)
    if quantization != "fp8" or block is None:
        return False
    if tuple(block) == (32, 32):
        return sm90 and backend in ("auto", "deep_gemm")
    return tuple(block) == (128, 128) and (
        backend in ("auto", "deep_gemm") or (backend == "flashinfer_deepgemm" and sm90)
    )


def experts_use_it(*, num_experts: int, runner: str, a2a_backend: str, quantization: str | None) -> bool:
    """Source: ``fp8.Fp8MoEMethod.is_deepgemm_moe_runner_backend_enabled``."""
    if not num_experts:
        return False
    return runner == "deep_gemm" or (runner == "auto" and a2a_backend in _DEEPGEMM_A2A and quantization == "fp8")


def full_sizes(chunk: int) -> tuple[int, ...]:
    """Every M up to twice a large chunk per rank. Source: ``compile_utils.update_deep_gemm_config``."""
    if chunk < 1:
        largest = _UNCHUNKED
    elif chunk > _LARGE_CHUNK:
        largest = 2 * chunk
    else:
        largest = _SMALLEST
    return tuple(range(1, min(largest, _LARGEST) + 1))


def fast_sizes(chunk: int) -> tuple[int, ...]:
    """Every M up to 1024, then 512 between powers of two; the last step may pass the chunk per rank."""
    largest = min(chunk, _FAST_LARGEST) if chunk >= 1 else _FAST_UNCHUNKED
    sizes = {*range(1, _FAST_DENSE + 1), largest}
    start = _FAST_DENSE
    while start < largest:
        sizes.update(range(start, 2 * start, start // _FAST_STEPS))
        start *= 2
    return tuple(sorted(sizes))


def sweep_sizes(sm_count: int, *, cp_padding: int, attn_tp_size: int, mlp_sync: bool) -> tuple[int, ...]:
    """Batch sizes of the pipeline-parallel sweep, one token a request.

    They bracket the splits that the kernel makes of its SMs. Under MLP sync each is aligned to what both context
    parallelism and attention-TP divide. Source: ``compile_utils.pp_parallel_deep_gemm_warmup``.
    """
    step = math.lcm(cp_padding, attn_tp_size) if mlp_sync else cp_padding
    blocks = (2, max(sm_count // 8, 2), max(sm_count // 4, 4), sm_count)
    return tuple(sorted({ceil_to(size, step) for size in (1, *(count * _BLOCK_M for count in blocks))}))


@dataclass(frozen=True)
class WarmupFacts:
    """What the warm-ups depend on. ``off`` is :func:`off_reason`; ``chunk`` is per rank, in tokens."""

    off: str | None
    precompile: bool
    fast: bool
    pp_parallel: bool
    linears: bool
    experts: bool
    chunk: int
    sm_count: int | None
    pp_size: int
    attn_tp_size: int
    cp_padding: int
    mlp_sync: bool
    speculative: bool
    is_generation: bool
    logits_ranks: int  # DP ranks whose rows one LM head computes
    disaggregation_mode: str


def warmup_facts(
    deployment: Deployment,
    environment: Environment,
    arguments: ServerArguments,
    model: ModelFacts,
    resolved: Arguments,
    quantization: str | None,
    *,
    mlp_sync: bool,
) -> WarmupFacts:
    """``quantization`` is the model's own, by the server's name."""
    gpu, checkpoint = deployment.gpu, deployment.model.quantization_config or {}
    return WarmupFacts(
        off=off_reason(
            vendor=gpu.vendor, capability=gpu.compute_capability, enabled=environment.flag(DEEPGEMM, default=True)
        ),
        precompile=environment.flag(DEEPGEMM_PRECOMPILE, default=True),
        fast=environment.flag(DEEPGEMM_FAST),
        pp_parallel=environment.flag(DEEPGEMM_PP),
        linears=linears_use_it(
            quantization=quantization,
            block=checkpoint.get("weight_block_size"),
            backend=arguments.fp8_gemm_runner_backend,
            capability=gpu.compute_capability,
        ),
        experts=experts_use_it(
            num_experts=model.num_experts,
            runner=resolved.moe_runner_backend,
            a2a_backend=resolved.moe_a2a_backend,
            quantization=quantization,
        ),
        chunk=resolved.chunked_prefill_size,
        sm_count=gpu.sm_count,
        pp_size=resolved.pp_size,
        attn_tp_size=resolved.attn_tp_size,
        cp_padding=arguments.attn_cp_size,
        mlp_sync=mlp_sync,
        speculative=resolved.speculative_algorithm is not None,
        is_generation=model.is_generation,
        # A head that is split over all of TP gathers first. Source: logits_processor._gather_dp_attn_hidden_states.
        logits_ranks=1 if arguments.enable_dp_lm_head else resolved.attn_dp_size,
        disaggregation_mode=resolved.disaggregation_mode,
    )


def warmups(facts: WarmupFacts) -> tuple[Warmup, ...]:
    """Both warm-ups with reasons; sizes only where one runs."""
    return _compile(facts), _sweep(facts)


def _compile(facts: WarmupFacts) -> Warmup:
    """Compilation of all M, once for each shape, by the first rank of a node, when a forward first reaches it."""
    reason = facts.off
    if reason is None and not facts.precompile:
        reason = f"{DEEPGEMM_PRECOMPILE}=0: kernels are compiled as requests reach them"
    if reason is None and not (facts.linears or facts.experts):
        reason = "no layer goes through DeepGEMM"
    if reason is not None:
        return Warmup("deep_gemm", False, reason)
    users = " and ".join(name for name, used in (("linears", facts.linears), ("experts", facts.experts)) if used)
    sizes = fast_sizes(facts.chunk) if facts.fast else full_sizes(facts.chunk)
    how = f"{DEEPGEMM_FAST}=1" if facts.fast else f"all sizes; {DEEPGEMM_FAST}=1 samples them"
    return Warmup("deep_gemm", True, f"{users} go through DeepGEMM ({how})", sizes)


def _sweep(facts: WarmupFacts) -> Warmup:
    """Dummy forwards on every pipeline rank at once. Source: ``base_runner._warmup``."""
    reason = _no_sweep(facts)
    if reason is not None or facts.sm_count is None:
        return Warmup(
            "deep_gemm_pp", False, reason or "its sizes follow the GPU's sm_count: give it in the gpu mapping"
        )
    sizes = sweep_sizes(
        facts.sm_count, cp_padding=facts.cp_padding, attn_tp_size=facts.attn_tp_size, mlp_sync=facts.mlp_sync
    )
    modes: list[Literal["DECODE", "EXTEND"]] = []
    if facts.is_generation and facts.disaggregation_mode != "prefill":
        modes.append("DECODE")
    if facts.disaggregation_mode != "decode":
        modes.append("EXTEND")
    return Warmup("deep_gemm_pp", True, f"{DEEPGEMM_PP}=1", sizes, tuple(modes), sizes[-1] * facts.logits_ranks)


def _no_sweep(facts: WarmupFacts) -> str | None:
    if not facts.pp_parallel:
        return f"off by default: it needs {DEEPGEMM_PP}=1"
    if facts.off is not None:
        return facts.off
    if facts.pp_size == 1:
        return "it is for pipeline parallelism"
    return "speculative servers skip it" if facts.speculative else None
