"""Ranks and how work is split over them: context parallelism, decode CP, DWDP, LM head, sequence parallelism.

Sources: ``arg_groups/parallel_hook.py``, ``arg_groups/layernorm_sp_hook.py``, ``arg_groups/overrides.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from autotune_planner.engines.sglang_0_5_23 import architectures
from autotune_planner.engines.sglang_0_5_23.checks.subject import Rule, Subject, refuse

_LEAVE = "leave one of the two out"


def check(subject: Subject) -> None:
    refuse("parallel_hook.handle_decode_context_parallelism", *_decode_context(subject))
    refuse("parallel_hook.handle_context_parallelism", *_context(subject))
    refuse("parallel_hook.handle_dwdp", *_dwdp(subject))
    refuse("overrides._dp_lm_head_validation", *_lm_head(subject))
    refuse("parallel_hook.handle_shared_experts_tp", *_shared_experts(subject))
    refuse("layernorm_sp_hook.handle_layernorm_sp", *_sequence(subject))


def _decode_context(subject: Subject) -> Iterator[Rule]:
    size, backend = subject.arguments.dcp_size, subject.get("dcp_comm_backend")
    yield size < 1, "--dcp-size", f"must be positive, got {size}", "--dcp-size 1"
    yield size > 1 and subject.on("enable_prefill_cp"), "--dcp-size", "does not go with --enable-prefill-cp", _LEAVE
    exchanged = backend in ("a2a", "fi_a2a")
    needed = "needs --dcp-size above 1"
    yield exchanged and size <= 1, "--dcp-comm-backend", f"{backend} {needed}", "leave --dcp-comm-backend out"
    option = "--dcp-replicate-q-proj"
    replicated = subject.on("dcp_replicate_q_proj")
    yield replicated and size <= 1, option, needed, f"leave {option} out"
    yield replicated and backend == "ag_rs", option, "needs --dcp-comm-backend a2a", "add --dcp-comm-backend a2a"
    transfer = subject.get("disaggregation_transfer_backend", "mooncake")
    sent = transfer in ("mooncake", "mooncake_tcp", "nixl", "mori", "ascend", "fake")
    option = "--disaggregation-transfer-backend"
    rule = f"{transfer} does not carry the caches of --dcp-size {size}"
    yield subject.mode == "decode" and size > 1 and not sent, option, rule, f"{option} mooncake"


def _context(subject: Subject) -> Iterator[Rule]:
    """The sizes themselves: ``compatibility.check_context_parallel``."""
    arguments, name = subject.arguments, subject.model.architecture
    on, strategy, option = subject.on("enable_prefill_cp"), subject.get("cp_strategy"), "--enable-prefill-cp"
    yield on and strategy is None, option, "needs --cp-strategy", "add --cp-strategy zigzag"
    zigzag = name == "DeepseekV32ForCausalLM" and strategy == "zigzag"
    yield on and zigzag, "--cp-strategy", f"zigzag does not go with {name}", "--cp-strategy interleave"
    sparse = subject.model.sparse_page_size is not None
    decodes = on and sparse and subject.mode == "decode"
    yield decodes, option, "is for prefill, not for a decode worker", f"leave {option} out"
    staged = arguments.moe_dp_size > 1 and arguments.pp_size > 1
    yield staged, "--moe-dp-size", "does not go with pipeline parallelism", "--moe-dp-size 1"
    ep = subject.experts.ep_size
    filled = ep * arguments.moe_dp_size == arguments.tp_size
    uneven = arguments.moe_dp_size > 1 and ep > 1 and not filled
    yield uneven, "--moe-dp-size", f"times ep_size {ep} must be tp_size {arguments.tp_size}", "--moe-dp-size 1"
    aiter = subject.on("enable_aiter_allreduce_fusion") and max(arguments.attn_cp_size, arguments.moe_dp_size) > 1
    yield aiter, "--enable-aiter-allreduce-fusion", "does not go with context parallelism", _LEAVE
    option = "--enable-cp-decode-attn-tp"
    replicated = name in architectures.REPLICATED_ATTENTION
    known = ", ".join(sorted(architectures.REPLICATED_ATTENTION))
    yield subject.on("enable_cp_decode_attn_tp") and not replicated, option, f"is for {known}", f"leave {option} out"
    split, option = subject.on("enable_dsa_cache_layer_split"), "--enable-dsa-cache-layer-split"
    transfer = subject.get("disaggregation_transfer_backend", "mooncake") in ("mooncake", "mooncake_tcp")
    yield split and not sparse, option, f"needs sparse attention, which {name} has not", f"leave {option} out"
    for broken, what in (
        (subject.mode != "prefill", "a prefill worker of a PD pair"),
        (not on or strategy != "interleave", "--enable-prefill-cp --cp-strategy interleave"),
        (not transfer, "the mooncake transfer backend"),
        (arguments.pp_size > 1, "--pp-size 1"),
    ):
        yield split and broken, option, f"needs {what}", f"leave {option} out"


def _dwdp(subject: Subject) -> Iterator[Rule]:
    size, arguments, option = subject.get("dwdp_size", 1), subject.arguments, "--dwdp-size"
    if size <= 1:
        return
    tp = arguments.tp_size
    yield size != tp, option, f"must be tp_size {tp}, got {size}", f"{option} {tp}"
    for broken, what in (
        (subject.mode == "decode", "a decode worker"),
        (arguments.enable_eplb, "--enable-eplb"),
        (subject.drafts.algorithm is not None, "speculation"),
        (arguments.pp_size > 1, "pipeline parallelism"),
        (arguments.enable_two_batch_overlap, "two-batch overlap"),
    ):
        yield broken, option, f"does not go with {what}", f"leave {option} out"


def _lm_head(subject: Subject) -> Iterator[Rule]:
    """``--enable-dp-lm-head`` alone: ``compatibility.check_dp_lm_head``."""
    if not subject.on("enable_tp_lm_head_all_to_all"):
        return
    arguments, option = subject.arguments, "--enable-tp-lm-head-all-to-all"
    every = subject.has_attention_dp and arguments.tp_size == arguments.attn_dp_size and arguments.attn_cp_size == 1
    groups = f"--attn-dp-size {arguments.tp_size}"
    yield not every, option, f"needs an attention-DP group for each of {arguments.tp_size} ranks", f"add {groups}"
    yield arguments.enable_dp_lm_head, option, "contradicts --enable-dp-lm-head", _LEAVE


def _shared_experts(subject: Subject) -> Iterator[Rule]:
    size, option = subject.get("shared_experts_tp_size"), "--shared-experts-tp-size"
    if size is None:
        return
    ranks = subject.attn_tp_size
    uneven = size < 1 or ranks % size != 0
    yield uneven, option, f"must divide the {ranks} ranks of attention TP, got {size}", f"leave {option} out"
    kimi = subject.model.architecture == "KimiK3ForConditionalGeneration"
    yield not kimi, option, "is for Kimi-K3 only", f"leave {option} out"
    dispatched = subject.arguments.moe_a2a_backend in ("deepep", "megamoe", "mooncake", "ascend_fuseep", "mori")
    yield not dispatched, option, "needs an all-to-all backend", "add --moe-a2a-backend deepep"


def _sequence(subject: Subject) -> Iterator[Rule]:
    on, name = subject.on("enable_layernorm_sp"), subject.model.architecture
    option, mega = "--enable-layernorm-sp", "--enable-megamoe-for-layernorm-sp"
    spark = name == "MuseSparkForConditionalGeneration"
    with_mega = subject.on("enable_megamoe_for_layernorm_sp")
    yield with_mega and not on, mega, f"needs {option}", f"leave {mega} out"
    if not on:
        return
    yield with_mega and not spark, mega, "is for Muse Spark only", f"leave {mega} out"
    known = spark or name == "Qwen3ForCausalLM"
    yield not known, option, f"does not support {name}: only Qwen3ForCausalLM and Muse Spark", f"leave {option} out"
    drafts = subject.drafts.algorithm
    for broken, what in (
        (subject.arguments.tp_size <= 1, "a single rank"),
        (subject.has_attention_dp, "attention data parallelism"),
        (drafts is not None and not (spark and drafts == "DFLASH"), f"--speculative-algorithm {drafts}"),
        (subject.arguments.pp_size > 1, "pipeline parallelism"),
    ):
        yield broken, option, f"does not go with {what}", f"leave {option} out"
