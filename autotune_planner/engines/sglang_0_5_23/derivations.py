"""How every number came about, for ``--explain``: chains from a flag or a default over the rules to a value."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_planner.deployment.model import Gpu
from autotune_planner.engines.resolved import Arguments, Derivation, PassDecision, Runtime
from autotune_planner.engines.sglang_0_5_23 import memory
from autotune_planner.engines.sglang_0_5_23.arguments import ServerArguments
from autotune_planner.engines.sglang_0_5_23.autotune import ExtendGate
from autotune_planner.engines.sglang_0_5_23.cuda_graph import Phase
from autotune_planner.engines.sglang_0_5_23.graph_settings import GraphSettings
from autotune_planner.engines.sglang_0_5_23.model import ModelFacts
from autotune_planner.values import dataclass

Step = tuple[str, str]
Chain = list[Step]

_SHOWN = 4  # elements of a list that a chain writes out at each end


@dataclass(frozen=True)
class Origin:
    """What the chains start from. ``given`` are the flags as typed, ``arguments`` after the attention-DP alias."""

    given: ServerArguments
    arguments: ServerArguments
    model: ModelFacts
    gpu: Gpu
    checkpoint: str | None
    graphs: GraphSettings
    token_capacity: int
    capacity_given: bool
    dispatch_override: int | None


def derivations(
    origin: Origin,
    resolved: Arguments,
    runtime: Runtime,
    gate: ExtendGate,
    passes: Sequence[PassDecision],
    tiles: tuple[Derivation, ...] = (),
) -> tuple[Derivation, ...]:
    """One derivation for each number of the plan, in the order of its JSON. Flags come as typed, defaults by name.

    ``tiles`` are those of the tiles; an AMD GPU is judged for them and its prefill sizes only.
    """
    if origin.gpu.vendor == "amd":
        return (*_prefill(origin, resolved), *tiles)
    return (
        *_prefill(origin, resolved),
        *_parallel(origin, resolved),
        *_speculative(origin, resolved),
        *_backends(origin, resolved),
        *_memory(origin, resolved),
        *_graphs(origin, resolved),
        *_collectives(origin, resolved, runtime),
        *_decode(origin, resolved, runtime),
        *_extend(origin, resolved, runtime, gate),
        *_moe(resolved, runtime, passes),
        *tiles,
    )


def _prefill(origin: Origin, resolved: Arguments) -> list[Derivation]:
    chunk = _chunk(origin, resolved)
    limit = _given(origin, "max_prefill_tokens")
    buffer = [*chunk, (str(resolved.chunked_prefill_size), ""), ("max_prefill_buffer_tokens", "runtime_context")]
    if origin.given.enable_dynamic_chunking and resolved.pp_size > 1 and resolved.chunked_prefill_size > 0:
        largest = (
            f"dynamic chunking: the larger of 1.25 x the chunk and max_prefill_tokens {resolved.max_prefill_tokens}"
        )
        buffer.append((largest, "runtime_context.max_prefill_buffer_tokens"))
    if resolved.chunked_prefill_size <= 0:
        buffer.append(("chunked prefill is off", ""))
    ceiling = [*buffer]
    if resolved.max_prefill_buffer_tokens == 0:
        ceiling += [*limit, ("stands in", "flashinfer_autotune.maybe_flashinfer_autotune_extend")]
    return [
        _of("resolved.chunked_prefill_size", chunk, resolved.chunked_prefill_size),
        _of("resolved.max_prefill_tokens", limit, resolved.max_prefill_tokens),
        _of("resolved.max_prefill_buffer_tokens", buffer, resolved.max_prefill_buffer_tokens),
        _of("resolved.autotune_extend_ceiling", ceiling, resolved.autotune_extend_ceiling, "EXTEND budget"),
    ]


def _chunk(origin: Origin, resolved: Arguments) -> Chain:
    if origin.given.chunked_prefill_size is None:
        chain = [_by_memory(origin, str(origin.graphs.default_chunk))]
    else:
        chain = _given(origin, "chunked_prefill_size")
    if origin.given.enable_mis:
        chain.append(("off for multi-item scoring", "attention_hook.handle_multi_item_scoring"))
    if resolved.attn_dp_size > 1:
        chain.append((f"/ attn_dp {resolved.attn_dp_size}", "parallel_hook.handle_data_parallelism"))
    return chain


def _parallel(origin: Origin, resolved: Arguments) -> list[Derivation]:
    arguments = origin.arguments
    tp = _given(origin, "tp_size")
    attn_dp = _attention_dp(origin)
    dp = attn_dp if origin.given.dp_size != resolved.dp_size else _given(origin, "dp_size")
    attn_tp = [(f"tp_size {resolved.tp_size}", ""), (f"/ attn_dp {resolved.attn_dp_size}", "parallel_state")]
    if arguments.attn_cp_size > 1:
        attn_tp.append((f"/ attn_cp {arguments.attn_cp_size}", "parallel_state"))
    ep = _given(origin, "ep_size")
    if resolved.ep_size != origin.given.ep_size:
        ep.append((f"--moe-a2a-backend {resolved.moe_a2a_backend} spans all ranks", "moe_hook.handle_a2a_moe"))
    moe_tp = [(f"tp_size {resolved.tp_size}", ""), (f"/ moe_ep {resolved.moe_ep_size}", "parallel_state")]
    replicas = [(f"dp_size {resolved.dp_size}", ""), (f"x attn_dp {resolved.attn_dp_size}", "parallel_state")]
    return [
        _of("resolved.tp_size", tp, resolved.tp_size),
        _of("resolved.dp_size", dp, resolved.dp_size),
        _of("resolved.attn_dp_size", attn_dp, resolved.attn_dp_size),
        _of("resolved.attn_tp_size", attn_tp, resolved.attn_tp_size),
        _of("resolved.ep_size", ep, resolved.ep_size),
        _of("resolved.moe_ep_size", ep, resolved.moe_ep_size),
        _of("resolved.moe_tp_size", moe_tp, resolved.moe_tp_size),
        _of("resolved.moe_dense_tp_size", _given(origin, "moe_dense_tp_size"), resolved.moe_dense_tp_size),
        _of("resolved.pp_size", _given(origin, "pp_size"), resolved.pp_size),
        _of("resolved.num_dp_ranks", replicas, resolved.num_dp_ranks),
    ]


def _attention_dp(origin: Origin) -> Chain:
    given = origin.given
    if given.enable_dp_attention and given.attn_dp_size == 1:
        alias = ("all replicas are attention-DP groups", "parallel_hook.handle_deprecated_dp_attention")
        return [*_given(origin, "dp_size"), ("--enable-dp-attention", "flag"), alias]
    return _given(origin, "attn_dp_size")


def _speculative(origin: Origin, resolved: Arguments) -> list[Derivation]:
    algorithm = resolved.speculative_algorithm
    own = {"NGRAM": "_handle_ngram", "DFLASH": "_handle_dflash", "DSPARK": "_handle_dspark"}
    source = f"speculative_hook.{own.get(algorithm or '', '_handle_eagle_family')}"
    given = origin.given
    chosen = [(f"chosen for {algorithm} and {origin.model.architecture}", source)]

    def value(name: str, resolved_value: int | None) -> Chain:
        typed = getattr(given, name)
        if typed is not None and typed == resolved_value:
            return _given(origin, name)
        if algorithm is None:
            return [("no speculation", "default")]
        return [*(_given(origin, name) if typed is not None else ()), *chosen]

    steps, topk = resolved.speculative_num_steps, resolved.speculative_eagle_topk
    drafted = value("speculative_num_draft_tokens", resolved.speculative_num_draft_tokens)
    if algorithm in ("EAGLE", "EAGLE3", "STANDALONE") and topk == 1:
        drafted = [(f"{steps} steps + 1, since top-1 drafts a chain", source)]
    return [
        _of("resolved.speculative_num_steps", value("speculative_num_steps", steps), steps),
        _of("resolved.speculative_eagle_topk", value("speculative_eagle_topk", topk), topk),
        _of("resolved.speculative_num_draft_tokens", drafted, resolved.speculative_num_draft_tokens),
    ]


def _backends(origin: Origin, resolved: Arguments) -> list[Derivation]:
    model, gpu = origin.model, origin.gpu
    on = f"{_architecture(gpu)}, {model.architecture}{', MLA' if model.is_mla else ''}"
    attention = "model_override_base.get_default_attn_backend"

    def chosen(name: str, value: str | int | None, source: str, why: str) -> Chain:
        typed = getattr(origin.given, name)
        if typed == value and typed not in (None, "auto"):
            return _given(origin, name)
        start = [] if typed in (None, "auto") else _given(origin, name)
        return [*start, (why, source)]

    def phase(name: str, value: str | None) -> Chain:
        if value == resolved.attention_backend and getattr(origin.given, name) is None:
            return [(f"attention_backend {value}", "")]
        return chosen(name, value, "model_overrides", f"for {on}")

    base = chosen("attention_backend", resolved.attention_backend, attention, f"default for {on}")
    page_rule = "overrides._mla_backend_page_constraints"
    page = chosen("page_size", resolved.page_size, page_rule, f"a page of {resolved.decode_attn_backend}")
    if origin.given.page_size is None and resolved.page_size == 1:
        page = [("page_size 1", "default")]
    quantized = origin.checkpoint or "not quantized"
    runner = chosen(
        "moe_runner_backend", resolved.moe_runner_backend, "model_overrides", f"for {on}, checkpoint {quantized}"
    )
    if resolved.moe_runner_backend == origin.given.moe_runner_backend == "auto":
        runner = [("moe_runner_backend auto", "default")]
    quantization = chosen("quantization", resolved.quantization, "model_overrides", f"for {on}, checkpoint {quantized}")
    if resolved.quantization is None:
        quantization = [(f"no argument; the checkpoint is {quantized}", "default")]
    return [
        _of("resolved.moe_runner_backend", runner, resolved.moe_runner_backend),
        _of("resolved.moe_a2a_backend", _a2a(origin, resolved), resolved.moe_a2a_backend),
        _of("resolved.attention_backend", base, resolved.attention_backend),
        _of(
            "resolved.prefill_attn_backend",
            phase("prefill_attention_backend", resolved.prefill_attn_backend),
            resolved.prefill_attn_backend,
        ),
        _of(
            "resolved.decode_attn_backend",
            phase("decode_attention_backend", resolved.decode_attn_backend),
            resolved.decode_attn_backend,
        ),
        _of("resolved.page_size", page, resolved.page_size),
        _of("resolved.quantization", quantization, resolved.quantization),
    ]


def _a2a(origin: Origin, resolved: Arguments) -> Chain:
    chain = _given(origin, "moe_a2a_backend")
    if origin.given.moe_runner_backend == "megamoe":
        chain.append(("--moe-runner-backend megamoe", "mega_moe_hook.handle_moe_runner_backend_alias"))
    elif resolved.moe_a2a_backend == "deepep" != origin.given.moe_a2a_backend:
        chain.append(("--enable-waterfill needs DeepEP", "overrides._a2a_backend_overrides"))
    return chain


def _memory(origin: Origin, resolved: Arguments) -> list[Derivation]:
    source = "memory_hook.handle_gpu_memory_settings"
    use, total = origin.graphs.memory_use, origin.gpu.memory_mib
    if use is None:
        fraction = _given(origin, "mem_fraction_static")
    elif total is None:
        fraction = [("0.95, since the GPU's memory is unknown", source)]
    else:
        terms = memory.reserve_terms(use)
        reserve = sum(size for _, size in terms)
        listed = " + ".join(f"{size:g} {what}" for what, size in terms)
        fraction = [
            (f"{total} MiB of GPU memory", "nvidia-smi"),
            (f"- {reserve:g} MiB reserve = {listed}", source),
            (f"/ {total}, three decimals", source),
        ]
    factor = origin.graphs.vision_factor
    if use is not None and factor is not None:
        fraction.append((f"x {factor:.4f} for the vision tower", "memory_hook.adjust_mem_fraction_for_vlm"))
    capacity = [
        (f"max_prefill_buffer_tokens {resolved.max_prefill_buffer_tokens}", ""),
        ("at least 4096", "overrides.flashinfer_a2a_max_dispatch_tokens_per_rank"),
    ]
    if origin.dispatch_override is not None:
        capacity = [(f"SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK={origin.dispatch_override}", "env")]
    return [
        _of("resolved.mem_fraction_static", fraction, resolved.mem_fraction_static),
        _of("resolved.max_running_requests", _running(origin, resolved), resolved.max_running_requests),
        _of(
            "resolved.flashinfer_a2a_max_dispatch_tokens_per_rank",
            capacity,
            resolved.flashinfer_a2a_max_dispatch_tokens_per_rank,
        ),
    ]


def _running(origin: Origin, resolved: Arguments) -> Chain:
    if origin.given.max_running_requests is not None:
        return _given(origin, "max_running_requests")
    if resolved.max_running_requests is not None:
        return [(f"{resolved.max_running_requests} for the whole server under speculation", "speculative_hook")]
    return [("not given", "default")]


def _graphs(origin: Origin, resolved: Arguments) -> list[Derivation]:
    decode, prefill = resolved.cuda_graph_decode, resolved.cuda_graph_prefill
    by_decode = _graph_limit(origin, "decode", origin.graphs.decode, decode.max_bs)
    by_prefill = _graph_limit(origin, "prefill", origin.graphs.prefill, prefill.max_bs)

    def sizes(phase: str, locked: bool, max_bs: int) -> Chain:
        if locked:
            return [(f"sizes given for {phase}", "flag")]
        return [(f"grid up to {max_bs}", f"cuda_graph_config.generate_{phase}_cuda_graph_batch_sizes")]

    return [
        _of("resolved.cuda_graph_decode.max_bs", by_decode, decode.max_bs),
        _of("resolved.cuda_graph_decode.bs", sizes("decode", _locked(origin.graphs.decode), decode.max_bs), decode.bs),
        _of("resolved.cuda_graph_prefill.max_bs", by_prefill, prefill.max_bs),
        _of(
            "resolved.cuda_graph_prefill.bs",
            sizes("prefill", _locked(origin.graphs.prefill), prefill.max_bs),
            prefill.bs,
        ),
    ]


def _locked(phase: Phase) -> bool:
    return "bs" in phase.locked


def _graph_limit(origin: Origin, name: str, phase: Phase, max_bs: int) -> Chain:
    if "bs" in phase.locked:
        return [(f"the largest size given for {name}", "flag")]
    if "max_bs" in phase.locked:
        return [(f"--cuda-graph-max-bs-{name} {max_bs}", "flag")]
    if name == "decode":
        chain = [_by_memory(origin, f"{origin.graphs.default_decode_max_bs}, tp {origin.given.tp_size}")]
        if origin.given.max_running_requests is not None:
            chain += [("at most", ""), *_given(origin, "max_running_requests")]
        return chain
    chain = [(f"chunk {origin.graphs.chunk}, machine-wide", "memory_hook.handle_gpu_memory_settings")]
    if origin.model.is_mla:
        chain.append(("at most 8192 for MLA", "memory_hook.handle_gpu_memory_settings"))
    if origin.arguments.attn_dp_size > 1:
        chain.append(("at most the chunk of a rank, while graphs are on", "parallel_hook.handle_data_parallelism"))
    return chain


def _collectives(origin: Origin, resolved: Arguments, runtime: Runtime) -> list[Derivation]:
    around = (
        f"attn_dp {resolved.attn_dp_size}, tp {resolved.tp_size}, moe_dense_tp {resolved.moe_dense_tp_size or 'off'}, "
        f"a2a {resolved.moe_a2a_backend}"
    )
    alignment = [(f"attn_tp {resolved.attn_tp_size}" if runtime.require_gathered_buffer else "no gathered buffer", "")]
    if origin.arguments.enable_two_batch_overlap:
        alignment.append(("x 2 for two-batch overlap", ""))
    alignment[-1] = (alignment[-1][0], "get_cuda_graph_batch_size_alignment")
    synced = [("attention DP, or a gathered buffer", "utils.common.require_mlp_sync")]
    pool = runtime.max_running_requests_per_dp_worker
    capture = [
        (f"{len(resolved.cuda_graph_decode.bs)} decode graph sizes", ""),
        (
            f"multiples of {runtime.cuda_graph_bs_alignment} up to {pool} requests",
            "base_cuda_graph_runner.get_batch_sizes_to_capture",
        ),
    ]
    return [
        _of(
            "runtime.require_mlp_tp_gather",
            [(around, "utils.common.require_mlp_tp_gather")],
            runtime.require_mlp_tp_gather,
        ),
        _of(
            "runtime.require_attn_tp_gather",
            [(around, "utils.common.require_attn_tp_gather")],
            runtime.require_attn_tp_gather,
        ),
        _of("runtime.require_mlp_sync", synced, runtime.require_mlp_sync),
        _of("runtime.cuda_graph_bs_alignment", alignment, runtime.cuda_graph_bs_alignment),
        _of("runtime.capture_bs", capture, runtime.capture_bs),
    ]


def _decode(origin: Origin, resolved: Arguments, runtime: Runtime) -> list[Derivation]:
    requests = _requests(origin, resolved)
    pool = runtime.max_running_requests_per_dp_worker
    eager = [*requests, (f"{pool} per DP worker", "")]
    if runtime.require_mlp_sync:
        eager.append((f"up to a multiple of attn_tp {resolved.attn_tp_size}", "utils.common.get_eager_max_batch_size"))
    drafted = [("one token a request without speculation", "base_runner")]
    if resolved.speculative_algorithm is not None:
        drafted = [(f"{resolved.speculative_num_draft_tokens} drafted tokens are verified at once", "base_runner")]
    each = [*drafted]
    if resolved.disaggregation_mode == "prefill" and resolved.speculative_algorithm is not None:
        each.append(("one, since a PD-prefill target decodes plainly", "EagerRunner.warmup"))
    tokens = [
        (f"{runtime.decode_autotune_bs} requests", "EagerRunner.warmup"),
        (f"x {runtime.decode_autotune_tokens_per_req} tokens", "base_runner._dummy_run"),
    ]
    announced = [
        (f"{runtime.decode_autotune_tokens} tokens", ""),
        (_announced(resolved, runtime), "base_runner._dummy_run"),
    ]
    return [
        _of("runtime.max_running_requests_per_dp_worker", requests, pool),
        _of("runtime.eager_max_bs", eager, runtime.eager_max_bs),
        _of("runtime.decode_num_tokens_per_req", drafted, runtime.decode_num_tokens_per_req),
        _of("runtime.decode_autotune_bs", eager, runtime.decode_autotune_bs),
        _of("runtime.decode_autotune_tokens_per_req", each, runtime.decode_autotune_tokens_per_req),
        _of("runtime.decode_autotune_tokens", tokens, runtime.decode_autotune_tokens, "DECODE tokens"),
        _of("runtime.dummy_global_num_tokens", announced, runtime.dummy_global_num_tokens),
    ]


def _requests(origin: Origin, resolved: Arguments) -> Chain:
    rule = "kv_cache_configurator.resolve_max_num_reqs"
    capacity = origin.token_capacity
    known = "kv_token_capacity" if origin.capacity_given else "assumed: 8 x context length"
    half = (f"at most half of {capacity} KV tokens", known)
    if resolved.max_running_requests is None:
        return [(f"{capacity} KV tokens / context {origin.model.context_len} x 512, 2048 to 4096", rule), half]
    chain = _running(origin, resolved)
    if resolved.attn_dp_size > 1:
        chain.append((f"/ attn_dp {resolved.attn_dp_size}", rule))
    return [*chain, half]


def _announced(resolved: Arguments, runtime: Runtime) -> str:
    if runtime.require_mlp_tp_gather:
        return f"of each of {resolved.num_dp_ranks} ranks, for the MLP gather"
    return "of this rank, for the attention-TP gather" if runtime.require_attn_tp_gather else "nothing is gathered"


def _extend(origin: Origin, resolved: Arguments, runtime: Runtime, gate: ExtendGate) -> list[Derivation]:
    source = "flashinfer_autotune.maybe_flashinfer_autotune_extend"
    budget = (f"EXTEND budget {resolved.autotune_extend_ceiling}", "")
    if gate.shape is None:
        return [_of("runtime.extend_pass_if_enabled", [budget, (gate.closed_because or "", source)], None)]
    pool = runtime.max_running_requests_per_dp_worker
    each = [budget, ("one token a sequence", source)]
    if gate.shape.extend_num_tokens_per_req_arg is not None:
        each = [budget, (f"/ {pool} requests of the pool, rounded up: {resolved.prefill_attn_backend} packs", source)]
    batch = [budget, (f"/ {gate.shape.num_tokens_per_req} tokens a sequence, rounded up", source)]
    total = [(f"{gate.shape.max_bs} sequences", ""), (f"x {gate.shape.num_tokens_per_req} tokens", source)]
    argument = gate.shape.extend_num_tokens_per_req_arg
    return [
        _of("runtime.extend_pass_if_enabled.num_tokens_per_req", each, gate.shape.num_tokens_per_req),
        *(
            []
            if argument is None
            else [_of("runtime.extend_pass_if_enabled.extend_num_tokens_per_req_arg", each, argument)]
        ),
        _of("runtime.extend_pass_if_enabled.max_bs", batch, gate.shape.max_bs),
        _of("passes.extend.tokens_per_rank", total, gate.shape.max_bs * gate.shape.num_tokens_per_req, "EXTEND tokens"),
    ]


def _moe(resolved: Arguments, runtime: Runtime, passes: Sequence[PassDecision]) -> list[Derivation]:
    bound = runtime.cutlass_tune_max_num_tokens_for_decode_dummy
    source = "flashinfer_cutlass._cutlass_moe_tune_max_num_tokens"
    if resolved.disaggregation_mode == "decode":
        limit = [(f"next power of two of {runtime.decode_autotune_tokens} tokens, a decode worker", source)]
    else:
        limit = [
            (f"EXTEND budget {resolved.autotune_extend_ceiling}", ""),
            (f"x attn_dp {resolved.attn_dp_size}", source),
            ("at most 8192", source),
        ]
    found = [_of("runtime.cutlass_tune_max_num_tokens_for_decode_dummy", limit, bound)]
    for decision in passes:
        if decision.moe_rows is not None:
            rows = [(f"{decision.tokens_per_rank} tokens per rank", ""), (_gathered(resolved, runtime), "base_runner")]
            found.append(_of(f"passes.{decision.name}.moe_rows", rows, decision.moe_rows, "gathered rows"))
    return found


def _gathered(resolved: Arguments, runtime: Runtime) -> str:
    if resolved.moe_a2a_backend == "flashinfer":
        return f"received from {resolved.moe_ep_size} expert ranks, / attn_tp {resolved.attn_tp_size}"
    if resolved.moe_a2a_backend != "none":
        return f"/ attn_tp {resolved.attn_tp_size}, its own rows"
    return f"x {resolved.num_dp_ranks} DP ranks, gathered" if runtime.require_mlp_tp_gather else "not gathered"


def _given(origin: Origin, name: str) -> Chain:
    """The flag as typed, or the release's default."""
    value = getattr(origin.given, name)
    default = ServerArguments.__dataclass_fields__[name].default
    option = "--" + name.replace("_", "-")
    if value == default:
        return [(f"{name} {'not given' if value is None else value}", "default")]
    return [(f"{option} {_text(value)}", "flag")]


def _by_memory(origin: Origin, value: str) -> Step:
    memory_mib = origin.gpu.memory_mib
    size = "an unknown GPU memory" if memory_mib is None else f"{memory_mib} MiB of GPU memory"
    return (f"{value} for {size}", "memory_hook.handle_gpu_memory_settings")


def _architecture(gpu: Gpu) -> str:
    if gpu.compute_capability is None:
        return gpu.arch or "an unknown GPU"
    return "SM{}{}".format(*gpu.compute_capability)


def _of(field: str, chain: Sequence[Step], value: object, label: str = "") -> Derivation:
    return Derivation(field, tuple(chain), _text(value), label)


def _text(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)
    if len(value) <= 2 * _SHOWN:
        return ", ".join(map(str, value)) or "no sizes"
    ends = (*map(str, value[:_SHOWN]), "..", *map(str, value[-2:]))
    return f"{', '.join(ends)} ({len(value)} sizes)"
