"""CUDA-graph phases, chunk and memory fraction of one deployment, as they stand before the chunk is divided.

Sources: ``arg_groups/cuda_graph_hook.py`` and ``arg_groups/memory_hook.py``.
"""

from __future__ import annotations

from dataclasses import replace

from autotune_planner.deployment.model import Deployment
from autotune_planner.engines.sglang_0_5_23 import architectures, cuda_graph, memory
from autotune_planner.engines.sglang_0_5_23 import attention as attention_rules
from autotune_planner.engines.sglang_0_5_23.arguments import ServerArguments
from autotune_planner.engines.sglang_0_5_23.model import ModelFacts
from autotune_planner.values import dataclass


@dataclass(frozen=True)
class GraphSettings:
    """``chunk`` (tokens) is not divided by attention DP yet; the defaults are what the GPU's memory gives.

    ``memory_use`` and ``vision_factor`` are what the memory fraction was worked out from; None where it was given.
    """

    decode: cuda_graph.Phase
    prefill: cuda_graph.Phase
    chunk: int
    default_chunk: int
    default_decode_max_bs: int
    mem_fraction_static: float
    memory_use: memory.MemoryUse | None
    vision_factor: float | None


def graph_settings(arguments: ServerArguments, model: ModelFacts, deployment: Deployment) -> GraphSettings:
    """Both phases, the chunk and the memory fraction, in the order of ``handle_cuda_graph_config`` and
    ``memory_hook.handle_gpu_memory_settings``: before the chunk is divided."""
    decode, prefill = cuda_graph.parse_config(arguments)
    prefill = cuda_graph.apply_compatibility(
        prefill,
        arguments,
        is_multimodal=model.is_multimodal and model.architecture not in architectures.IMAGES_IN_PREFILL_GRAPHS,
        attn_cp_size=arguments.attn_cp_size,
    )
    prefill = cuda_graph.deepep_prefill(prefill, arguments.moe_a2a_backend)
    decode, prefill = cuda_graph.apply_disaggregation(decode, prefill, arguments.disaggregation_mode)

    memory_mib = deployment.gpu.memory_mib
    defaults = memory.memory_defaults(memory_mib, arguments.tp_size)
    chunk = defaults.chunked_prefill_size if arguments.chunked_prefill_size is None else arguments.chunked_prefill_size
    decode = _decode_sizes(decode, defaults.decode_max_bs, arguments, model, deployment)
    prefill = _prefill_sizes(prefill, chunk, arguments, model)
    assert decode.max_bs is not None
    assert prefill.bs is not None
    fraction, use, vision = arguments.mem_fraction_static, None, None
    if fraction is None:
        use = memory.MemoryUse(
            memory_mib=memory_mib,
            activation_tokens=memory.activation_tokens(
                disaggregation_mode=arguments.disaggregation_mode,
                chunk=chunk,
                max_prefill_tokens=arguments.max_prefill_tokens,
                max_running_requests=arguments.max_running_requests,
                decode_max_bs=decode.max_bs,
                draft_tokens=arguments.speculative_num_draft_tokens,
            ),
            tp_size=arguments.tp_size,
            pp_size=arguments.pp_size,
            attn_dp_size=arguments.attn_dp_size,
            disaggregation_mode=arguments.disaggregation_mode,
            decode_graph=decode.backend != "disabled",
            decode_max_bs=decode.max_bs,
            prefill_graph=prefill.backend != "disabled",
            prefill_breakable=prefill.backend == "breakable",
            prefill_sizes=len(prefill.bs),
            is_mla=model.is_mla,
            deepep=arguments.moe_a2a_backend == "deepep",
        )
        sees_images = arguments.disaggregation_mode != "decode" and not arguments.language_only
        vision = deployment.model.config.get("vision_config") if sees_images else None
        fraction = memory.mem_fraction_static(use, vision)
    return GraphSettings(
        decode=decode,
        prefill=prefill,
        chunk=chunk,
        default_chunk=defaults.chunked_prefill_size,
        default_decode_max_bs=defaults.decode_max_bs,
        mem_fraction_static=fraction,
        memory_use=use,
        vision_factor=None if vision is None else memory.vision_factor(vision),
    )


