"""Buffers that are sized for one rank's own rows, against the rows that the start-up passes send or gather.

Sources: ``layers/moe/token_dispatcher/flashinfer.py``, ``layers/logits_processor.py``,
``layers/deep_gemm_wrapper/compile_utils.py``. The DECODE dummy over A2A has its own notice, ``a2a-overflow``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune_planner.engines.resolved import Arguments, Notice, PassDecision, Runtime, Warmup
from autotune_planner.engines.sglang_0_5_23 import notices


def local_row_notices(
    arguments: Arguments,
    runtime: Runtime,
    passes: Sequence[PassDecision],
    warmups: Sequence[Warmup],
    vocab_size: int,
) -> tuple[Notice, ...]:
    """Every such buffer that is too small or beside which a gathered one is made."""
    dummies = [("EXTEND dummy", found.tokens_per_rank or 0) for found in passes if found.name == "extend" and found.run]
    dummies += [("DeepGEMM sweep", found.m[-1]) for found in warmups if found.name == "deep_gemm_pp" and found.run]
    found = [*_dispatched(arguments, dummies), *_short_list(arguments, runtime, warmups)]
    found += [notices.gathered_logits(warmup.m[-1], warmup.logits_rows, vocab_size) for warmup in warmups if warmup.m]
    return tuple(notice for notice in found if notice is not None)


def _dispatched(arguments: Arguments, dummies: list[tuple[str, int]]) -> Iterator[Notice | None]:
    if arguments.moe_a2a_backend != "flashinfer":
        return
    capacity = arguments.flashinfer_a2a_max_dispatch_tokens_per_rank
    for name, tokens in dummies:
        yield notices.a2a_rows(name, -(-tokens // arguments.attn_tp_size), capacity)


def _short_list(arguments: Arguments, runtime: Runtime, warmups: Sequence[Warmup]) -> Iterator[Notice | None]:
    """DeepGEMM's list follows the chunk of one rank, its layers the gathered rows."""
    if not runtime.require_mlp_tp_gather or arguments.moe_a2a_backend != "none":
        return
    if arguments.disaggregation_mode == "decode":
        return
    for warmup in warmups:
        if warmup.name == "deep_gemm" and warmup.run:
            rows = arguments.autotune_extend_ceiling * arguments.num_dp_ranks
            yield notices.deep_gemm_list_short(warmup.m[-1], arguments.autotune_extend_ceiling, rows)
