"""Roles of a worker: PD disaggregation, encoder disaggregation, text only, LoRA, diffusion.

Sources: ``arg_groups/pd_disaggregation_hook.py``, ``arg_groups/model_hook.py``, ``arg_groups/lora_hook.py``,
``arg_groups/dllm_hook.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from autotune_planner.engines.sglang_0_5_23 import architectures
from autotune_planner.engines.sglang_0_5_23.checks.subject import Rule, Subject, refuse

_DIFFUSION = ("Gemma4Renoise", "JointThreshold", "JointThresholdInDel", "LowConfidence")
_LORA_SPECULATION = (None, "NGRAM", "EAGLE", "EAGLE3", "DFLASH", "DSPARK")
_HOST_POOL = "--disaggregation-decode-retraction-backup"
_COMPLETE = "--disaggregation-decode-allocation-policy"


def check(subject: Subject) -> None:
    refuse("pd_disaggregation_hook.handle_pd_disaggregation", *_disaggregation(subject))
    refuse("pd_disaggregation_hook._validate_prefill_complete", *_prefill_complete(subject))
    refuse("kv_cache_hook.handle_cache_compatibility", *_decode_pool(subject))
    refuse("pd_disaggregation_hook.handle_encoder_disaggregation", *_encoder(subject))
    refuse("model_hook.handle_language_model_only", *_text_only(subject))
    refuse("lora_hook.check_lora_server_args", *_lora(subject))
    refuse("lora_hook.check_lora_moe_runner_args", *_lora_runner(subject))
    algorithm = subject.get("dllm_algorithm")
    known = f"one of {', '.join(_DIFFUSION)}"
    unknown = algorithm is not None and algorithm not in _DIFFUSION
    refuse("dllm_hook", (unknown, "--dllm-algorithm", f"the release does not know {algorithm}", known))


def _host_pool(subject: Subject) -> bool:
    early = subject.get("disaggregation_decode_host_receive_threshold", 1.0) < 1
    return bool(early or subject.get("disaggregation_decode_retraction_backup") == "host_pool")


def _disaggregation(subject: Subject) -> Iterator[Rule]:
    transfer = subject.get("disaggregation_transfer_backend", "mooncake")
    threshold = subject.get("disaggregation_decode_host_receive_threshold", 1.0)
    option = "--disaggregation-decode-host-receive-threshold"
    yield not 0 <= threshold <= 1, option, f"must be between 0 and 1, got {threshold}", f"{option} 1.0"
    fixed = subject.on("enable_hisparse") or subject.on("enable_pd_role_switch")
    yield threshold < 1 and fixed, option, "does not go with HiSparse or role switching", f"{option} 1.0"
    backup = subject.get("disaggregation_decode_retraction_backup")
    yield threshold < 1 and backup == "cpu_tensor", option, "needs a pool in host memory", f"{_HOST_POOL} host_pool"
    option = "--disaggregation-transfer-backend"
    fake = transfer == "fake"
    yield subject.mode == "prefill" and fake, option, "fake is for decode workers", f"{option} mooncake"
    option = "--disaggregation-decode-enable-radix-cache"
    cached = subject.mode == "decode" and subject.arguments.disaggregation_decode_enable_radix_cache
    yield cached and subject.on("enable_hisparse"), option, "does not go with --enable-hisparse", "leave one out"
    yield cached and fake, option, "does not go with the fake transfer backend", "another transfer backend"
    algorithm = subject.drafts.algorithm
    with_cache = algorithm in (None, "DSPARK", "EAGLE", "EAGLE3")
    yield cached and not with_cache, option, f"does not go with {algorithm}", "leave one of the two out"
    arguments = subject.arguments
    if subject.mode != "null" and subject.on("enable_pd_role_switch"):
        local = subject.has_attention_dp and subject.on("enable_dp_attention_local_control_broadcast")
        for broken, what in (
            (arguments.ep_size > 1, "expert parallelism"),
            (arguments.moe_a2a_backend != "none", "an all-to-all backend"),
            (arguments.pp_size > 1, "pipeline parallelism"),
            (local, "local control broadcast of attention DP"),
            (arguments.dcp_size > 1, "decode context parallelism"),
            (algorithm is not None, "speculation"),
        ):
            yield broken, "--enable-pd-role-switch", f"does not go with {what}", "leave one of the two out"


def _prefill_complete(subject: Subject) -> Iterator[Rule]:
    if subject.get("disaggregation_decode_allocation_policy", "early") != "prefill_complete":
        return
    arguments = subject.arguments
    contexts = (arguments.pp_size, arguments.attn_cp_size, arguments.dcp_size)
    groups = subject.get("dp_size", 1) if subject.on("enable_dp_attention") else 1  # not --attn-dp-size
    hierarchical = subject.on("enable_hierarchical_cache")
    storage = subject.on("hicache_storage_backend")
    written_back = not storage and subject.get("hicache_write_policy", "write_through") == "write_back"
    cached = arguments.disaggregation_decode_enable_radix_cache or hierarchical
    for broken, what in (
        (subject.mode == "null", "aggregated serving"),
        (
            subject.get("disaggregation_transfer_backend", "mooncake") not in ("mooncake", "mooncake_tcp"),
            "this transfer",
        ),
        (contexts != (1, 1, 1), "pipeline or context parallelism"),
        (arguments.tp_size != groups, "attention tensor parallelism"),
        (subject.on("enable_pdmux") or subject.get("decoupled_spec_role", "null") != "null", "PD multiplexing"),
        (subject.on("enable_pd_role_switch"), "role switching"),
        (subject.on("encoder_only") or subject.on("language_only"), "encoder disaggregation"),
        (subject.on("enable_hisparse"), "HiSparse"),
        (subject.get("disaggregation_decode_host_receive_threshold", 1.0) < 1, "buffers in host memory"),
        (subject.mode == "decode" and cached, "a cache of the decode worker"),
        (subject.mode == "prefill" and hierarchical and not written_back, "this hierarchical cache"),
    ):
        yield broken, _COMPLETE, f"prefill_complete does not support {what}", f"{_COMPLETE} early"


def _decode_pool(subject: Subject) -> Iterator[Rule]:
    pool = _host_pool(subject)
    yield pool and subject.mode != "decode", _HOST_POOL, "host_pool is for PD decode workers", "leave it out"
    yield pool and subject.arguments.dcp_size > 1, _HOST_POOL, "host_pool does not go with --dcp-size", "leave it out"
    preempted = subject.on("enable_priority_scheduling") and not subject.on("disable_priority_preemption")
    option = "--disable-priority-preemption"
    yield pool and preempted, _HOST_POOL, f"host_pool needs {option} with priority scheduling", f"add {option}"
    offloads = subject.on("disaggregation_decode_enable_offload_kvcache")
    option = "--disaggregation-decode-enable-offload-kvcache"
    yield offloads and subject.mode != "decode", option, "is for PD decode workers", "leave it out"
    stored = subject.on("hicache_storage_backend")
    yield offloads and not stored, option, "needs --hicache-storage-backend", "add --hicache-storage-backend file"
    yield offloads and pool, option, "does not go with a host pool for retraction", "leave one of the two out"


def _encoder(subject: Subject) -> Iterator[Rule]:
    encoder, language = subject.on("encoder_only"), subject.arguments.language_only
    cache = "--enable-prefix-mm-cache"
    yield subject.on("enable_prefix_mm_cache") and not encoder, cache, "needs --encoder-only", "leave it out"
    yield encoder and language, "--encoder-only", "contradicts --language-only", "leave one of the two out"
    yield encoder and subject.mode != "null", "--encoder-only", "is no role of a PD pair", "leave one of the two out"
    name = subject.model.architecture
    split = encoder or language
    unknown = split and name not in architectures.SPLIT_ENCODERS
    option = "--encoder-only" if encoder else "--language-only"
    yield unknown, option, f"encoder and language model of {name} cannot be served apart", f"leave {option} out"
    transport, flag = subject.get("mm_feature_transport"), "--mm-feature-transport"
    if not encoder:
        several = subject.arguments.nnodes != 1
        yield transport == "cuda_ipc" and several, flag, "cuda_ipc works on a single node", f"{flag} cpu"
        staged = subject.arguments.pp_size != 1
        yield transport == "cuda_vmm" and staged, flag, "cuda_vmm does not go with pipeline parallelism", f"{flag} cpu"


def _text_only(subject: Subject) -> Iterator[Rule]:
    flag = "--language-model-only"
    if not subject.on("language_model_only"):
        return
    for name in (
        "encoder_only",
        "language_only",
        "enable_prefix_mm_cache",
        "enable_broadcast_mm_inputs_process",
        "mm_enable_dp_encoder",
    ):
        option = "--" + name.replace("_", "-")
        yield subject.on(name), flag, f"contradicts {option}", "leave one of the two out"
    yield subject.mode != "null", flag, "does not work on the workers of a PD pair", "leave it out"
    supported = architectures.TEXT_ONLY_SERVING
    name = subject.model.architecture
    yield name not in supported, flag, f"does not support {name}: only {', '.join(supported)}", f"leave {flag} out"


def _lora(subject: Subject) -> Iterator[Rule]:
    batch = subject.get("max_loras_per_batch", 8)
    yield batch < 1, "--max-loras-per-batch", f"must be positive, got {batch}", "--max-loras-per-batch 8"
    paths = subject.get("lora_paths", ())
    if not (subject.on("enable_lora") or paths):
        return
    algorithm = subject.drafts.algorithm
    lone = algorithm not in _LORA_SPECULATION
    yield lone, "--speculative-algorithm", f"LoRA does not go with {algorithm}", "leave one of the two out"
    speculates = algorithm not in (None, "NGRAM")
    adaptive = subject.on("speculative_adaptive") and speculates
    yield adaptive, "--speculative-adaptive", "does not go with LoRA", "leave it out"
    loaded = subject.get("max_loaded_loras")
    overlap = subject.on("enable_lora_overlap_loading") and (loaded is None or loaded > 2 * batch)
    option = "--enable-lora-overlap-loading"
    yield overlap, option, f"needs --max-loaded-loras of at most {2 * batch}", f"add --max-loaded-loras {2 * batch}"
    modules = subject.get("lora_target_modules", ())
    mixed = "all" in modules and len(set(modules)) > 1
    yield mixed, "--lora-target-modules", "all stands alone", "--lora-target-modules all"
    known = paths or (subject.on("max_lora_rank") and modules)
    needed = "add --max-lora-rank 16 --lora-target-modules all, or --lora-paths NAME=PATH"
    yield not known, "--enable-lora", "needs adapters, or the rank and target modules of those to come", needed
    few = loaded is not None and (loaded < batch or loaded < len(paths))
    rule = f"{loaded} is less than the {batch} adapters of a batch, or than the {len(paths)} given ones"
    yield few, "--max-loaded-loras", rule, f"--max-loaded-loras {max(batch, len(paths))}"
    wait = subject.get("lora_drain_wait_threshold", 0.0)
    option = "--lora-drain-wait-threshold"
    yield wait < 0, option, f"must not be negative, got {wait}", f"{option} 0"


def _lora_runner(subject: Subject) -> Iterator[Rule]:
    draft = str(subject.get("speculative_moe_runner_backend", ""))
    option = "--speculative-moe-runner-backend"
    drafts = subject.drafts.algorithm is not None
    yield drafts and draft.startswith("lora"), option, "draft models have no adapters", f"leave {option} out"
    runner = subject.experts.runner_backend
    if not runner.startswith("lora"):
        return
    option = "--moe-runner-backend"
    enabled = subject.on("enable_lora") or subject.on("lora_paths")
    yield not enabled, option, f"{runner} needs --enable-lora", "add --enable-lora, or --moe-runner-backend auto"
    triton = subject.get("lora_backend", "csgmv") == "triton_v2"
    yield not triton, option, f"{runner} needs --lora-backend triton_v2", "add --lora-backend triton_v2"
    quantization = subject.experts.quantization
    fits = quantization in (None, "fp8") or (quantization, runner) == ("modelopt_fp4", "lora_marlin")
    placed = subject.get("init_expert_location", "trivial") == "trivial" and not subject.on("enable_eplb")
    placed = placed and subject.arguments.ep_num_redundant_experts == 0
    for broken, what in (
        (subject.has_attention_dp, "attention data parallelism"),
        (subject.on("enable_pdmux"), "PD multiplexing"),
        (subject.arguments.enable_two_batch_overlap, "two-batch overlap"),
        (not fits, f"quantization {quantization}"),
        (subject.arguments.moe_a2a_backend != "none", "an all-to-all backend"),
        (subject.on("ep_join_mode"), "elastic expert parallelism"),
        (not placed, "experts that are placed or replicated"),
    ):
        yield broken, option, f"{runner} does not go with {what}", "--moe-runner-backend auto"
