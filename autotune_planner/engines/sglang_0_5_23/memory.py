"""Defaults by GPU memory, and the static memory fraction. Source: ``arg_groups/memory_hook.py``. Memory in MiB."""

from __future__ import annotations

from typing import Any

from autotune_planner import profiles
from autotune_planner.engines.sglang_0_5_23.arguments import PROFILE
from autotune_planner.values import dataclass

_LARGE_MIB, _LEAST_OF_LARGE = 61440, 10240


@dataclass(frozen=True)
class MemoryDefaults:
    chunked_prefill_size: int  # tokens, machine-wide
    decode_max_bs: int  # requests


def memory_defaults(memory_mib: int | None, tp_size: int) -> MemoryDefaults:
    """Chunk and largest decode graph by the memory of one GPU. Source: ``handle_gpu_memory_settings``."""
    table = profiles.load("engines", PROFILE)
    if memory_mib is None:
        unknown = table["memory_unknown"]
        return MemoryDefaults(unknown["chunked_prefill_size"], unknown["decode_max_bs"])
    tier = next(t for t in table["memory_tiers"] if t["below_mib"] is None or memory_mib < t["below_mib"])
    max_bs = tier["decode_max_bs"] if tp_size < 4 else tier["decode_max_bs_tp4"]
    return MemoryDefaults(tier["chunked_prefill_size"], max_bs)


@dataclass(frozen=True)
class MemoryUse:
    """What the reserve depends on; chunk undivided, sizes as the graph phases have them at that point."""

    memory_mib: int | None
    activation_tokens: int
    tp_size: int
    pp_size: int
    attn_dp_size: int
    disaggregation_mode: str
    decode_graph: bool
    decode_max_bs: int
    prefill_graph: bool
    prefill_breakable: bool
    prefill_sizes: int
    is_mla: bool
    deepep: bool


def mem_fraction_static(use: MemoryUse, vision: Any | None) -> float:
    """Share of GPU memory for weights and KV cache. ``vision`` is the vision configuration of a multimodal model.

    Source: ``memory_hook.handle_gpu_memory_settings``, ``reserve_for_graph_mb``, ``adjust_mem_fraction_for_vlm``.
    """
    memory_mib, reserve = use.memory_mib, sum(size for _, size in reserve_terms(use))
    fraction = 0.95 if memory_mib is None else round((memory_mib - reserve) / memory_mib, 3)
    return fraction if vision is None else fraction * vision_factor(vision)


def reserve_terms(use: MemoryUse) -> tuple[tuple[str, float], ...]:
    """(what, MiB) of the memory that is kept free; their sum is the reserve."""
    terms: list[tuple[str, float]] = [
        ("fixed", 512),
        (f"for {use.activation_tokens} activation tokens", 1.5 * use.activation_tokens),
        (f"for tp {use.tp_size} x pp {use.pp_size}", use.tp_size * use.pp_size / 8 * 1024),
    ]
    not_prefill = use.disaggregation_mode != "prefill"
    if not_prefill and use.decode_graph:
        terms.append((f"for decode graphs up to {use.decode_max_bs}", 2 * use.decode_max_bs))
    if use.attn_dp_size > 1 and not_prefill:
        per_request = 4.5 if use.decode_max_bs > 300 else 3
        terms.append((f"for attention DP of {use.attn_dp_size}", per_request * use.decode_max_bs * use.attn_dp_size))
    if use.disaggregation_mode != "decode" and use.prefill_graph:
        terms.append(("for prefill graphs", 1536 if use.is_mla else 8 * use.prefill_sizes))
        if use.prefill_breakable and use.deepep:
            terms.append(("for DeepEP in prefill graphs", 1024))
    total = sum(size for _, size in terms)
    if use.memory_mib is not None and use.memory_mib > _LARGE_MIB and total < _LEAST_OF_LARGE:
        terms.append((f"up to the least of {_LEAST_OF_LARGE} on large GPUs", _LEAST_OF_LARGE - total))
    if not_prefill and use.decode_graph and use.deepep:
        terms.append(("for DeepEP in decode graphs", 2048))
    return tuple(terms)


def vision_factor(vision: Any) -> float:
    """What a vision tower leaves of the fraction. Source: ``memory_hook.adjust_mem_fraction_for_vlm``."""
    layers = vision.get("num_hidden_layers", 24)
    complexity = layers * vision.get("hidden_size", 1024) ** 2 / (24 * 1024**2)
    return float(0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (complexity - 1.0))))


def activation_tokens(
    *,
    disaggregation_mode: str,
    chunk: int,
    max_prefill_tokens: int,
    max_running_requests: int | None,
    decode_max_bs: int,
    draft_tokens: int | None,
) -> int:
    """Tokens that the activation working set scales with, at least 2048."""
    if disaggregation_mode == "decode":
        return max((max_running_requests or decode_max_bs or 1) * (draft_tokens or 1), 2048)
    return max(chunk if chunk > 0 else max_prefill_tokens, 2048)