def _decode_sizes(
    decode: cuda_graph.Phase, default: int, arguments: ServerArguments, model: ModelFacts, deployment: Deployment
) -> cuda_graph.Phase:
    """Source: ``memory_hook.handle_gpu_memory_settings``; Qwen3-VL: ``model_overrides/qwen3_vl.py``."""
    requests = arguments.max_running_requests
    max_bs = decode.max_bs
    if max_bs is None:
        max_bs = default if requests is None else min(default, requests)
        hopper = (deployment.gpu.compute_capability or (0, 0))[0] == 9
        large = (deployment.gpu.memory_mib or 0) >= 61440
        profiled = model.config_class.startswith("Qwen3VL") and hopper and large
        if profiled and "bs" not in decode.locked and requests is not None and max_bs < requests <= 512:
            max_bs = requests
    if decode.bs is not None:
        return replace(decode, max_bs=max(decode.bs))
    sizes = cuda_graph.decode_sizes(
        max_bs,
        padding=not arguments.disable_cuda_graph_padding,
        speculative=arguments.speculative_algorithm is not None,
    )
    return replace(decode, max_bs=max_bs, bs=sizes)


def _prefill_sizes(
    prefill: cuda_graph.Phase, chunk: int, arguments: ServerArguments, model: ModelFacts
) -> cuda_graph.Phase:
    """Source: ``memory_hook.handle_gpu_memory_settings``."""
    max_bs = prefill.max_bs
    if max_bs is None:
        max_bs = min(8192, chunk) if model.is_mla else chunk
        if arguments.pp_size > 1 and prefill.backend == "breakable" and "bs" not in prefill.locked:
            max_bs = min(max_bs, 8192)
        if arguments.max_total_tokens is not None:
            max_bs = min(max_bs, arguments.max_total_tokens)
        if "llama-2" in arguments.model_path.lower():
            max_bs = min(max_bs, 4096)
    return replace(prefill, max_bs=max_bs, bs=cuda_graph.prefill_sizes(max_bs) if prefill.bs is None else prefill.bs)


def without_deepseek_prefill(
    prefill: cuda_graph.Phase, model: ModelFacts, attention: attention_rules.Attention
) -> cuda_graph.Phase:
    """Source: ``cuda_graph_hook.disable_prefill_cuda_graph_for_deepseek_trtllm_mla``."""
    deepseek = model.architecture == "DeepseekV3ForCausalLM" and attention.prefill == "trtllm_mla"
    return replace(prefill, backend="disabled") if deepseek and "backend" not in prefill.locked else prefill


def without_graphs(
    settings: GraphSettings, attention: attention_rules.Attention, arguments: ServerArguments
) -> GraphSettings:
    """No graphs at all where they cannot be captured, even if they were asked for.

    Sources: ``attention_hook.handle_attention_backend_compatibility`` and ``handle_multi_item_scoring`` (which also
    turns chunked prefill off). The sizes stay.
    """
    if attention.base not in ("torch_native", "flex_attention") and not arguments.enable_mis:
        return settings
    return replace(_all_off(settings), chunk=-1 if arguments.enable_mis else settings.chunk)


def without_normal_dispatch(settings: GraphSettings, arguments: ServerArguments, a2a_backend: str) -> GraphSettings:
    """After the prefill graphs were clamped to the chunk. Source: ``moe_hook.handle_a2a_moe``."""
    if a2a_backend == "deepep" and arguments.deepep_mode == "normal":
        return _all_off(settings)
    if a2a_backend == "deepep_v2":
        return replace(settings, prefill=replace(settings.prefill, backend="disabled"))
    return settings


def without_dumps(settings: GraphSettings, arguments: ServerArguments) -> GraphSettings:
    """Dumps of tensors run eagerly. Source: ``serving_hook.handle_other_validations``, after every other rule."""
    dumps = arguments.debug_tensor_dump_output_folder is not None or arguments.msprobe_dump_config is not None
    return _all_off(settings) if dumps else settings


def _all_off(settings: GraphSettings) -> GraphSettings:
    return replace(
        settings,
        decode=replace(settings.decode, backend="disabled"),
        prefill=replace(settings.prefill, backend="disabled"),
    )


def clamped_to_chunk(prefill: cuda_graph.Phase, chunk: int, attn_dp_size: int) -> cuda_graph.Phase:
    """Prefill graphs never exceed the divided chunk. Source: ``parallel_hook.handle_data_parallelism``."""
    if attn_dp_size == 1 or prefill.backend == "disabled" or "max_bs" in prefill.locked:
        return prefill
    if prefill.max_bs is None or prefill.max_bs <= chunk:
        return prefill
    sizes = prefill.bs if "bs" in prefill.locked else cuda_graph.prefill_sizes(chunk)
    return replace(prefill, max_bs=chunk, bs=sizes)
