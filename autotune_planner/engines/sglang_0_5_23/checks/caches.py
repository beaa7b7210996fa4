"""KV caches: types, prefix caches, memory in the host, layouts.

Sources: ``arg_groups/kv_cache_hook.py``, ``arg_groups/hicache_hook.py``, ``arg_groups/hisparse_hook.py``,
``arg_groups/kv_shard_hook.py``, ``arg_groups/memory_hook.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from autotune_planner.engines.sglang_0_5_23.checks.subject import Rule, Subject, refuse

_FP4 = ("nvfp4", "fp4_mx_block16")
_TYPE = "--kv-cache-dtype"
_NO_CACHE = "--prefill-only-disable-kv-cache"
_SHARDING = "--enable-kv-cache-sharding"
_HICACHE = "--enable-hierarchical-cache"
_LMCACHE = "--enable-lmcache"
_UNIFIED = "--enable-unified-memory"
_SPARSE = "--enable-hisparse"
_LEAVE = "leave one of the two out"


def check(subject: Subject) -> None:
    if subject.major is not None:
        refuse("kv_cache_hook.handle_kv4_compatibility", *_types(subject, subject.major))
    refuse("kv_cache_hook.validate_prefill_only_disable_kv_cache_args", *_no_cache(subject))
    refuse("kv_cache_hook.handle_cache_compatibility", *_prefixes(subject))
    refuse("kv_cache_hook.handle_cache_compatibility", *_lmcache(subject))
    refuse("hicache_hook.handle_hicache", *_hierarchical(subject))
    refuse("kv_cache_hook.handle_unified_memory_pool", *_unified(subject))
    refuse("hisparse_hook.validate_hisparse", *_sparse(subject))
    refuse("kv_shard_hook.handle_kv_cache_sharding", *_sharded(subject))
    refuse("memory_hook.handle_offload_compatibility", *_offload(subject))


def _types(subject: Subject, major: int) -> Iterator[Rule]:
    given = subject.arguments.kv_cache_dtype
    auto = f"{_TYPE} auto"
    yield given == "mxfp8" and major < 10, _TYPE, "mxfp8 needs SM100 or newer", auto
    yield given == "nvfp4" and major not in (10, 12), _TYPE, "nvfp4 needs SM100 or SM120", f"{_TYPE} fp4_mx_block16"
    prefill, decode = subject.phases
    if given not in _FP4:
        return
    yield subject.on("enable_unified_memory"), _TYPE, f"{given} does not go with {_UNIFIED}", auto
    if given == "nvfp4" and major == 10 and "trtllm_mha" in (prefill, decode):
        algorithm = subject.drafts.algorithm
        planned = algorithm in (None, "EAGLE", "EAGLE3", "NGRAM")
        yield not planned, "--speculative-algorithm", f"{algorithm} does not go with {_TYPE} nvfp4", auto
        wide = algorithm == "NGRAM" and subject.arguments.speculative_ngram_max_bfs_breadth != 1
        option = "--speculative-ngram-max-bfs-breadth"
        yield wide, option, f"{_TYPE} nvfp4 drafts a chain only", f"{option} 1"
        draft = subject.get("speculative_draft_attention_backend", "trtllm_mha")
        option = "--speculative-draft-attention-backend"
        other = algorithm not in (None, "NGRAM") and draft != "trtllm_mha"
        yield other, option, f"{_TYPE} nvfp4 needs trtllm_mha, got {draft}", f"{option} trtllm_mha"
        yield subject.mode != "null", _TYPE, "nvfp4 cannot be sent between the workers of a PD pair", auto
        kept = subject.on("enable_hierarchical_cache") or subject.on("enable_lmcache")
        yield kept, _TYPE, "nvfp4 cannot be kept in host memory", auto
    if prefill != decode and prefill != "fa4":
        return
    if subject.model.is_mla:
        allowed: tuple[str, ...] = ("flashinfer", "trtllm_mla")
    elif prefill == "fa4":
        allowed = ("triton", "torch_native", "flex_attention")
    else:
        allowed = ("triton", "torch_native", "flex_attention", "trtllm_mha")
    backend = decode if prefill == "fa4" else subject.attention.base
    yield backend not in allowed, _TYPE, f"{given} works with {', '.join(allowed)}, not with {backend}", auto


def _no_cache(subject: Subject) -> Iterator[Rule]:
    if not subject.on("prefill_only_disable_kv_cache"):
        return
    arguments = subject.arguments
    chunk = subject.graphs.default_chunk if arguments.chunked_prefill_size is None else arguments.chunked_prefill_size
    typed = arguments.kv_cache_dtype in (*_FP4, "mxfp8")
    yield not subject.on("is_embedding"), _NO_CACHE, "needs --is-embedding", "leave it out"
    yield typed, _NO_CACHE, f"does not go with {_TYPE} {arguments.kv_cache_dtype}", f"{_TYPE} auto"
    yield chunk != -1, _NO_CACHE, "needs --chunked-prefill-size -1", "add --chunked-prefill-size -1"
    yield not arguments.disable_radix_cache, _NO_CACHE, "needs --disable-radix-cache", "add --disable-radix-cache"
    parallel = arguments.attn_cp_size > 1 or subject.on("enable_prefill_cp")
    yield parallel, _NO_CACHE, "does not go with context parallelism", "leave it out"
    yield subject.on("enable_hisparse"), _NO_CACHE, f"does not go with {_SPARSE}", _LEAVE
    backend = subject.attention.prefill
    yield backend not in ("fa3", "fa4"), _NO_CACHE, f"needs fa3 or fa4, got {backend}", "leave it out"


def _prefixes(subject: Subject) -> Iterator[Rule]:
    if subject.get("radix_eviction_policy") == "tlru":
        policy = subject.get("radix_eviction_policy_config", {})
        threshold, estimate = policy.get("threshold", 0), policy.get("next_prompt_estimate", 0)
        option = "--radix-eviction-policy"
        rule = f"tlru needs a threshold above next_prompt_estimate, got {threshold} and {estimate}"
        hint = """add --radix-eviction-policy-config '{"threshold": 8192}'"""
        yield estimate < 0 or threshold <= estimate, option, rule, hint
    layered = subject.on("enable_hierarchical_cache")
    rule = "needs the radix cache, which is off here"
    yield layered and subject.radix_cache_off, _HICACHE, rule, f"leave {_HICACHE} out"
    ratio, option = subject.get("swa_full_tokens_ratio", 1.0), "--swa-full-tokens-ratio"
    yield not 0 < ratio <= 1, option, f"must be in (0, 1], got {ratio}", f"{option} 0.8"
    tails, option = subject.get("swa_prefix_tails", 0), "--swa-prefix-tails"
    yield tails < 0, option, f"must not be negative, got {tails}", f"{option} 0"
    interval = "--prefill-kv-cache-dequant-dtype"
    dequantized = subject.get("prefill_kv_cache_dequant_dtype", "auto") != "auto"
    other = subject.arguments.kv_cache_dtype != "nvfp4"
    yield dequantized and other, interval, f"applies to {_TYPE} nvfp4 only", "leave it out"


def _lmcache(subject: Subject) -> Iterator[Rule]:
    if not subject.on("enable_lmcache"):
        return
    for broken, what in (
        (subject.on("enable_hierarchical_cache"), _HICACHE),
        (subject.on("enable_unified_cache_external_linker"), "--enable-unified-cache-external-linker"),
        (subject.radix_cache_off, "the radix cache off"),
        (subject.drafts.algorithm is not None, "speculation"),
        (subject.has_attention_dp, "attention data parallelism"),
        (subject.arguments.dcp_size > 1, "--dcp-size above 1"),
        (subject.on("enable_streaming_session"), "--enable-streaming-session"),
        (subject.get("hicache_host_memory_mode") == "buffer_only", "--hicache-host-memory-mode buffer_only"),
        (subject.mode != "null", "the workers of a PD pair"),
    ):
        yield broken, _LMCACHE, f"does not go with {what}", _LEAVE


def _hierarchical(subject: Subject) -> Iterator[Rule]:
    fraction, option = subject.get("hicache_host_memory_fraction", 0.8), "--hicache-host-memory-fraction"
    yield not 0 < fraction <= 1, option, f"must be in (0, 1], got {fraction}", f"{option} 0.8"
    linked, backend = subject.on("enable_unified_cache_external_linker"), "unified_cache_external_linker_backend"
    config, option = subject.get("unified_cache_external_linker_config", {}), "--unified-cache-external-linker-config"
    yield not isinstance(config, dict), option, "takes a JSON object", f"{option} '{{}}'"
    deduplicated = subject.on("enable_linker_mla_dedup")
    mooncake = linked and subject.get(backend, "mooncake") == "mooncake"
    option = "--enable-linker-mla-dedup"
    yield deduplicated and not mooncake, option, "needs the Mooncake linker", "leave it out"
    option = "--enable-unified-cache-external-linker"
    for broken, what in (
        (subject.radix_cache_off or subject.on("radix_cache_backend"), "another radix cache, or none"),
        (subject.on("enable_hierarchical_cache"), _HICACHE),
        (subject.on("hicache_storage_backend"), "--hicache-storage-backend"),
    ):
        yield linked and broken, option, f"does not go with {what}", _LEAVE
    layered = subject.on("enable_hierarchical_cache") or subject.on("disaggregation_decode_enable_offload_kvcache")
    retracts = subject.get("disaggregation_decode_retraction_backup") in (None, "host_pool")
    used = layered or (subject.mode == "decode" and retracts)
    if used and not linked and subject.get("hicache_host_memory_mode", "cache") == "buffer_only":
        option = "--hicache-host-memory-mode"
        stored = subject.on("hicache_storage_backend")
        yield not stored, option, "buffer_only needs --hicache-storage-backend", f"{option} cache"
        yield subject.mode == "decode", option, "buffer_only does not work on decode workers", f"{option} cache"
    if subject.on("enable_hierarchical_cache") and subject.arguments.dcp_size > 1:
        narrow = subject.model.is_mla and subject.drafts.algorithm in (None, "DSPARK")
        yield not narrow, _HICACHE, "with --dcp-size above 1 needs MLA, and no draft but DSPARK", _LEAVE
    option = "--enable-int8-mamba-checkpoint"
    if subject.on("enable_int8_mamba_checkpoint"):
        kept = any(map(subject.on, ("enable_hierarchical_cache", "enable_lmcache", "radix_cache_backend")))
        yield kept, option, "goes with the built-in cache on the GPU only", "leave it out"


def _unified(subject: Subject) -> Iterator[Rule]:
    """Models that slide or keep a recurrent state have more rules, which plans with this flag are warned of."""
    arguments, algorithm = subject.arguments, subject.drafts.algorithm
    on, layout = subject.on("enable_unified_memory"), "--enable-page-major-kv-layout"
    alone = subject.on("enable_page_major_kv_layout") and not on
    yield alone, layout, f"needs {_UNIFIED} in this release", f"add {_UNIFIED}, or leave it out"
    if not on:
        return
    if subject.model.is_mla:
        allowed = {"triton", "fa3", "trtllm_mla", "flashinfer", "cutedsl_mla", "flashmla"}
    else:
        allowed = {"triton", "fa3", "fa4", "flashinfer", "trtllm_mha"}
    backends = {backend for backend in subject.phases if backend is not None}
    others = ", ".join(sorted(backends - allowed))
    yield others, _UNIFIED, f"does not go with {others} attention", "another --attention-backend"
    transfer = subject.get("disaggregation_transfer_backend", "mooncake") in ("mooncake", "mooncake_tcp")
    for broken, what in (
        (subject.mode != "null" and not transfer, "this transfer backend"),
        (subject.mode != "null" and arguments.pp_size > 1, "pipeline parallelism on a PD worker"),
        (subject.mode != "null" and algorithm is not None, "speculation on a PD worker"),
        (subject.mode != "null" and subject.on("enable_hisparse"), _SPARSE),
        (algorithm not in (None, "DSPARK", "EAGLE", "EAGLE3", "DFLASH"), f"--speculative-algorithm {algorithm}"),
        (algorithm is not None and subject.drafts.eagle_topk not in (None, 1), "more than one branch of drafts"),
        (arguments.enable_two_batch_overlap, "two-batch overlap"),
        (subject.on("enable_lmcache"), _LMCACHE),
        (subject.on("enable_unified_cache_external_linker"), "--enable-unified-cache-external-linker"),
        (arguments.dcp_size > 1 and not subject.model.is_mla, "--dcp-size above 1 without MLA"),
    ):
        yield broken, _UNIFIED, f"does not go with {what}", _LEAVE


def _sparse(subject: Subject) -> Iterator[Rule]:
    if not subject.on("enable_hisparse"):
        return
    name = subject.model.architecture
    sparse = subject.model.sparse_page_size is not None or name.startswith(("DeepseekV4", "MiniMaxM3Sparse"))
    yield not sparse, _SPARSE, f"needs sparse attention, which {name} has not", f"leave {_SPARSE} out"
    yield not subject.radix_cache_off, _SPARSE, "needs --disable-radix-cache", "add --disable-radix-cache"
    yield subject.arguments.enable_mixed_chunk, _SPARSE, "does not go with --enable-mixed-chunk", _LEAVE
    drafts = subject.drafts.algorithm is not None
    branches = drafts and (subject.drafts.eagle_topk or 1) != 1
    yield branches, _SPARSE, "drafts a chain only", "--speculative-eagle-topk 1"
    yield drafts and subject.on("speculative_adaptive"), _SPARSE, "does not go with --speculative-adaptive", _LEAVE


def _sharded(subject: Subject) -> Iterator[Rule]:
    if not subject.arguments.enable_kv_cache_sharding:
        return
    arguments, prefill = subject.arguments, subject.attention.prefill
    yield subject.drafts.algorithm is not None, _SHARDING, "does not go with speculation", _LEAVE
    for name in (
        "dllm_algorithm",
        "radix_cache_backend",
        "enable_unified_cache_external_linker",
        "enable_streaming_session",
        "enable_session_radix_cache",
        "enable_flexkv",
        "enable_unified_memory",
        "enable_lmcache",
        "enable_hisparse",
        "enable_two_batch_overlap",
    ):
        yield subject.on(name), _SHARDING, f"does not go with --{name.replace('_', '-')}", _LEAVE
    yield arguments.dcp_size > 1, _SHARDING, "does not go with --dcp-size", _LEAVE
    dynamic = arguments.enable_dynamic_chunking and arguments.pp_size > 1
    yield dynamic, _SHARDING, "does not go with chunks that grow", "leave --enable-dynamic-chunking out"
    backend = prefill in ("fa3", "dsa") or (prefill == "trtllm_mla" and subject.model.is_mla)
    yield not backend, _SHARDING, f"does not work with {prefill} attention", "--prefill-attention-backend fa3"
    split = subject.on("enable_prefill_cp") and arguments.attn_cp_size > 1
    plain = subject.model.is_mla and not subject.has_attention_dp and arguments.tp_size > 1 and prefill != "dsa"
    yield not split and not plain, _SHARDING, "needs ranks among which a page is split", "add --enable-prefill-cp"
    yield subject.attention.page_size <= 1, _SHARDING, "needs real pages", "add --page-size 64"
    yield subject.chunk <= 0, _SHARDING, "needs chunked prefill", "add --chunked-prefill-size 8192"


def _offload(subject: Subject) -> Iterator[Rule]:
    offloaded = subject.get("cpu_offload_gb", 0) > 0 or subject.get("offload_group_size", -1) > 0
    option = "--ple-offload-embedding"
    yield subject.on("ple_offload_embedding") and offloaded, option, "does not go with layers offloaded too", _LEAVE
    filed = subject.get("ple_offload_backend") == "file" and subject.given.get("ple_offload_embedding") is False
    yield filed, "--ple-offload-backend", f"file needs {option}", f"add {option}"
