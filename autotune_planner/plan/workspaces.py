"""Workspaces that the server holds beside its dummy buffers. All sizes in bytes.

Source: FlashInfer 0.7.2, ``comm/trtllm_moe_alltoall.py`` and its C++ ``moeAlltoAll`` workspace layout; SGLang 0.5.23,
``layers/moe/token_dispatcher/flashinfer.py``.
"""

from __future__ import annotations

from autotune_planner.engines.resolved import Resolved
from autotune_planner.values import dataclass

_ALIGN = 128
_MAX_TOP_K = 22  # kMaxTopK of the kernel: each token keeps that many 4-byte slots
_INT, _FLOAT = 4, 4


@dataclass(frozen=True)
class Workspace:
    """``rows`` is the capacity in tokens per rank."""

    name: str
    bytes: int
    rows: int
    formula: str


def a2a_workspace(*, ep: int, tokens: int, hidden_size: int, top_k: int, eplb_experts: int = 0) -> Workspace:
    """FlashInfer's MoE all-to-all workspace of one rank, bfloat16 dispatch.

    A token travels as its hidden state (2 bytes an element), expert ids and weights (8 bytes a choice), and comes back
    as a hidden state; the auxiliary part holds counters, completion flags and two send lists.
    """
    dispatch, combine = 2 * hidden_size + (_INT + _FLOAT) * top_k, 2 * hidden_size
    aux = _aligned(8 + 8 * ep)
    aux = _aligned(aux + 4 * ep)
    aux = _aligned(aux + 4 * ep)
    for _ in range(2):
        aux = _aligned(aux + _INT * _MAX_TOP_K * tokens)
    aux = _aligned(aux + 4 * ep * eplb_experts)
    size = _aligned(aux) + _aligned(ep * tokens * dispatch) + _aligned(ep * tokens * combine)
    formula = f"aux {aux} + {ep} x {tokens} x ({dispatch} dispatch + {combine} combine), each rounded up to {_ALIGN}"
    return Workspace("flashinfer_a2a", size, tokens, formula)


def workspaces(resolved: Resolved) -> tuple[Workspace, ...]:
    """Workspaces of one rank of a deployment."""
    arguments = resolved.arguments
    top_k = int(resolved.model.text_config.get("num_experts_per_tok") or 0)
    if arguments.moe_a2a_backend != "flashinfer":
        return ()
    return (
        a2a_workspace(
            ep=arguments.moe_ep_size,
            tokens=arguments.flashinfer_a2a_max_dispatch_tokens_per_rank,
            hidden_size=resolved.hidden_size,
            top_k=top_k,
        ),
    )


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
