"""The pipeline: every rule of the release in the server's own order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from autotune_planner import profiles
from autotune_planner.deployment.model import Deployment, Traffic
from autotune_planner.engines.resolved import (
    DEFAULT_CACHE_DIR,
    Arguments,
    CachePlace,
    CudaGraph,
    EngineRelease,
    Notice,
    PassDecision,
    Resolved,
    Runtime,
    UnseenOp,
)
from autotune_planner.engines.sglang_0_5_23 import (
    architectures,
    autotune,
    checks,
    compatibility,
    cuda_graph,
    deep_gemm,
    derivations,
    extend_attention,
    kernel_choice,
    local_rows,
    model_override,
    moe,
    notices,
    op_layout,
    op_selection,
    parallel,
    quantization,
    runtime,
    speculative,
)
from autotune_planner.engines.sglang_0_5_23 import (
    arguments as argument_rules,
)
from autotune_planner.engines.sglang_0_5_23 import (
    attention as attention_rules,
)
from autotune_planner.engines.sglang_0_5_23 import (
    environment as variables,
)
from autotune_planner.engines.sglang_0_5_23.arguments import PROFILE, ServerArguments
from autotune_planner.engines.sglang_0_5_23.checks.subject import Subject
from autotune_planner.engines.sglang_0_5_23.environment import Environment
from autotune_planner.engines.sglang_0_5_23.graph_settings import (
    GraphSettings,
    clamped_to_chunk,
    graph_settings,
    without_deepseek_prefill,
    without_dumps,
    without_graphs,
    without_normal_dispatch,
)
from autotune_planner.engines.sglang_0_5_23.model import ModelFacts, model_facts
from autotune_planner.values import dataclass

_NOT_ON_AMD = "FlashInfer does not run on AMD GPUs"


def resolve(deployment: Deployment, environ: Mapping[str, str]) -> Resolved:
    """What SGLang 0.5.23 makes of a deployment. ``DeploymentError`` where it refuses to start."""
    if deployment.gpu.vendor == "amd":
        # ROCm reports a major of 9 too: no rule of an NVIDIA architecture may read it.
        deployment = replace(deployment, gpu=replace(deployment.gpu, compute_capability=None))
    given = argument_rules.server_arguments(deployment)
    deployment = model_override.overridden(deployment)
    environment = Environment(deployment, environ)
    extend_on = environment.extend_enabled()
    parallel.check_positive(given)
    compatibility.check_device(given)
    arguments = parallel.attention_dp_alias(moe.megamoe_alias(speculative.without_capture(given)))
    arguments = attention_rules.deterministic_policy(arguments)
    model = model_facts(deployment.model, arguments.dtype, arguments.context_length)
    capability = deployment.gpu.compute_capability
    checkpoint = quantization.checkpoint_quantization(model)
    quantization.check(arguments.quantization, checkpoint, capability[0] if capability else 0)

    graphs = graph_settings(arguments, model, deployment)
    attention = attention_rules.resolve_attention(
        arguments, model, capability, deployment.gpu.memory_mib, hip=deployment.gpu.vendor == "amd"
    )
    graphs = without_graphs(graphs, attention, arguments)
    graphs = replace(graphs, prefill=without_deepseek_prefill(graphs.prefill, model, attention))
    parallel.check_sizes(arguments)
    compatibility.check_dp_lm_head(arguments)
    compatibility.check_context_parallel(arguments)
    compatibility.check_roles(arguments, is_multimodal=model.is_multimodal)
    chunk = parallel.divided_chunk(graphs.chunk, arguments.attn_dp_size)
    graphs = replace(graphs, prefill=clamped_to_chunk(graphs.prefill, chunk, arguments.attn_dp_size))
    experts = moe.resolve_moe(arguments, model, capability)
    graphs = without_normal_dispatch(graphs, arguments, experts.a2a_backend)
    arguments = replace(arguments, moe_a2a_backend=experts.a2a_backend)
    drafts = speculative.resolve_speculative(arguments, deployment.model, attention, deployment.draft_model)
    buffer_tokens = parallel.max_prefill_buffer_tokens(
        chunk,
        arguments.max_prefill_tokens,
        dynamic_chunking=arguments.enable_dynamic_chunking,
        pp_size=arguments.pp_size,
    )
    capacity = moe.a2a_capacity(buffer_tokens, environment.number(variables.DISPATCH_TOKENS))
    assert graphs.decode.max_bs is not None
    moe.check_a2a_budget(
        arguments=arguments,
        chunk=chunk,
        buffer_tokens=buffer_tokens,
        prefill_graph_max_bs=None if graphs.prefill.backend == "disabled" else graphs.prefill.max_bs,
        decode_graph_max_bs=graphs.decode.max_bs,
        draft_tokens=drafts.num_draft_tokens or 1 if drafts.algorithm else 1,
        max_running_requests=drafts.max_running_requests,
        capacity=capacity,
    )
    parallel.check_page_size(chunk, attention.page_size, arguments.disaggregation_mode)
    parallel.check_dense_tp(arguments.moe_dense_tp_size, arguments.tp_size)
    speculative.check_pipeline(drafts.algorithm, arguments.pp_size, arguments.disaggregation_mode)
    compatibility.check_server_args(arguments)
    graphs = without_dumps(graphs, arguments)
    checks.check(
        Subject(
            given=argument_rules.given_flags(deployment),
            arguments=arguments,
            model=model,
            attention=attention,
            graphs=graphs,
            experts=experts,
            drafts=drafts,
            environment=environment,
            chunk=chunk,
            buffer_tokens=buffer_tokens,
            major=None if capability is None else capability[0],
        )
    )

    resolved = _arguments(arguments, graphs, attention, experts, drafts, chunk, buffer_tokens, capacity)
    facts = _Facts(deployment, given, arguments, model, attention, graphs, environment, extend_on)
    return _resolved(facts, resolved)


def _arguments(
    arguments: ServerArguments,
    graphs: GraphSettings,
    attention: attention_rules.Attention,
    experts: moe.MoeResolved,
    drafts: speculative.SpeculativeResolved,
    chunk: int,
    buffer_tokens: int,
    capacity: int,
) -> Arguments:
    tp, attn_dp, ep = arguments.tp_size, arguments.attn_dp_size, experts.ep_size
    return Arguments(
        chunked_prefill_size=chunk,
        max_prefill_tokens=arguments.max_prefill_tokens,
        max_prefill_buffer_tokens=buffer_tokens,
        autotune_extend_ceiling=parallel.extend_ceiling(buffer_tokens, arguments.max_prefill_tokens),
        tp_size=tp,
        dp_size=arguments.dp_size,
        attn_dp_size=attn_dp,
        attn_tp_size=tp // attn_dp // arguments.attn_cp_size,
        ep_size=ep,
        moe_ep_size=ep,
        moe_tp_size=tp // ep,
        moe_dense_tp_size=arguments.moe_dense_tp_size,
        pp_size=arguments.pp_size,
        num_dp_ranks=arguments.dp_size * attn_dp,
        attn_dp_enabled=attn_dp > 1,
        speculative_algorithm=drafts.algorithm,
        speculative_num_steps=drafts.num_steps,
        speculative_eagle_topk=drafts.eagle_topk,
        speculative_num_draft_tokens=drafts.num_draft_tokens,
        disaggregation_mode=arguments.disaggregation_mode,
        moe_runner_backend=experts.runner_backend,
        moe_a2a_backend=arguments.moe_a2a_backend,
        attention_backend=attention.base,
        prefill_attn_backend=attention.prefill,
        decode_attn_backend=attention.decode,
        page_size=attention.page_size,
        quantization=experts.quantization,
        mem_fraction_static=graphs.mem_fraction_static,
        max_running_requests=drafts.max_running_requests,
        flashinfer_a2a_max_dispatch_tokens_per_rank=capacity,
        cuda_graph_decode=_graph(graphs.decode),
        cuda_graph_prefill=_graph(graphs.prefill),
    )


def _graph(phase: cuda_graph.Phase) -> CudaGraph:
    assert phase.max_bs is not None
    assert phase.bs is not None
    return CudaGraph(phase.backend, phase.max_bs, phase.bs)


@dataclass(frozen=True)
class _Facts:
    """Everything that the second half reads beside the resolved arguments."""

    deployment: Deployment
    given: ServerArguments
    arguments: ServerArguments
    model: ModelFacts
    attention: attention_rules.Attention
    graphs: GraphSettings
    environment: Environment
    extend_on: bool


def _resolved(facts: _Facts, resolved: Arguments) -> Resolved:
    arguments, model, deployment = facts.arguments, facts.model, facts.deployment
    capability = deployment.gpu.compute_capability
    around = parallel.gathers(
        attn_dp_size=resolved.attn_dp_size,
        tp_size=resolved.tp_size,
        moe_dense_tp_size=resolved.moe_dense_tp_size,
        enable_dp_lm_head=arguments.enable_dp_lm_head,
        # scheduler.init_moe_gemm_config: without experts in the model's configuration no A2A backend is set.
        a2a_backend=resolved.moe_a2a_backend if model.num_experts else "none",
        disable_attn_tp_gather=arguments.disable_attn_tp_gather,
    )
    mlp_sync = resolved.attn_dp_enabled or around.require_gathered_buffer
    token_capacity = deployment.kv_token_capacity or runtime.assumed_token_capacity(model.context_len)
    requests = runtime.max_num_requests(
        resolved.max_running_requests,
        attn_dp_size=resolved.attn_dp_size,
        token_capacity=token_capacity,
        context_len=model.context_len,
    )
    runtime.check_requests(requests, token_capacity, deployment.where("kv_token_capacity"))
    bs = runtime.eager_max_bs(requests, mlp_sync=mlp_sync, attn_tp_size=resolved.attn_tp_size)
    per_request = runtime.decode_tokens_per_request(
        resolved.speculative_algorithm, resolved.speculative_num_draft_tokens
    )
    # The target of a PD-prefill pair runs its dummy in plain DECODE, one token a request.
    pass_per_request = 1 if resolved.disaggregation_mode == "prefill" else per_request
    alignment = parallel.cuda_graph_alignment(
        gathered_buffer=around.require_gathered_buffer,
        attn_tp_size=resolved.attn_tp_size,
        attn_cp_size=arguments.attn_cp_size,
        two_batch_overlap=arguments.enable_two_batch_overlap,
    )
    gate = autotune.extend_gate(
        ceiling=resolved.autotune_extend_ceiling,
        decode_bs=bs,
        pool=requests,
        packed=attention_rules.packs_extend_dummy(facts.attention.prefill),
        is_generation=model.is_generation,
        speculative=resolved.speculative_algorithm is not None,
        disaggregation_mode=resolved.disaggregation_mode,
    )
    checkpoint = quantization.checkpoint_quantization(model)
    model_quantization = quantization.model_quantization(arguments.quantization, checkpoint)
    no_autotune = (
        _NOT_ON_AMD
        if deployment.gpu.vendor == "amd"
        else autotune.skip_reason(
            arguments,
            runner=resolved.moe_runner_backend,
            model_quantization=model_quantization,
            checkpoint=checkpoint,
            capability=capability,
            fp4_gemm_backend=kernel_choice.fp4_gemm_backend(arguments, capability),
        )
    )

    def rows(tokens: int) -> int:
        return runtime.moe_rows(
            tokens,
            dp_ranks=resolved.num_dp_ranks,
            mlp_gather=around.require_mlp_tp_gather,
            a2a_backend=resolved.moe_a2a_backend,
            attn_tp_size=resolved.attn_tp_size,
            ep_size=resolved.moe_ep_size,
        )

    decode_tokens = bs * pass_per_request

    def tune_max(tokens: int) -> int:
        return autotune.cutlass_tune_max(
            ceiling=resolved.autotune_extend_ceiling,
            attn_dp_size=resolved.attn_dp_size,
            disaggregation_mode=resolved.disaggregation_mode,
            rows=tokens,
        )

    def captured(tokens_per_request: int) -> tuple[int, ...] | None:
        sizes = resolved.cuda_graph_decode.bs
        return cuda_graph.capture_sizes(
            sizes, pool=requests, alignment=alignment, tokens_per_request=tokens_per_request
        )

    extend_tokens = gate.shape.max_bs * gate.shape.num_tokens_per_req if gate.shape else None
    extend_runs = no_autotune is None and gate.shape is not None and facts.extend_on
    place = _cache_place(facts, resolved)
    measured = Runtime(
        require_mlp_tp_gather=around.require_mlp_tp_gather,
        require_attn_tp_gather=around.require_attn_tp_gather,
        require_gathered_buffer=around.require_gathered_buffer,
        require_mlp_sync=mlp_sync,
        cuda_graph_bs_alignment=alignment,
        capture_bs=captured(1 if arguments.enable_two_batch_overlap else per_request),
        max_running_requests_per_dp_worker=requests,
        eager_max_bs=bs,
        decode_num_tokens_per_req=per_request,
        decode_autotune_bs=bs,
        decode_autotune_tokens_per_req=pass_per_request,
        decode_autotune_tokens=decode_tokens,
        dummy_global_num_tokens=_global_tokens(around, decode_tokens, resolved.num_dp_ranks),
        should_run_flashinfer_autotune=no_autotune is None,
        cutlass_tune_max_num_tokens_for_decode_dummy=tune_max(decode_tokens),
        extend_pass_if_enabled=gate.shape,
    )
    production_decode = None if resolved.disaggregation_mode == "prefill" else bs * per_request
    production_prefill = None if resolved.disaggregation_mode == "decode" else resolved.autotune_extend_ceiling
    local = op_layout.Rows(decode_tokens, extend_tokens if extend_runs else None, production_decode, production_prefill)
    gathered = _each(local, rows)
    layout = op_layout.Layout(
        tp_size=resolved.tp_size,
        attn_tp_size=resolved.attn_tp_size,
        attn_dp_size=resolved.attn_dp_size,
        moe_tp_size=resolved.moe_tp_size,
        moe_ep_size=resolved.moe_ep_size,
        dense_tp_size=1 if resolved.moe_dense_tp_size == 1 else resolved.tp_size,
        redundant_experts=arguments.ep_num_redundant_experts,
    )
    kernels = kernel_choice.kernels_of(
        arguments, resolved, facts.environment, capability or (0, 0), tune_max(rows(decode_tokens))
    )
    captured_bs = measured.capture_bs if resolved.cuda_graph_decode.backend != "disabled" else None
    seen = op_layout.LayerRows(
        local=local,
        gathered=_each(local, lambda tokens: tokens * resolved.attn_dp_size),
        moe=gathered,
        captured=rows(captured_bs[-1] * per_request) if captured_bs else None,
    )
    uneven = op_selection.uneven_shape(model, model_quantization, layout, kernels)
    even = uneven is None and resolved.moe_tp_size * resolved.moe_ep_size == resolved.tp_size
    tuned = even and no_autotune is None
    ops = op_selection.select_ops(model, model_quantization, layout, kernels, seen) if tuned else ()
    unplanned = None
    if tuned:
        runners = profiles.load("engines", PROFILE)["autotuned_moe_runners"]
        unplanned = op_selection.unplanned_ops(model, model_quantization, layout, kernels, runners)
    block = autotune.draft_block(resolved.speculative_algorithm, resolved.speculative_num_draft_tokens)
    passes = autotune.pass_decisions(
        no_autotune=no_autotune,
        gate=gate,
        extend_on=facts.extend_on,
        decode=(bs, pass_per_request, rows(decode_tokens)),
        extend_rows=None if extend_tokens is None else rows(extend_tokens),
        draft=autotune.draft_pass(
            algorithm=resolved.speculative_algorithm,
            no_autotune=no_autotune,
            capture_bs=None if resolved.cuda_graph_decode.backend == "disabled" else captured(block or 1),
            topk=resolved.speculative_eagle_topk,
            draft_tokens=resolved.speculative_num_draft_tokens,
        ),
    )
    passes = tuple(_with_token_list(decision, around, resolved.num_dp_ranks) for decision in passes)
    drafted = any(decision.name == "draft" for decision in passes)
    unseen: tuple[UnseenOp, ...] = ()
    if even and deployment.gpu.vendor != "amd":
        unseen = op_selection.unseen_ops(
            model,
            model_quantization,
            layout,
            kernels,
            seen,
            facts.attention.decode,
            drafted=drafted,
            no_autotune=no_autotune,
        )
    warmups = deep_gemm.warmups(
        deep_gemm.warmup_facts(
            deployment, facts.environment, arguments, model, resolved, model_quantization, mlp_sync=mlp_sync
        )
    )
    release = profiles.load("engines", PROFILE)
    kernel = extend_attention.extend_attention(
        deployment.gpu, deployment.model, model, arguments, resolved, facts.environment
    )
    return Resolved(
        release=EngineRelease(release["engine"], release["version"], release["flashinfer_version"]),
        gpu=deployment.gpu,
        model=deployment.model,
        model_path=deployment.model_path,
        dtype=f"torch.{model.dtype}",
        hidden_size=model.hidden_size,
        vocab_size=model.vocab_size,
        arguments=resolved,
        runtime=measured,
        passes=passes,
        warmups=warmups,
        no_autotune_reason=no_autotune,
        ops=ops,
        unseen_ops=unseen,
        extend_attention=kernel,
        traffic=deployment.traffic,
        cache_place=place,
        derivations=derivations.derivations(
            derivations.Origin(
                given=facts.given,
                arguments=arguments,
                model=model,
                gpu=deployment.gpu,
                checkpoint=checkpoint,
                graphs=facts.graphs,
                token_capacity=token_capacity,
                capacity_given=deployment.kv_token_capacity is not None,
                dispatch_override=facts.environment.number(variables.DISPATCH_TOKENS),
            ),
            resolved,
            measured,
            gate,
            passes,
            tiles=() if deployment.traffic == Traffic() else extend_attention.derivations(kernel, deployment.gpu),
        ),
        notices=(
            *_notices(
                facts,
                facts.graphs.default_chunk,
                resolved,
                measured,
                gate,
                gathered,
                unplanned,
                uneven,
                planned=bool(ops),
            ),
            *extend_attention.notices(kernel),
            *local_rows.local_row_notices(resolved, measured, passes, warmups, model.vocab_size),
        ),
    )


def _each(rows: op_layout.Rows, change: Callable[[int], int]) -> op_layout.Rows:
    values = (rows.decode_pass, rows.extend_pass, rows.decode, rows.prefill)
    return op_layout.Rows(*(None if value is None else change(value) for value in values))


def _global_tokens(around: parallel.Gathers, tokens: int, dp_ranks: int) -> tuple[int, ...] | None:
    """Token counts that a dummy run announces. Source: ``base_runner._dummy_run``."""
    if around.require_mlp_tp_gather:
        return (tokens,) * dp_ranks
    return (tokens,) if around.require_attn_tp_gather else None


def _with_token_list(decision: PassDecision, around: parallel.Gathers, dp_ranks: int) -> PassDecision:
    """Source: ``base_runner._dummy_run`` and ``eagle_draft_cuda_graph_runner``; every runner announces alike."""
    tokens = decision.tokens_per_rank
    announced = None if tokens is None else _global_tokens(around, tokens, dp_ranks)
    return replace(decision, global_num_tokens=announced, dp_buffer_rows=None if announced is None else sum(announced))


def _cache_place(facts: _Facts, resolved: Arguments) -> CachePlace:
    """Source: ``flashinfer_autotune.flashinfer_autotune_cache_path``."""
    skip = ",".join(sorted(facts.arguments.flashinfer_autotune_skip_ops))
    parts = (
        facts.deployment.model_path,
        f"torch.{facts.model.dtype}",
        str(resolved.quantization),
        resolved.moe_runner_backend,
        str(resolved.tp_size),
        str(resolved.pp_size),
        str(resolved.attn_dp_size),
        str(resolved.moe_ep_size),
        facts.model.config_class,
        "candidate_selection=v2_default",
        f"skip_ops={skip}",
    )
    return CachePlace(
        cache_dir=facts.environment.text(variables.CACHE_DIR, default=DEFAULT_CACHE_DIR),
        flashinfer_version=str(profiles.load("engines", PROFILE)["flashinfer_version"]),
        compute_capability=facts.deployment.gpu.compute_capability or (0, 0),
        key_parts=parts,
        ranks=parallel.ranks_of(resolved.tp_size, resolved.pp_size, resolved.attn_dp_size, resolved.dp_size),
    )


def _notices(
    facts: _Facts,
    default_chunk: int,
    resolved: Arguments,
    measured: Runtime,
    gate: autotune.ExtendGate,
    moe_rows: op_layout.Rows,
    unplanned: str | None,
    uneven: str | None,
    *,
    planned: bool,
) -> tuple[Notice, ...]:
    model, given, deployment = facts.model, facts.given, facts.deployment
    chunk = default_chunk if given.chunked_prefill_size is None else given.chunked_prefill_size
    found: list[Notice | None] = [
        notices.machine_wide_chunk(chunk, resolved.chunked_prefill_size, resolved.attn_dp_size),
        notices.speculative_requests(
            resolved.speculative_algorithm,
            given.max_running_requests,
            resolved.max_running_requests or 0,
            resolved.attn_dp_size,
        ),
        notices.uneven_experts(resolved.tp_size, resolved.ep_size),
        notices.uneven_shapes(uneven),
        notices.unreadable_environment(facts.environment.unreadable()),
        notices.ignored(argument_rules.ignored_flags(deployment)),
        notices.unmodelled(argument_rules.unmodelled_flags(deployment)),
        None if deployment.gpu.vendor == "amd" else notices.model_path_spelling(deployment.model_path),
        notices.amd(deployment.gpu, deployment.traffic),
        notices.relative_cache_dir(facts.environment.text(variables.CACHE_DIR, default=DEFAULT_CACHE_DIR)),
        notices.impossible_memory(resolved.mem_fraction_static),
        notices.attention_fails(
            prefill=resolved.prefill_attn_backend,
            decode=resolved.decode_attn_backend,
            capability=deployment.gpu.compute_capability,
            is_mla=model.is_mla,
            autotuned=measured.should_run_flashinfer_autotune,
        ),
    ]
    if deployment.kv_token_capacity is None and resolved.max_running_requests is None:
        capacity = runtime.assumed_token_capacity(model.context_len)
        found.append(notices.capacity_assumed(capacity, model.context_len, measured.max_running_requests_per_dp_worker))
    if model.architecture in architectures.RECURRENT_STATE:
        found.append(notices.recurrent_states(measured.max_running_requests_per_dp_worker))
    if measured.capture_bs is None and resolved.cuda_graph_decode.backend != "disabled":
        found.append(notices.no_capture_sizes(measured.cuda_graph_bs_alignment))
    if measured.should_run_flashinfer_autotune:
        if not facts.environment.flag(variables.REUSE_CACHE, default=True):
            found.append(notices.cache_not_reused(variables.REUSE_CACHE))
        found += [
            notices.extend_not_tuned(
                closed_because=gate.closed_because,
                enabled=facts.extend_on,
                ceiling=resolved.autotune_extend_ceiling,
                variable=variables.EXTEND,
                planned=planned,
            ),
            notices.logits_of_dummy(measured.decode_autotune_tokens, model.vocab_size),
            notices.unplanned(unplanned),
        ]
        if gate.shape is not None:
            shape = gate.shape
            found.append(
                notices.extend_packed(
                    batch=shape.max_bs, per_request=shape.num_tokens_per_req, ceiling=resolved.autotune_extend_ceiling
                )
            )
        if model.num_experts and resolved.moe_tp_size:
            largest = moe_rows.largest()
            width = model.moe_intermediate_size // resolved.moe_tp_size
            found.append(notices.index_overflow(largest, model.top_k, width))
            if resolved.moe_runner_backend == "flashinfer_cutlass":
                bound = autotune.cutlass_tune_max(
                    ceiling=resolved.autotune_extend_ceiling,
                    attn_dp_size=resolved.attn_dp_size,
                    disaggregation_mode=resolved.disaggregation_mode,
                    rows=moe_rows.decode_pass or 1,
                )
                found.append(notices.bound_clamps(largest, bound))
        if resolved.moe_a2a_backend == "flashinfer":
            capacity = resolved.flashinfer_a2a_max_dispatch_tokens_per_rank
            found.append(notices.a2a_overflow(measured.decode_autotune_tokens, capacity))
    return tuple(notice for notice in found if notice is not None)
