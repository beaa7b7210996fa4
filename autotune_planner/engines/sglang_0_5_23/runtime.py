"""Sizes that the server computes while its runners are built. Sources: ``mem_cache/kv_cache_configurator.py``,
``model_executor/runner/eager_runner.py``, ``model_executor/runner/base_runner.py``."""

from __future__ import annotations

from autotune_planner.engines.sglang_0_5_23.cuda_graph import ceil_to
from autotune_planner.errors import DeploymentError

_POOL_CAP, _POOL_FLOOR = 4096, 2048


def assumed_token_capacity(context_len: int) -> int:
    """KV tokens per rank where nobody knows them: enough for the largest default pool, 8 contexts."""
    return 8 * context_len


def max_num_requests(
    max_running_requests: int | None, *, attn_dp_size: int, token_capacity: int, context_len: int
) -> int:
    """Requests of one DP worker. Source: ``kv_cache_configurator.resolve_max_num_reqs``.

    The cap of 4096 and the floor of 2048 hold only where no number is given.
    """
    if max_running_requests is not None:
        wanted = max(1, max_running_requests // attn_dp_size)
    else:
        wanted = max(min(int(token_capacity / context_len * 512), _POOL_CAP), _POOL_FLOOR)
    return min(wanted, token_capacity // 2)


def check_requests(requests: int, token_capacity: int, where: str | None) -> None:
    """Source: ``tp_worker.TpModelWorker``, which asserts it after the pools are allocated."""
    if requests < 1:
        raise DeploymentError(
            f"kv_token_capacity {token_capacity} leaves no room for a request, which takes 2 KV tokens or more "
            "(SGLang: tp_worker.TpModelWorker)",
            code="server-rejects",
            where=where or "--kv-token-capacity",
            hint="write max_total_num_tokens of the server's log, such as 1000000",
        )


def eager_max_bs(requests: int, *, mlp_sync: bool, attn_tp_size: int, cp_padding: int = 1) -> int:
    """Requests of the eager decode dummy, aligned for MLP sync. Source: ``utils/common.get_eager_max_batch_size``."""
    return ceil_to(ceil_to(requests, attn_tp_size), cp_padding) if mlp_sync else requests


def decode_tokens_per_request(algorithm: str | None, num_draft_tokens: int | None) -> int:
    """Tokens of a request in the decode dummy: every drafted token is verified at once."""
    return (num_draft_tokens or 1) if algorithm else 1


def moe_rows(tokens: int, *, dp_ranks: int, mlp_gather: bool, a2a_backend: str, attn_tp_size: int, ep_size: int) -> int:
    """Rows that one rank's MoE runs when every rank sends ``tokens``. Source: ``base_runner._dummy_run`` and the
    token dispatchers. FlashInfer's all-to-all receives from every expert rank; without one the rows are gathered."""
    if a2a_backend == "flashinfer":
        return ep_size * -(-tokens // attn_tp_size)
    if a2a_backend != "none":
        return -(-tokens // attn_tp_size)
    return tokens * dp_ranks if mlp_gather else tokens
