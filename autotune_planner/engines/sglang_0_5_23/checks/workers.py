"""Roles of a worker: PD disaggregation, encoder disaggregation, text only, diffusion.

Sources: ``arg_groups/pd_disaggregation_hook.py``, ``arg_groups/model_hook.py``, ``dllm/config.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from autotune_planner.engines.sglang_0_5_23 import architectures
from autotune_planner.engines.sglang_0_5_23.checks.subject import Rule, Subject, refuse

_DIFFUSION = ("Gemma4Renoise", "JointThreshold", "JointThresholdInDel", "LowConfidence")
_HOST_POOL = "--disaggregation-decode-retraction-backup"
_COMPLETE = "--disaggregation-decode-allocation-policy"


def check(subject: Subject) -> None:
    refuse("pd_disaggregation_hook.handle_pd_disaggregation", *_disaggregation(subject))
    refuse("pd_disaggregation_hook._validate_prefill_complete", *_prefill_complete(subject))
    refuse("kv_cache_hook.handle_cache_compatibility", *_decode_pool(subject))
    refuse("pd_disaggregation_hook.handle_encoder_disaggregation", *_encoder(subject))
    refuse("model_hook.handle_language_model_only", *_text_only(subject))
    refuse("dllm.config.DllmConfig.from_server_args", *_diffusion(subject))


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


def _diffusion(subject: Subject) -> Iterator[Rule]:
    algorithm, option = subject.get("dllm_algorithm"), "--dllm-algorithm"
    if algorithm is None:
        return
    unknown = algorithm not in _DIFFUSION
    yield unknown, option, f"the release does not know {algorithm}", f"one of {', '.join(_DIFFUSION)}"
    name = subject.model.architecture
    yield name not in architectures.DIFFUSION, option, f"{name} is no diffusion language model", f"leave {option} out"
