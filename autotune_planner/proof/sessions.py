"""Which calls a server makes of its ops, and at which sizes: what a proof has to replay. Pure arithmetic.

A process keeps the bucket bounds that it meets (FlashInfer 0.7.2, ``MoERunner.refine_tuning_config``: cached by value,
kept on the class), so each session is a process of its own and has one bound, but for the one that shows what happens
where a server changes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from autotune_planner.engines.resolved import OpUse, Resolved
from autotune_planner.ops.base import OpCall
from autotune_planner.ops.cutlass_fused_moe import CutlassFusedMoe
from autotune_planner.plan.buckets import next_power_of_two
from autotune_planner.plan.plan import Plan
from autotune_planner.proof.replay import Step

OFF_BUCKET = (24, 200, 700, 1536, 3000, 6000, 8064)
"""Sizes, in tokens, beside the buckets and the limits of a deployment."""


@dataclass(frozen=True)
class Session:
    """The steps of one process. ``capture order``: the server's own order of sizes, of which a decode worker of
    prefill-decode disaggregation makes bounds."""

    purpose: Literal["serving", "capture order"]
    steps: tuple[Step, ...]


def sessions(plan: Plan) -> tuple[Session, ...]:
    """Every call at the sizes of the server's passes, then at every planned and off-bucket size that it reaches."""
    resolved = plan.resolved
    by_process: dict[object, list[Step]] = {}
    for call, sizes in _sizes(plan).items():
        for m in sizes:
            step = Step(call_at(resolved, call, m), m)
            by_process.setdefault(_process_of(resolved, step), []).append(step)
    unbounded = by_process.pop(None, [])
    groups = list(by_process.values()) or [[]]
    groups[0] = [*groups[0], *unbounded]
    found = [Session("serving", tuple(group)) for group in groups if group]
    captured = _capture_order(resolved)
    return (*found, Session("capture order", captured)) if captured else tuple(found)


def call_at(resolved: Resolved, call: OpCall, m: int) -> OpCall:
    """The call that the server makes with M = m.

    On a decode worker the bound of the CUTLASS MoE follows M. Source: SGLang 0.5.23,
    ``moe_runner/flashinfer_cutlass.py:_cutlass_moe_tune_max_num_tokens``.
    """
    if isinstance(call, CutlassFusedMoe) and _bound_follows_m(resolved):
        return replace(call, tune_max_num_tokens=next_power_of_two(m))
    return call


def reached(use: OpUse) -> int:
    """The largest M of an op, in the server's passes and in production."""
    return max(_rows(use))


def _bound_follows_m(resolved: Resolved) -> bool:
    return resolved.arguments.disaggregation_mode == "decode"


def _process_of(resolved: Resolved, step: Step) -> object:
    """Steps of equal value share a process; None fits beside any bound."""
    bound = step.call.tune_max
    if bound is None:
        return None
    return (step.m,) if _bound_follows_m(resolved) else bound


def _sizes(plan: Plan) -> dict[OpCall, tuple[int, ...]]:
    """Sizes of each distinct call: those of the server's passes first, as it makes them, the others ascending."""
    found: dict[OpCall, tuple[int, ...]] = {}
    for use in plan.resolved.ops:
        buckets = {bucket for op in plan.ops if op.call == use.call for bucket in op.buckets}
        passes = [rows for rows in (use.decode_pass_rows, use.extend_pass_rows) if rows]
        others = sorted(m for m in {*buckets, *OFF_BUCKET, *_rows(use)} if m <= reached(use))
        found[use.call] = tuple(dict.fromkeys((*found.get(use.call, ()), *passes, *others)))
    return found


def _rows(use: OpUse) -> list[int]:
    return [rows for rows in (use.decode_pass_rows, use.extend_pass_rows, use.decode_rows, use.prefill_rows) if rows]


def _capture_order(resolved: Resolved) -> tuple[Step, ...]:
    """A decode worker from start: its pass, its CUDA graphs largest first, then eager calls, largest first.

    Empty where the bound does not follow M and where no graphs are captured. Source: SGLang 0.5.23,
    ``runner/decode_cuda_graph_runner.py``, which captures in descending order.
    """
    graphs = resolved.runtime.capture_bs if resolved.arguments.cuda_graph_decode.backend != "disabled" else None
    if not _bound_follows_m(resolved) or not graphs:
        return ()
    return tuple(
        step
        for use in resolved.ops
        if isinstance(use.call, CutlassFusedMoe) and use.decode_pass_rows
        for step in _of_worker(resolved, use, use.decode_pass_rows, graphs)
    )


def _of_worker(resolved: Resolved, use: OpUse, first: int, graphs: Iterable[int]) -> Iterator[Step]:
    runtime = resolved.runtime

    def rows(requests: int) -> int:
        tokens = requests * runtime.decode_num_tokens_per_req
        return -(-tokens * first // runtime.decode_autotune_tokens)

    yield Step(call_at(resolved, use.call, first), first)
    for m in sorted({rows(requests) for requests in graphs}, reverse=True):
        yield Step(call_at(resolved, use.call, m), m, "capture")
    for m in sorted({*OFF_BUCKET, reached(use)}, reverse=True):
        if m <= reached(use):
            yield Step(call_at(resolved, use.call, m), m, "eager")
