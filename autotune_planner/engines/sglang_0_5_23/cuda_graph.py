"""CUDA-graph settings and sizes. Sources: ``arg_groups/cuda_graph_hook.py``, ``arg_groups/memory_hook.py``,
``model_executor/runner/base_cuda_graph_runner.py``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from autotune_planner.deployment.field_flags import LARGEST
from autotune_planner.deployment.fields import shown
from autotune_planner.engines.sglang_0_5_23.arguments import ServerArguments
from autotune_planner.engines.sglang_0_5_23.rejection import rejected
from autotune_planner.errors import DeploymentError
from autotune_planner.values import dataclass

_LARGEST_BS = 2**20  # no pool of requests is as large, and every size is listed
_BACKENDS = ("full", "breakable", "disabled")
_CONFIG_KEYS = {
    "decode": ("backend", "max_bs", "bs"),
    "prefill": (
        "backend",
        "max_bs",
        "bs",
        "max_context_size",
        "full_prefill_max_req",
        "full_prefill_prefix_chunk_tokens",
        "max_seq_len",
    ),
}
_FULL_PREFILL_A2A = ("none", "deepep", "megamoe", "flashinfer")


@dataclass(frozen=True)
class Phase:
    """One phase while it is being resolved; ``locked`` names the keys that the operator gave."""

    backend: str
    max_bs: int | None = None
    bs: tuple[int, ...] | None = None
    locked: frozenset[str] = frozenset()

    def given(self, **values: Any) -> Phase:
        return replace(self, locked=self.locked | frozenset(values), **values)


def parse_config(arguments: ServerArguments) -> tuple[Phase, Phase]:
    """(decode, prefill) from the flags. JSON wins over the flags of a phase, those over switches.

    Source: ``cuda_graph_hook.parse_cuda_graph_config``.
    """
    decode, prefill = Phase("full"), Phase("breakable")
    if arguments.disable_cuda_graph:
        decode, prefill = decode.given(backend="disabled"), prefill.given(backend="disabled")
    if arguments.disable_prefill_cuda_graph:
        prefill = prefill.given(backend="disabled")
    if arguments.disable_decode_cuda_graph:
        decode = decode.given(backend="disabled")
    decode = _given(
        decode,
        {
            "backend": arguments.cuda_graph_backend_decode,
            "max_bs": arguments.cuda_graph_max_bs_decode,
            "bs": arguments.cuda_graph_bs_decode,
        },
    )
    prefill = _given(
        prefill,
        {
            "backend": arguments.cuda_graph_backend_prefill,
            "max_bs": arguments.cuda_graph_max_bs_prefill,
            "bs": arguments.cuda_graph_bs_prefill,
        },
    )
    explicit = _checked_config({} if arguments.cuda_graph_config is None else arguments.cuda_graph_config)
    for phase, flag in ((decode, "--cuda-graph-bs-decode"), (prefill, "--cuda-graph-bs-prefill")):
        if phase.bs == ():
            raise rejected(flag, "needs at least one size", f"{flag} 1 2 4 8", source="memory_hook")
    return _given(decode, explicit.get("decode") or {}), _given(prefill, explicit.get("prefill") or {})


def _checked_config(config: Any) -> Mapping[str, Mapping[str, Any]]:
    """Source: ``cuda_graph_config.parse_cuda_graph_config_arg``; it takes any value of a size, and fails later."""
    if not isinstance(config, Mapping):
        raise _bad_config("is not a JSON object")
    for phase, settings in config.items():
        if phase not in _CONFIG_KEYS:
            raise _bad_config(f"has an unknown phase {shown(phase)}: it takes {' and '.join(_CONFIG_KEYS)}")
        if not isinstance(settings, Mapping):
            raise _bad_config(f"{phase} is not a JSON object")
        for key, value in settings.items():
            if key not in _CONFIG_KEYS[phase]:
                raise _bad_config(f"{phase} has an unknown key {shown(key)}: it takes {', '.join(_CONFIG_KEYS[phase])}")
            if not _right_setting(key, value):
                raise _bad_config(f"{phase}.{key} is {shown(value)}")
    return config


def _right_setting(key: str, value: Any) -> bool:
    if key == "backend":
        return value in _BACKENDS
    if key == "bs":
        return value is None or (isinstance(value, list) and bool(value) and all(map(_is_size, value)))
    return value is None or _is_size(value)


def _is_size(value: Any) -> bool:
    return type(value) is int and abs(value) <= LARGEST


def _bad_config(problem: str) -> DeploymentError:
    return rejected(
        "--cuda-graph-config",
        problem,
        """--cuda-graph-config '{"decode": {"backend": "full", "max_bs": 256}}'""",
        source="cuda_graph_config.parse_cuda_graph_config_arg",
    )


def _given(phase: Phase, values: Mapping[str, Any]) -> Phase:
    for name in ("backend", "max_bs", "bs"):
        value = values.get(name)
        if value is not None:
            phase = phase.given(**{name: tuple(value) if name == "bs" else value})
    return phase


def apply_compatibility(prefill: Phase, arguments: ServerArguments, *, is_multimodal: bool, attn_cp_size: int) -> Phase:
    """Prefill graphs are off by default where they are not validated; an explicit backend is kept.

    Source: ``cuda_graph_hook.apply_cuda_graph_compatibility`` and ``disable_breakable_cudagraph_if_incompatible``.
    """
    if "backend" in prefill.locked or prefill.backend != "breakable":
        return prefill
    incompatible = (
        arguments.pp_size > 1
        or attn_cp_size > 1
        or arguments.dcp_size > 1
        or arguments.enable_two_batch_overlap
        or arguments.moe_a2a_backend not in _FULL_PREFILL_A2A
        or is_multimodal
    )
    return replace(prefill, backend="disabled") if incompatible else prefill


def apply_disaggregation(decode: Phase, prefill: Phase, mode: str) -> tuple[Phase, Phase]:
    """A prefill worker captures no decode graphs, a decode worker no prefill graphs, unless told to.

    Source: ``cuda_graph_hook.apply_cuda_graph_disaggregation_roles``.
    """
    if mode == "prefill" and "backend" not in decode.locked:
        decode = replace(decode, backend="disabled")
    if mode == "decode" and "backend" not in prefill.locked:
        prefill = replace(prefill, backend="disabled")
    return decode, prefill


def deepep_prefill(prefill: Phase, a2a_backend: str) -> Phase:
    """DeepEP under breakable graphs needs multiples of 8. Source: ``cuda_graph_hook.apply_deepep_adjustments``."""
    if a2a_backend != "deepep" or prefill.backend != "breakable":
        return prefill
    sizes = prefill.bs if prefill.bs is not None else prefill_sizes(prefill.max_bs or 2048)
    aligned = tuple(sorted({ceil_to(size, 8) for size in sizes}))
    if aligned == tuple(sorted(sizes)):
        return prefill
    return replace(prefill, bs=aligned, max_bs=aligned[-1])


def decode_sizes(max_bs: int, *, padding: bool, speculative: bool) -> tuple[int, ...]:
    """Decode batch sizes up to ``max_bs``, in requests. Source: ``generate_decode_cuda_graph_batch_sizes``."""
    if max_bs > _LARGEST_BS:
        raise DeploymentError(
            f"CUDA graphs for {max_bs} requests are not planned: the list of sizes ends at {_LARGEST_BS}",
            code="bad-value",
            where="--cuda-graph-max-bs-decode",
            hint="--cuda-graph-max-bs-decode 512",
        )
    sizes: Iterable[int]
    if not padding:
        sizes = range(1, max_bs + 1)
    elif speculative:
        sizes = (
            *range(1, 9),
            *range(10, 33, 2),
            *range(40, 65, 4),
            *range(72, 257, 8),
            *range(272, max_bs + 1, 16),
        )
    else:
        sizes = (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, max_bs + 1, 32))
    kept = [size for size in sizes if size <= max_bs]
    return tuple(kept if max_bs in kept else [*kept, max_bs])


def prefill_sizes(max_bs: int) -> tuple[int, ...]:
    """Prefill sizes up to ``max_bs``, in tokens. Source: ``generate_prefill_cuda_graph_batch_sizes``."""
    sizes = (
        *range(4, 33, 4),
        *range(48, 257, 16),
        *range(288, 513, 32),
        *range(576, 1025, 64),
        *range(1280, 4097, 256),
        *range(4608, max_bs + 1, 512),
    )
    return tuple(size for size in sizes if size <= max_bs)


def capture_sizes(
    sizes: Iterable[int], *, pool: int, alignment: int, tokens_per_request: int
) -> tuple[int, ...] | None:
    """Decode sizes that are captured, in requests; None where the server fails since none can be.

    Source: ``base_cuda_graph_runner.get_batch_sizes_to_capture``.
    """
    candidates = list(sizes)
    limit = ceil_to(pool, alignment)
    if candidates and max(candidates) > limit:
        candidates.append(limit)
    kept = sorted({bs for bs in candidates if bs * tokens_per_request % alignment == 0 and bs <= limit})
    return tuple(kept) if kept and kept[0] > 0 else None


def ceil_to(value: int, step: int) -> int:
    """Smallest multiple of ``step`` >= value."""
    return -(-value // step) * step
