"""Parallel sizes and the division of the chunk. Sources: ``arg_groups/parallel_hook.py``, ``runtime_context.py``."""

from __future__ import annotations

import math
from dataclasses import replace

from autotune_planner.engines.resolved import Rank
from autotune_planner.engines.sglang_0_5_23.arguments import ServerArguments
from autotune_planner.engines.sglang_0_5_23.rejection import rejected
from autotune_planner.errors import DeploymentError
from autotune_planner.values import dataclass

_CHUNK_GROWTH = 1.25
_MOST_RANKS = 65536


def attention_dp_alias(arguments: ServerArguments) -> ServerArguments:
    """``--dp-size N --enable-dp-attention`` means ``--attn-dp-size N``; dp_size then counts replicas again.

    Source: ``parallel_hook.handle_deprecated_dp_attention``.
    """
    if arguments.enable_dp_attention and arguments.attn_dp_size == 1:
        return replace(arguments, attn_dp_size=arguments.dp_size, dp_size=1)
    return arguments


def check_positive(arguments: ServerArguments) -> None:
    """Only attention DP has a check of its own (``parallel_hook.handle_data_parallelism``): the server divides by the
    others, or starts no process at all."""
    for name in ("tp_size", "attn_dp_size", "dp_size", "pp_size", "ep_size", "attn_cp_size", "moe_dp_size", "nnodes"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            flag = "--" + name.replace("_", "-")
            raise rejected(flag, f"must be positive, got {value}", f"{flag} 1", source="server_args")
    if (arguments.context_length or 0) < 0:
        given = f"must be positive, got {arguments.context_length}"
        raise rejected("--context-length", given, "--context-length 4096, or leave it out", source="server_args")


def check_sizes(arguments: ServerArguments) -> None:
    """Source: ``parallel_hook.handle_data_parallelism``."""
    source = "parallel_hook.handle_data_parallelism"
    tp, attn_dp = arguments.tp_size, arguments.attn_dp_size
    _check_world(arguments)
    if attn_dp > 1 and arguments.dp_size > 1:
        raise rejected(
            "--dp-size",
            f"{arguments.dp_size} replicas cannot be combined with {attn_dp} attention-DP groups",
            "leave --dp-size at 1 next to --attn-dp-size",
            source=source,
        )
    if attn_dp > 1 and tp % attn_dp != 0:
        divisors = [size for size in range(1, tp + 1) if tp % size == 0]
        raise rejected(
            "--dp-size",
            f"tp_size {tp} is not divisible by {attn_dp} attention-DP groups",
            f"one of {', '.join(map(str, divisors))} with --tp-size {tp}",
            source=source,
        )


def _check_world(arguments: ServerArguments) -> None:
    """No rule of the server: it would start a process for each rank, and a plan lists a file for each."""
    sizes = {"--tp-size": arguments.tp_size, "--pp-size": arguments.pp_size, "--dp-size": arguments.dp_size}
    if math.prod(sizes.values()) > _MOST_RANKS:
        flag = max(sizes, key=lambda name: sizes[name])
        raise DeploymentError(
            f"{flag} {sizes[flag]} makes more than {_MOST_RANKS} ranks, and no server has as many",
            code="too-many-ranks",
            where=flag,
            hint=f"{flag} 8",
        )


def divided_chunk(chunk: int, attn_dp_size: int) -> int:
    """Chunk per rank, in tokens: a floor division, not a clamp, without alignment; -1 stays -1.

    Source: ``parallel_hook.handle_data_parallelism``.
    """
    return chunk // attn_dp_size if attn_dp_size > 1 else chunk


def max_prefill_buffer_tokens(chunk: int, max_prefill_tokens: int, *, dynamic_chunking: bool, pp_size: int) -> int:
    """Tokens of a rank's prefill buffers; 0 with chunked prefill off.

    Source: ``runtime_context.max_prefill_buffer_tokens``. Dynamic chunking counts only with pipeline parallelism.
    """
    tokens = max(chunk, 0)
    if dynamic_chunking and pp_size > 1 and tokens:
        return max(tokens, max_prefill_tokens, math.ceil(_CHUNK_GROWTH * tokens))
    return tokens


def extend_ceiling(buffer_tokens: int, max_prefill_tokens: int) -> int:
    """EXTEND budget of a rank, in tokens: max_prefill_tokens where chunked prefill is off.

    Source: ``runner/flashinfer_autotune.maybe_flashinfer_autotune_extend``.
    """
    return buffer_tokens or max_prefill_tokens


@dataclass(frozen=True)
class Gathers:
    """Which collectives surround a layer; they decide what the MoE of a rank sees in a dummy run."""

    require_mlp_tp_gather: bool
    require_attn_tp_gather: bool

    @property
    def require_gathered_buffer(self) -> bool:
        return self.require_mlp_tp_gather or self.require_attn_tp_gather


def gathers(
    *,
    attn_dp_size: int,
    tp_size: int,
    moe_dense_tp_size: int | None,
    enable_dp_lm_head: bool,
    a2a_backend: str,
    disable_attn_tp_gather: bool,
) -> Gathers:
    """Source: ``utils/common.require_mlp_tp_gather`` and ``require_attn_tp_gather``."""
    attn_dp = attn_dp_size > 1
    mlp = attn_dp and (
        moe_dense_tp_size is None
        or not enable_dp_lm_head
        or a2a_backend in ("none", "flashinfer", "flashinfer_megamoe")
        or moe_dense_tp_size > tp_size // attn_dp_size
    )
    scattered = a2a_backend != "none" or moe_dense_tp_size is not None
    attention = scattered and (attn_dp_size < tp_size if attn_dp else True)
    return Gathers(mlp, attention and not disable_attn_tp_gather)


def cuda_graph_alignment(
    *, gathered_buffer: bool, attn_tp_size: int, attn_cp_size: int, two_batch_overlap: bool
) -> int:
    """Batch sizes of decode graphs are multiples of this. Source: ``get_cuda_graph_batch_size_alignment``."""
    alignment = (2 if two_batch_overlap else 1) * (attn_tp_size if gathered_buffer else 1)
    return alignment if alignment % attn_cp_size == 0 else alignment * attn_cp_size


def check_page_size(chunk: int, page_size: int, disaggregation_mode: str) -> None:
    """The chunk per rank must be whole pages. Source: ``validation_hook.check_server_args``."""
    source = "validation_hook.check_server_args"
    if page_size < 1:
        raise rejected("--page-size", f"must be positive, got {page_size}", "--page-size 1", source=source)
    if chunk > 0 and disaggregation_mode != "decode" and chunk % page_size:
        down, up = chunk // page_size * page_size, -(-chunk // page_size) * page_size
        raise rejected(
            "--chunked-prefill-size",
            f"{chunk} tokens per rank are not divisible by page_size {page_size}",
            f"{down or up} or {up} tokens per rank (times the attention-DP size), or another --page-size",
            source=source,
        )


def check_dense_tp(moe_dense_tp_size: int | None, tp_size: int) -> None:
    """Source: ``validation_hook.check_server_args``."""
    if moe_dense_tp_size not in (None, 1, tp_size):
        raise rejected(
            "--moe-dense-tp-size",
            f"only 1 or tp_size ({tp_size}) is supported, got {moe_dense_tp_size}",
            "--moe-dense-tp-size 1, or leave it out",
            source="validation_hook.check_server_args",
        )


def ranks_of(tp: int, pp: int, attn_dp: int, replicas: int) -> tuple[Rank, ...]:
    """Every rank of a deployment, with the dp index that its file name carries.

    Under DP attention that is the attention-DP rank, blocks of ``tp / attn_dp`` neighbours (tp 8, attn_dp 2: tp0-3 are
    dp0, tp4-7 are dp1); otherwise the replica (``replicas`` = dp_size), 0 for a single one.
    """
    from autotune_planner.engines.resolved import Rank

    if attn_dp > 1:
        return tuple(Rank(t, p, t // (tp // attn_dp)) for p in range(pp) for t in range(tp))
    return tuple(Rank(t, p, d) for d in range(replicas) for p in range(pp) for t in range(tp))
