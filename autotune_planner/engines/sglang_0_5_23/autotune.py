"""Whether and how the server autotunes at start. Source: ``model_executor/runner/flashinfer_autotune.py``."""

from __future__ import annotations

from autotune_planner import profiles
from autotune_planner.engines.resolved import ExtendShape, PassDecision
from autotune_planner.engines.sglang_0_5_23.arguments import PROFILE, ServerArguments
from autotune_planner.engines.sglang_0_5_23.environment import EXTEND
from autotune_planner.values import dataclass

_MODELOPT_FP8 = ("modelopt", "modelopt_fp8", "modelopt_mixed")
_MODELOPT_FP4 = ("modelopt_fp4", "modelopt_mixed")


def skip_reason(
    arguments: ServerArguments,
    *,
    runner: str,
    model_quantization: str | None,
    checkpoint: str | None,
    capability: tuple[int, int] | None,
    fp4_gemm_backend: str,
) -> str | None:
    """Why the server does not autotune its target model; None where it does. ``checkpoint`` is its own quantization.

    Source: ``should_run_flashinfer_autotune``. ``model_quantization`` is the checkpoint's. A string test of the runner,
    so a dense model with a flashinfer_* runner passes too.
    """
    if arguments.enable_kv_cache_sharding:
        return "KV-cache sharding is on"
    if arguments.disable_flashinfer_autotune:
        return "--disable-flashinfer-autotune is given"
    if arguments.enable_deterministic_inference:
        return "deterministic inference is on: tuned tactics would change the order of reductions with the batch"
    if runner == "flashinfer_cutedsl" and arguments.moe_a2a_backend == "deepep":
        return "flashinfer_cutedsl with DeepEP has a dispatch of its own"
    major = capability[0] if capability else 0
    if not _needs_autotune(runner, model_quantization, fp4_gemm_backend, major):
        weights = f"the checkpoint {model_quantization or 'not quantized'}"
        if model_quantization not in (None, checkpoint):
            weights = f"the weights are quantized to {model_quantization} when they are loaded"
        return f"no op needs it: the MoE runner is {runner}, {weights}"
    if major < 9:
        shown = "unknown" if capability is None else f"SM{capability[0]}{capability[1]}"
        return f"the GPU is {shown}; FlashInfer is autotuned on SM90 and newer only"
    return None


def _needs_autotune(runner: str, model_quantization: str | None, fp4_gemm_backend: str, major: int) -> bool:
    if runner in profiles.load("engines", PROFILE)["autotuned_moe_runners"]:
        return True
    if model_quantization in _MODELOPT_FP4 and fp4_gemm_backend in ("flashinfer_cutlass", "flashinfer_cutedsl"):
        return True
    if model_quantization == "mxfp8":
        return major in (10, 12)
    return model_quantization in _MODELOPT_FP8 and major in (9, 10, 12)


@dataclass(frozen=True)
class ExtendGate:
    """``shape`` is the EXTEND dummy if it were enabled, None where a gate closes whatever the switch says."""

    shape: ExtendShape | None
    closed_because: str | None


