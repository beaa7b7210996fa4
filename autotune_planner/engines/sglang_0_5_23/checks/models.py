"""What a model or a GPU does not offer.

Sources: ``configs/model_config.py``, ``arg_groups/overrides.py``, ``arg_groups/mamba_hook.py``,
``arg_groups/attention_hook.py``, ``arg_groups/cuda_graph_hook.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from autotune_planner.engines.sglang_0_5_23 import architectures
from autotune_planner.engines.sglang_0_5_23.checks.subject import Rule, Subject, least, refuse

LONGER_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_MODELOPT = ("modelopt", "modelopt_fp4", "modelopt_fp8", "modelopt_mixed", "nvfp4_online")
_ROUNDING = "--enable-mamba-cache-stochastic-rounding"
_REPLAY = "--enable-linear-replayssm"


def check(subject: Subject) -> None:
    refuse("model_config.ModelConfig._derive_context_length", *_context(subject))
    refuse("model_config.ModelConfig._validate_quantize_and_serve_config", *_quantize(subject))
    refuse("cuda_graph_hook._resolve_max_context_size", *_graph_context(subject))
    refuse("mamba_hook.handle_mamba_backend", *_states(subject))
    refuse("attention_hook.handle_linear_attn_backend", *_replay(subject))
    refuse("overrides._check_dsa_backend_constraints", *_sparse(subject))
    option = "--enable-deepseek-v4-fp4-indexer"
    old = subject.on("enable_deepseek_v4_fp4_indexer") and subject.major not in (10, 12, None)
    refuse("serving_hook.handle_environment_variables", (old, option, "needs SM100 or SM120", f"leave {option} out"))
    option = "--enable-encoder-swa-bounded-replay"
    other = subject.on("enable_encoder_swa_bounded_replay") and subject.model.config_class != "DeepseekV41Config"
    source = "model_hook.handle_model_capability_adjustments"
    refuse(source, (other, option, "is for DeepSeek-V4.1 only", f"leave {option} out"))


def _context(subject: Subject) -> Iterator[Rule]:
    asked, longest = subject.arguments.context_length, subject.model.longest_context
    longer = asked is not None and asked > longest and not subject.environment.flag(LONGER_CONTEXT)
    rule = f"{asked} tokens are more than the model's {longest}"
    yield longer, "--context-length", rule, f"--context-length {longest}, or {LONGER_CONTEXT}=1"


def _quantize(subject: Subject) -> Iterator[Rule]:
    option, quantization = "--quantize-and-serve", subject.arguments.quantization
    rule = "is disabled in this release"
    if quantization not in _MODELOPT:
        rule = f"needs one of {', '.join(_MODELOPT)} as --quantization, and is disabled in this release"
    yield subject.on("quantize_and_serve"), option, rule, "quantize and export the model first, then serve the export"


def _graph_context(subject: Subject) -> Iterator[Rule]:
    settings = subject.get("cuda_graph_config", {}).get("prefill") or {}
    asked = settings.get("max_context_size") or subject.get("cuda_graph_prefill_max_context")
    if asked is None:
        return
    page, longest, option = subject.attention.page_size, subject.model.context_len, "--cuda-graph-prefill-max-context"
    aligned = -(-asked // page) * page
    wrong = asked <= 0 or aligned > longest
    yield wrong, option, f"must be positive and at most the {longest} tokens of a context", f"{option} {longest}"


def _states(subject: Subject) -> Iterator[Rule]:
    yield least(subject, "mamba_cache_philox_rounds", 0, 0)
    paths, option = subject.get("mamba_max_states_per_path", -1), "--mamba-max-states-per-path"
    yield paths == 0 or paths < -1, option, f"must be positive, or -1 for no limit, got {paths}", f"{option} -1"
    if not subject.on("enable_mamba_cache_stochastic_rounding"):
        return
    half = subject.arguments.mamba_ssm_dtype == "float16"
    yield not half, _ROUNDING, "needs --mamba-ssm-dtype float16", "add --mamba-ssm-dtype float16"
    triton = subject.get("mamba_backend", "triton") == "triton"
    old = triton and subject.major not in (10, None)
    yield old, _ROUNDING, "needs SM100 with the triton backend", "--mamba-backend flashinfer"


def _replay(subject: Subject) -> Iterator[Rule]:
    arguments = subject.arguments
    decode = arguments.linear_attn_decode_backend or arguments.linear_attn_backend
    buffered = arguments.linear_attn_backend != "helion" and subject.major == 10
    if arguments.linear_attn_decode_backend is None and buffered and arguments.mamba_ssm_dtype == "bfloat16":
        decode = "flashinfer"
    decode = "triton" if decode == "flashkda" else decode
    chunk, draft = f"{_REPLAY}-spec", subject.on("enable_linear_replayssm_spec")
    if subject.on("enable_linear_replayssm"):
        known = decode in ("triton", "helion")
        yield not known, _REPLAY, f"needs triton for decoding, got {decode}", "--linear-attn-decode-backend triton"
        kept = not subject.radix_cache_off and _keeps_states(subject)
        yield kept, _REPLAY, "does not keep states", "--mamba-radix-cache-strategy no_buffer"
        yield subject.mode != "null", _REPLAY, "does not work on the workers of a PD pair", "leave it out"
        length = subject.get("linear_replayssm_cache_len", 16)
        option = "--linear-replayssm-cache-len"
        yield length < 1, option, f"must be positive, got {length}", f"{option} 16"
    if draft:
        branches = arguments.speculative_eagle_topk not in (None, 1)
        yield branches, chunk, "drafts a chain only", "--speculative-eagle-topk 1"
        known = decode in ("triton", "flashinfer")
        yield not known, chunk, f"needs triton for decoding, got {decode}", "--linear-attn-decode-backend triton"
        yield subject.mode == "prefill", chunk, "does not work on a prefill worker", "leave it out"
        yield subject.on("enable_linear_replayssm"), chunk, f"contradicts {_REPLAY}", "leave one of the two out"


def _keeps_states(subject: Subject) -> bool:
    """Source: ``overrides._mamba_radix_cache_resolution``: ``auto`` keeps them where it can."""
    strategy = subject.arguments.mamba_radix_cache_strategy
    if strategy != "auto":
        return strategy in ("extra_buffer", "extra_buffer_lazy")
    snapshots = subject.model.architecture in architectures.STATE_SNAPSHOTS
    overlap = not subject.arguments.disable_overlap_schedule
    return snapshots and subject.arguments.linear_attn_backend == "triton" and overlap


def _sparse(subject: Subject) -> Iterator[Rule]:
    """Defaults: ``overrides._dsa_split_backend_resolution``."""
    if subject.model.sparse_page_size is None or subject.major is None:
        return
    new = subject.major >= 10
    given = subject.arguments.kv_cache_dtype
    fp8 = given == "fp8_e4m3" or (given == "auto" and new)
    glm = subject.model.architecture == "GlmMoeDsaForCausalLM" and subject.major == 12 and fp8
    if glm:
        return
    if fp8:
        defaults = ("trtllm", "trtllm") if new else ("flashmla_kv", "flashmla_kv")
    else:
        defaults = ("flashmla_sparse", "trtllm" if new else "fa3")
    flags = ("dsa_prefill_backend", "dsa_decode_backend")
    chosen = [subject.get(flag, default) for flag, default in zip(flags, defaults, strict=True)]
    for flag, backend in zip(flags, chosen, strict=True):
        option = "--" + flag.replace("_", "-")
        yield backend == "triton", option, "triton is for AMD GPUs", f"leave {option} out"
        mixed = fp8 and "tilelang" in chosen and backend != "tilelang"
        yield mixed, option, "an FP8 cache needs tilelang in both phases, or in neither", f"{option} tilelang"
