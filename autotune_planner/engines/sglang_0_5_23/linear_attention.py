"""Models that mix softmax attention with layers of a recurrent state (Mamba, gated delta nets).

Sources: ``arg_groups/overrides._mamba_radix_cache_resolution``, ``arg_groups/mamba_hook.py``.
"""

from __future__ import annotations

from autotune_planner.engines.sglang_0_5_23 import architectures
from autotune_planner.engines.sglang_0_5_23.arguments import ServerArguments
from autotune_planner.engines.sglang_0_5_23.model import ModelFacts
from autotune_planner.engines.sglang_0_5_23.rejection import rejected

_SNAPSHOTS = ("extra_buffer", "extra_buffer_lazy")
_CHUNK = 64  # tokens between two states that the kernel can hand out
_FLAG = "--mamba-radix-cache-strategy"


def radix_cache_off(arguments: ServerArguments) -> bool:
    """Source: ``pd_disaggregation_hook.handle_pd_disaggregation``: a decode worker has one only if it is asked for."""
    if arguments.disaggregation_mode == "decode":
        return not arguments.disaggregation_decode_enable_radix_cache
    return arguments.disable_radix_cache


def keeps_snapshots(arguments: ServerArguments) -> bool:
    """Whether the operator chose to keep states in the radix cache. Source: ``mamba_extra_buffer_of``, which on SM100
    is asked before ``auto`` has become a strategy."""
    return not radix_cache_off(arguments) and arguments.mamba_radix_cache_strategy in _SNAPSHOTS


def check_state_cache(
    arguments: ServerArguments, model: ModelFacts, *, attention_backend: str | None, page_size: int | None
) -> None:
    """Source: ``model_hook.handle_mamba_radix_cache``. Backend and page size (tokens) as the model's own defaults
    leave them; None: not given."""
    if radix_cache_off(arguments):
        return
    strategy = arguments.mamba_radix_cache_strategy
    if model.architecture not in architectures.RECURRENT_STATE:
        if strategy in _SNAPSHOTS:
            raise rejected(
                _FLAG,
                f"{strategy} needs a model with a recurrent state, and {model.architecture} has none",
                "leave it out",
                source="model_hook.handle_mamba_radix_cache",
            )
        return
    overlap = not arguments.disable_overlap_schedule
    supported = model.architecture in architectures.STATE_SNAPSHOTS and arguments.linear_attn_backend == "triton"
    if strategy == "auto":
        if supported and (overlap or (page_size or 1) > 1):
            strategy = "extra_buffer"
        else:
            strategy, overlap = "no_buffer", False
    if strategy in _SNAPSHOTS:
        _check_snapshots(arguments, strategy, supported=supported, page_size=page_size)
    elif page_size not in (1, None) or overlap or attention_backend == "trtllm_mha":
        raise rejected(
            _FLAG,
            "no_buffer works with pages of one token, without overlap scheduling and without trtllm_mha",
            f"leave it out, or {_FLAG} extra_buffer",
            source="mamba_hook.validate_mamba_no_buffer",
        )


def check_kernels(arguments: ServerArguments, capability_major: int) -> None:
    """Checked whatever the model. Source: ``attention_hook.handle_linear_attn_backend``."""
    source = "attention_hook.handle_linear_attn_backend"
    if arguments.linear_attn_decode_backend == "flashkda":
        raise rejected(
            "--linear-attn-decode-backend",
            "flashkda is for prefill only",
            "--linear-attn-prefill-backend flashkda",
            source=source,
        )
    backends = (
        arguments.linear_attn_backend,
        arguments.linear_attn_decode_backend,
        arguments.linear_attn_verify_backend,
    )
    decode = backends[1] or backends[0]
    verify = backends[2] or decode
    if capability_major >= 10 and arguments.mamba_ssm_dtype != "bfloat16" and "flashinfer" in (decode, verify):
        raise rejected(
            "--linear-attn-backend" if backends[1:] == (None, None) else "--linear-attn-decode-backend",
            "flashinfer needs a state in bfloat16 on this GPU",
            "--mamba-ssm-dtype bfloat16, or --linear-attn-backend triton",
            source=source,
        )


def _check_snapshots(arguments: ServerArguments, strategy: str, *, supported: bool, page_size: int | None) -> None:
    interval, drafts = arguments.mamba_track_interval, arguments.speculative_num_draft_tokens
    pages = page_size or 1
    reasons = (
        (not supported, f"{strategy} needs --linear-attn-backend triton, and a model whose states can be kept"),
        (
            strategy == "extra_buffer_lazy" and arguments.disaggregation_mode != "null",
            f"{strategy} does not work on a worker of a PD pair",
        ),
        (drafts is not None and interval < drafts, f"{drafts} draft tokens exceed --mamba-track-interval {interval}"),
        (interval % pages > 0, f"--mamba-track-interval {interval} is not a multiple of the page of {pages} tokens"),
        (
            max(_CHUNK, pages) % min(_CHUNK, pages) > 0,
            f"neither of the page of {pages} tokens and the chunk of {_CHUNK} divides the other",
        ),
    )
    for failed, reason in reasons:
        if failed:
            raise rejected(
                _FLAG, reason, f"{_FLAG} extra_buffer --page-size 64", source="mamba_hook.validate_mamba_extra_buffer"
            )