def extend_gate(
    *,
    ceiling: int,
    decode_bs: int,
    pool: int,
    packed: bool,
    is_generation: bool,
    speculative: bool,
    disaggregation_mode: str,
) -> ExtendGate:
    """Gates and shape of the EXTEND pass. Source: ``maybe_flashinfer_autotune_extend``.

    The ceiling (tokens) is compared with the decode dummy's requests, not with its tokens. Backends that are capped by
    the request pool pack several tokens into a request, so the dummy can exceed the ceiling.
    """
    if ceiling <= decode_bs:
        return ExtendGate(None, f"its {ceiling} tokens are not more than the {decode_bs} requests of the DECODE pass")
    if not is_generation:
        return ExtendGate(None, "the model does not generate")
    if speculative and disaggregation_mode != "prefill":
        return ExtendGate(None, "a speculative target outside PD prefill has no EXTEND dummy")
    per_request = -(-ceiling // pool) if packed else 1
    batch = -(-ceiling // per_request)
    return ExtendGate(ExtendShape(batch, per_request, False, False, per_request if packed else None), None)


def cutlass_tune_max(*, ceiling: int, attn_dp_size: int, disaggregation_mode: str, rows: int) -> int:
    """Bound of the CUTLASS MoE's buckets, in tokens. Source: ``flashinfer_cutlass._cutlass_moe_tune_max_num_tokens``.

    It follows the prefill budget, not M, except on a decode worker: there the next power of two of the rows.
    """
    if disaggregation_mode == "decode":
        return 1 << (rows - 1).bit_length()
    return min(ceiling * attn_dp_size, int(profiles.load("engines", PROFILE)["cutlass_moe_tune_max"]))


def pass_decisions(
    *,
    no_autotune: str | None,
    gate: ExtendGate,
    extend_on: bool,
    decode: tuple[int, int, int],
    extend_rows: int | None,
    draft: PassDecision | None,
) -> tuple[PassDecision, ...]:
    """The server's passes with reasons. ``decode`` is (requests, tokens each, MoE rows) of its dummy."""
    requests, per_request, rows = decode
    tokens = requests * per_request
    decisions = [
        PassDecision(
            "decode",
            no_autotune is None,
            no_autotune or "always the first pass: the eager runner warms up before CUDA graphs are captured",
            requests,
            per_request,
            tokens,
            rows,
        )
    ]
    shape = gate.shape
    reason = no_autotune or gate.closed_because
    run = reason is None and extend_on
    if reason is None:
        reason = f"{EXTEND}=1" if extend_on else f"off by default: it needs {EXTEND}=1"
    batch, each = (shape.max_bs, shape.num_tokens_per_req) if shape else (None, None)
    total = shape.max_bs * shape.num_tokens_per_req if shape else None
    decisions.append(PassDecision("extend", run, reason, batch, each, total, extend_rows))
    return (*decisions, draft) if draft is not None else tuple(decisions)


def draft_block(algorithm: str | None, draft_tokens: int | None) -> int | None:
    """Tokens of a request that a draft model proposes at once; None where it drafts step by step.

    Source: ``SpeculativeAlgorithm.get_num_tokens_per_req_for_target_verify``, for the draft worker.
    """
    if algorithm not in ("DFLASH", "DSPARK") or draft_tokens is None:
        return None
    return draft_tokens if algorithm == "DFLASH" else draft_tokens - 1


def draft_pass(
    *,
    algorithm: str | None,
    no_autotune: str | None,
    capture_bs: tuple[int, ...] | None,
    topk: int | None,
    draft_tokens: int | None,
) -> PassDecision | None:
    """The draft model's pass; None without a draft model. ``capture_bs`` are its graph sizes in requests, None where
    graphs are off or no size can be captured: then it is not tuned at all.

    Source: ``maybe_flashinfer_autotune_speculative_draft``, called once for each runner class at its first capture,
    which is the largest: ``topk`` tokens a request while it drafts, ``draft_tokens`` when it catches up (draft EXTEND).
    A draft of whole blocks runs once, as wide as the block: ``draft_tokens`` (DFLASH), one less for DSPARK.
    """
    if algorithm in (None, "NGRAM"):
        return None
    if capture_bs is None:
        reason = no_autotune or "the draft model is tuned while its CUDA graphs are captured, and none are"
        return PassDecision("draft", False, reason, None, None, None, None)
    block = draft_block(algorithm, draft_tokens)
    bs, each = capture_bs[-1], block or topk or 1
    reason = no_autotune or "at its largest captured size"
    if no_autotune is None and algorithm in ("EAGLE", "EAGLE3", "STANDALONE"):
        reason += f"; its draft EXTEND at {bs} x {draft_tokens} tokens"
    return PassDecision("draft", no_autotune is None, reason, bs, each, bs * each, None)
