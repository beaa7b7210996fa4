"""Rows of each start-up pass against the buffers that must hold them: per rank, and after the gather.

Sources: SGLang 0.5.23, ``model_executor/runner/base_runner.py:_dummy_run``, ``layers/dp_attention.py``,
``layers/logits_processor.py`` and ``layers/moe/token_dispatcher/flashinfer.py``.
"""

from __future__ import annotations

from autotune_planner.engines.resolved import Resolved
from autotune_planner.ops.tensors import ITEM_BYTES
from autotune_planner.plan.buffers import Buffer, decode_buffers, extend_buffers, sweep_buffers
from autotune_planner.plan.workspaces import workspaces
from autotune_planner.values import dataclass


@dataclass(frozen=True)
class RowCheck:
    """``rows`` of one pass against a buffer of ``capacity`` rows and ``bytes``; ``rule`` is the place that compares."""

    pass_name: str
    buffer: str
    capacity: int
    rows: int
    bytes: int
    rule: str

    @property
    def fits(self) -> bool:
        return self.rows <= self.capacity


def row_checks(resolved: Resolved) -> tuple[RowCheck, ...]:
    """Checks of every pass of the target model that runs. The draft model's runners size their own buffers."""
    checks: list[RowCheck] = []
    for decision in resolved.passes:
        tokens, requests = decision.tokens_per_rank, decision.batch_size
        if not decision.run or decision.name == "draft" or tokens is None or requests is None:
            continue
        buffers = decode_buffers(resolved) if decision.name == "decode" else extend_buffers(resolved)
        gathered = decision.dp_buffer_rows
        checks += _of_dummy(resolved, decision.name, buffers, requests, tokens, gathered)
    for warmup in resolved.warmups:
        if warmup.name == "deep_gemm_pp" and warmup.run:
            largest = warmup.m[-1]
            gathered = _gathered(resolved, largest)
            buffers = sweep_buffers(resolved)
            checks += _of_dummy(resolved, warmup.name, buffers, largest, largest, gathered)
            if warmup.logits_rows is not None:
                checks.append(_logits(warmup.name, buffers, warmup.logits_rows))
    return tuple(checks)


def _of_dummy(
    resolved: Resolved,
    name: str,
    buffers: tuple[Buffer, ...],
    requests: int,
    tokens: int,
    gathered: int | None,
) -> list[RowCheck]:
    by_name = {buffer.name: buffer for buffer in buffers}
    checks = [
        RowCheck(name, found.name, found.shape[0], rows, found.bytes, "base_runner._dummy_run")
        for found, rows in ((by_name["input_ids"], tokens), (by_name["seq_lens"], requests))
    ]
    if gathered is not None:
        # Allocated anew for each gather, at the sum of the announced tokens.
        size = gathered * resolved.hidden_size * ITEM_BYTES[resolved.dtype.removeprefix("torch.")]
        checks.append(RowCheck(name, "dp_buffer", gathered, gathered, size, "dp_attention.set_dp_buffer_len"))
    per_source = -(-tokens // resolved.arguments.attn_tp_size)
    checks += [
        RowCheck(name, found.name, found.rows, per_source, found.bytes, "FlashinferDispatcher.dispatch")
        for found in workspaces(resolved)
    ]
    return checks


def _logits(name: str, buffers: tuple[Buffer, ...], rows: int) -> RowCheck:
    """More rows than the buffer has do not go through it: the server makes another tensor for them."""
    found = next(buffer for buffer in buffers if buffer.name == "next_token_logits_buffer")
    return RowCheck(name, found.name, found.shape[0], rows, found.bytes, "LogitsProcessor._get_logits")


def _gathered(resolved: Resolved, tokens: int) -> int | None:
    if resolved.runtime.require_mlp_tp_gather:
        return tokens * resolved.arguments.num_dp_ranks
    return tokens if resolved.runtime.require_attn_tp_gather else None
