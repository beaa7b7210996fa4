"""Expert parallelism: dispatch, load balancing, elastic groups, and the all-to-all backends' own limits.

Sources: ``arg_groups/moe_hook.py``, ``arg_groups/mega_moe_hook.py``, ``arg_groups/parallel_hook.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from autotune_planner.engines.sglang_0_5_23 import architectures
from autotune_planner.engines.sglang_0_5_23.checks.subject import Rule, Subject, refuse

MORI_TOKENS = "SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
PPLX_TOKENS = "SGLANG_PPLX_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
DEEPEP_V2_TOKENS = "SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
MEGA_TOKENS = "SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK"
_W4A16 = "SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16"
_A2A = "--moe-a2a-backend"
_RUNNER = "--moe-runner-backend"
_NONE = f"{_A2A} none"


def check(subject: Subject) -> None:
    refuse("moe_hook.handle_moe_kernel_config", *_runner(subject))
    backend = subject.arguments.moe_a2a_backend
    rules = {
        "megamoe": (_mega, "mega_moe_hook"),
        "flashinfer_megamoe": (_flashinfer_mega, "moe_hook.validate_flashinfer_megamoe_model"),
        "deepep": (_deepep, "moe_hook.handle_a2a_moe"),
        "deepep_v2": (_deepep_v2, "moe_hook.validate_deepep_v2_dispatch_token_budget"),
        "flashinfer": (_flashinfer, "moe_hook.handle_flashinfer_a2a_dispatch_type"),
        "mori": (_mori, "moe_hook.handle_a2a_moe"),
        "pplx": (_pplx, "moe_hook.handle_a2a_moe"),
    }
    if backend in rules:
        own, source = rules[backend]
        refuse(source, *own(subject))
    refuse("moe_hook.handle_a2a_moe", *_dispatch_type(subject, backend))
    refuse("parallel_hook.handle_eplb_and_dispatch", *_balancing(subject))
    refuse("parallel_hook.handle_elastic_ep", *_elastic(subject))
    draft = subject.get(
        "speculative_moe_a2a_backend", backend if subject.drafts.algorithm not in (None, "NGRAM") else None
    )
    option = "--speculative-moe-a2a-backend"
    source = "moe_hook.validate_deepep_v2_speculative_draft"
    refuse(source, (draft == "deepep_v2", option, "draft models do not work with deepep_v2", f"{option} none"))


def _runner(subject: Subject) -> Iterator[Rule]:
    runner, quantization = subject.experts.runner_backend, subject.experts.quantization
    split = runner == "cutlass" and quantization in ("fp8", "mxfp8") and subject.arguments.ep_size != 1
    yield split, "--ep-size", f"cutlass with {quantization} supports 1 only", f"--ep-size 1, or {_RUNNER} auto"
    backend = subject.arguments.moe_a2a_backend
    cutedsl = runner == "flashinfer_cutedsl" and backend not in ("none", "deepep", "flashinfer")
    yield cutedsl, _A2A, f"{backend} does not work with {_RUNNER} flashinfer_cutedsl", _NONE


def _deepep(subject: Subject) -> Iterator[Rule]:
    normal = subject.arguments.deepep_mode == "normal" and subject.experts.runner_backend == "flashinfer_cutedsl"
    yield normal, "--deepep-mode", "flashinfer_cutedsl has no normal dispatch", "--deepep-mode low_latency"
    online = subject.experts.runner_backend == "flashinfer_cutedsl" and subject.experts.quantization == "nvfp4_online"
    yield online, _A2A, "deepep does not work with nvfp4_online in flashinfer_cutedsl", _NONE


def _mega(subject: Subject) -> Iterator[Rule]:
    arguments = subject.arguments
    overlaps = arguments.enable_two_batch_overlap or subject.on("enable_single_batch_overlap")
    yield overlaps, _A2A, "megamoe does not go with batch overlap", "leave the overlap out"
    yield subject.major not in (9, 10, None), _A2A, "megamoe needs SM90 or SM100", _NONE
    fused = subject.experts.quantization == "modelopt_fp4" or "FP4" in (subject.model.quant_algo or "")
    if subject.on("encoder_only") or not (fused or subject.model.architecture in architectures.MEGA_MOE_ONLY):
        return
    capacity = subject.environment.number(MEGA_TOKENS)
    capacity = 8192 if capacity is None else capacity
    if subject.mode != "prefill":
        requests = subject.graphs.decode.max_bs or 0
        if subject.drafts.max_running_requests is not None:
            ranks = arguments.tp_size // arguments.attn_dp_size
            requests = min(
                requests, -(-(subject.drafts.max_running_requests // arguments.attn_dp_size) // ranks) * ranks
            )
        tokens = requests * ((subject.drafts.num_draft_tokens or 1) if subject.drafts.algorithm else 1)
        yield (
            tokens > capacity,
            MEGA_TOKENS,
            f"{capacity} tokens per rank, {tokens} are needed",
            f"{MEGA_TOKENS}={tokens}",
        )
    if subject.mode == "decode" or (arguments.pp_size > 1 and arguments.enable_dynamic_chunking):
        return
    chunk = subject.chunk
    yield chunk <= 0, "--chunked-prefill-size", "megamoe needs chunked prefill", "--chunked-prefill-size 8192"
    ranks = subject.attn_tp_size
    if subject.on("enable_prefill_cp"):
        chunk, ranks = -(-chunk // arguments.attn_cp_size), 1
    elif subject.has_attention_dp:
        chunk //= arguments.attn_dp_size  # a second time, as the release does
    yield chunk <= 0, "--chunked-prefill-size", "leaves a rank of megamoe no tokens", "--chunked-prefill-size 8192"
    tokens = -(-chunk // max(ranks, 1)) * max(ranks, 1)
    hint = f"set it to {tokens}, or lower --chunked-prefill-size"
    yield tokens > capacity, MEGA_TOKENS, f"{capacity} tokens per rank, {tokens} are needed", hint


def _flashinfer_mega(subject: Subject) -> Iterator[Rule]:
    quantization, runner = subject.experts.quantization, subject.experts.runner_backend
    name = subject.model.architecture
    yield name not in architectures.FLASHINFER_MEGA_MOE, _A2A, f"flashinfer_megamoe does not support {name}", _NONE
    online = quantization == "nvfp4_online" and subject.environment.flag(_W4A16)
    fits = quantization in ("mxfp8", "modelopt_fp4") or online
    yield not fits, _A2A, f"flashinfer_megamoe needs MXFP8 or NVFP4 experts, got {quantization or 'bfloat16'}", _NONE
    tp = subject.arguments.tp_size
    every = subject.has_attention_dp and subject.arguments.attn_dp_size == tp
    yield not every, _A2A, f"flashinfer_megamoe needs {tp} attention-DP groups", f"add --attn-dp-size {tp}"
    rule = f"flashinfer_megamoe has a runner of its own, not {runner}"
    yield runner != "flashinfer_megamoe", _RUNNER, rule, f"{_RUNNER} auto"
    yield subject.major not in (10, None), _A2A, "flashinfer_megamoe needs SM100", _NONE


def _deepep_v2(subject: Subject) -> Iterator[Rule]:
    name, arguments = subject.model.architecture, subject.arguments
    yield name not in architectures.DEEPEP_V2, _A2A, f"deepep_v2 does not support {name}", f"{_A2A} deepep"
    runner = subject.experts.runner_backend
    yield runner != "deep_gemm", _RUNNER, f"deepep_v2 works with deep_gemm, not with {runner}", f"{_RUNNER} auto"
    overlaps = arguments.enable_two_batch_overlap or subject.on("enable_single_batch_overlap")
    yield overlaps, _A2A, "deepep_v2 does not go with batch overlap", "leave the overlap out"
    fused = subject.on("enforce_shared_experts_fusion") or subject.on("enable_waterfill")
    option = "--enforce-shared-experts-fusion"
    yield fused, option, "does not go with deepep_v2", f"leave {option} out"
    option = "--deepep-v2-mode"
    direct = subject.get("deepep_v2_mode", "direct") == "direct" and arguments.nnodes > 1
    yield direct, option, "direct works within a node", f"{option} hybrid"
    capacity = subject.environment.number(DEEPEP_V2_TOKENS)
    capacity = 128 if capacity is None else capacity
    tokens = 0
    if subject.mode != "decode":
        ranks = max(1, arguments.tp_size // arguments.attn_dp_size)
        tokens = -(-(subject.buffer_tokens or arguments.max_prefill_tokens) // ranks)
    requests, each = subject.decode_graph()
    tokens = max(tokens, requests * each)
    yield tokens > capacity, DEEPEP_V2_TOKENS, f"{capacity} tokens per rank, {tokens} are needed", f"set it to {tokens}"


def _flashinfer(subject: Subject) -> Iterator[Rule]:
    """Its groups, runners and budget: ``moe``."""
    kind = subject.get("flashinfer_a2a_dispatch_type")
    if kind is None:
        return
    option, quantization = "--flashinfer-a2a-dispatch-type", subject.experts.quantization
    variable = "SGLANG_MOE_NVFP4_DISPATCH"
    yield subject.environment.get(variable) is not None, option, f"contradicts {variable}", f"unset {variable}"
    mxfp8 = kind == "mxfp8" or (kind == "auto" and quantization == "mxfp8")
    yield mxfp8 and quantization != "mxfp8", option, "mxfp8 needs --quantization mxfp8", f"{option} auto"
    routed = subject.experts.runner_backend == "flashinfer_trtllm_routed"
    yield mxfp8 and not routed, option, "mxfp8 needs the flashinfer_trtllm_routed runner", f"{option} bf16"
    unfit = kind == "nvfp4" and quantization != "modelopt_fp4"
    yield unfit, option, "nvfp4 needs a checkpoint in NVFP4", f"{option} auto"


def _mori(subject: Subject) -> Iterator[Rule]:
    if subject.chunk > 0 and subject.mode != "decode":
        limit = subject.environment.number(MORI_TOKENS)
        limit = 4096 if limit is None else limit
        rule = f"mori dispatches {limit} tokens per rank, the chunk has {subject.chunk}"
        yield subject.chunk > limit, MORI_TOKENS, rule, f"set it to {subject.chunk}, or lower --chunked-prefill-size"


def _pplx(subject: Subject) -> Iterator[Rule]:
    normal = subject.arguments.deepep_mode == "normal"
    yield normal, "--deepep-mode", "pplx has the low-latency mode only", "--deepep-mode low_latency"
    yield not subject.has_attention_dp, _A2A, "pplx needs attention data parallelism", "add --attn-dp-size 2"
    runner = subject.experts.runner_backend
    yield runner != "deep_gemm", _RUNNER, f"pplx works with deep_gemm, not with {runner}", f"{_RUNNER} auto"
    if subject.chunk > 0 and subject.mode != "decode":
        limit = subject.environment.number(PPLX_TOKENS)
        limit = 128 if limit is None else limit
        tokens = max(subject.chunk, subject.arguments.cuda_graph_max_bs_decode or 0)
        yield tokens > limit, PPLX_TOKENS, f"{limit} tokens per rank, {tokens} are needed", f"set it to {tokens}"


def _dispatch_type(subject: Subject, backend: str) -> Iterator[Rule]:
    option = "--flashinfer-a2a-dispatch-type"
    given = subject.get("flashinfer_a2a_dispatch_type") not in (None, "auto")
    yield given and backend != "flashinfer", option, f"needs {_A2A} flashinfer", f"leave {option} out"


def _balancing(subject: Subject) -> Iterator[Rule]:
    algorithm = subject.get("ep_dispatch_algorithm")
    local = algorithm in ("static", "lp") and subject.arguments.moe_a2a_backend == "none"
    option = "--ep-dispatch-algorithm"
    yield local, option, f"{algorithm} needs an all-to-all backend", f"{option} dynamic"
    single = subject.on("enable_eplb") and subject.experts.ep_size <= 1 and subject.get("ep_join_mode") != "scale"
    hint = f"add --ep-size {max(subject.arguments.tp_size, 2)}"
    yield single, "--enable-eplb", "needs expert parallelism, and ep_size is 1", hint


def _elastic(subject: Subject) -> Iterator[Rule]:
    """Groups that grow at run time (``--max-ep-size`` above tp_size) have more rules, none of which a plan knows."""
    backend, join = subject.get("elastic_ep_backend"), subject.get("ep_join_mode")
    backend = None if backend == "none" else backend
    offset, most = subject.get("ep_join_rank_offset", 0), subject.get("max_ep_size")
    needed, hint = "needs --elastic-ep-backend", "add --elastic-ep-backend mooncake, or leave it out"
    if backend is not None:
        balanced = subject.get("eplb_algorithm", "auto")
        known = balanced in ("auto", "elasticity_aware", "elasticity_aware_hierarchical")
        option = "--eplb-algorithm"
        wrong = subject.on("enable_eplb") and not known
        yield wrong, option, f"elastic expert parallelism does not work with {balanced}", f"{option} auto"
        staged = subject.arguments.pp_size != 1
        yield staged, "--elastic-ep-backend", "does not go with pipeline parallelism", "--pp-size 1"
    option = "--elastic-ep-join-mode"
    yield join is not None and backend is None, option, needed, hint
    second = join == "scale" and subject.get("node_rank", 0) != 1
    yield second, option, "scale needs --node-rank 1", "add --node-rank 1"
    option = "--elastic-ep-join-rank-offset"
    yield join == "scale" and offset <= 0, option, "must be the current expert-parallel size", f"{option} 8"
    yield offset != 0 and join != "scale", option, "is for --elastic-ep-join-mode scale", "leave it out"
    yield most is not None and backend is None, "--max-ep-size", needed, hint
    yield most is not None and most <= 0, "--max-ep-size", f"must be positive, got {most}", "leave it out"
    grows = backend is not None and most is not None and most > subject.arguments.tp_size
    initial = subject.get("elastic_ep_initial_size") is not None and not grows
    option = "--elastic-ep-initial-size"
    yield initial, option, "needs --elastic-ep-backend, and --max-ep-size above tp_size", "leave it out"
