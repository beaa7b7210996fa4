"""Peak GPU memory of one rank, in bytes: of the server's start-up passes, and of tuning one work unit.

Sums of named terms, each an upper estimate of what is allocated at once. Weights, KV cache, CUDA context and compiled
modules are the server's own matter and left out of a pass; a work unit counts the weights, which are ours.
"""

from __future__ import annotations

from typing import Literal

from autotune_planner.engines.resolved import OpUse, Resolved
from autotune_planner.ops.base import OpCall
from autotune_planner.ops.tensors import ITEM_BYTES, bytes_of, random_fill_peak
from autotune_planner.plan.buckets import server_buckets
from autotune_planner.plan.buffers import (
    Buffer,
    BufferUse,
    buffer_uses,
    decode_buffers,
    extend_buffers,
    sweep_buffers,
    total_bytes,
)
from autotune_planner.plan.plan import WorkUnit
from autotune_planner.plan.rows import RowCheck, row_checks
from autotune_planner.plan.workspaces import workspaces
from autotune_planner.values import dataclass

Term = tuple[str, int]
_LOGITS = "next_token_logits_buffer"
_PROFILER = "FlashInfer's profiler"
_CHECK = "check of the winner"
_BFLOAT16 = 2
_LARGEST_L2 = 128 << 20  # of the GPUs in profiles


@dataclass(frozen=True)
class PassMemory:
    """``terms`` are (what, bytes)."""

    name: str
    terms: tuple[Term, ...]

    @property
    def total(self) -> int:
        return sum(size for _, size in self.terms)


def pass_memories(resolved: Resolved) -> tuple[PassMemory, ...]:
    """Every pass of the target model that runs: the sets that are allocated, workspaces, activations of one layer."""
    checks = row_checks(resolved)
    return tuple(
        _pass_memory(resolved, use, [check for check in checks if check.pass_name == use.pass_name])
        for use in buffer_uses(resolved)
        if use.set != "cuda_graph"
    )


def unit_memory(unit: WorkUnit) -> PassMemory:
    """Tuning one work unit: the op's weights, the call at M = bucket, and the larger of what FlashInfer allocates to
    profile it and what the check of its winner takes after that, while the runner keeps its profiler workspace."""
    call, bucket = unit.call, unit.bucket
    terms = [("weights", call.weight_bytes()), *_call(call, bucket)]
    profiling = profiling_bytes(call, unit.custom_op, bucket)
    kept, check = call.profiler_bytes(unit.custom_op, bucket), call.check_bytes(bucket)
    larger = [(_PROFILER, profiling)] if profiling >= kept + check else [(_PROFILER, kept), (_CHECK, check)]
    return PassMemory(unit.id, (*terms, *larger))


def profiling_bytes(call: OpCall, custom_op: str, bucket: int) -> int:
    """What the tuner holds at most while it profiles one bucket, beside the call's own tensors.

    Its random tensors are drawn in float32 first. A runner makes its profiler workspace anew for each bucket and lets
    go of the one before only then. An op that is measured with a cold L2 cache has copies of its inputs that fill three
    such caches, and a buffer of two to flush; the others have neither. Source: FlashInfer 0.7.2, ``autotuner.py`` and
    ``flashinfer_cutlass_fused_moe_binding.cu``.
    """
    made = call.tuner_inputs(bucket)
    before = max(call.profiler_bytes(name, bucket) for name in call.custom_ops)
    cold = 5 * _LARGEST_L2 if call.cold_l2 else 0
    return before + cold + max(random_fill_peak(made), bytes_of(made) + call.profiler_bytes(custom_op, bucket))


def _pass_memory(resolved: Resolved, use: BufferUse, checks: list[RowCheck]) -> PassMemory:
    sets = {"decode": decode_buffers, "extend": extend_buffers, "deep_gemm_pp": sweep_buffers}
    terms: list[Term] = []
    for name in use.alive:
        terms += _set(name, sets[name](resolved))
    terms += [(workspace.name, workspace.bytes) for workspace in workspaces(resolved)]
    item = ITEM_BYTES[resolved.dtype.removeprefix("torch.")]
    for check in checks:
        if check.buffer == "input_ids":
            terms.append(("hidden states and residual", 2 * check.rows * resolved.hidden_size * item))
        elif check.buffer == "dp_buffer":
            terms.append(("gathered hidden states", check.bytes))
        elif check.buffer == _LOGITS:
            terms.append(("LM head logits", check.rows * resolved.vocab_size * _BFLOAT16))
    if use.set in ("decode", "extend"):
        terms += _activations(resolved.ops, "decode" if use.set == "decode" else "extend")
    return PassMemory(use.pass_name, tuple(terms))


def _set(name: str, buffers: tuple[Buffer, ...]) -> list[Term]:
    logits = sum(buffer.bytes for buffer in buffers if buffer.name == _LOGITS)
    rest = total_bytes(buffers, "cuda") - logits
    return [(f"{name} set", rest), *([(f"{name} set, float32 logits", logits)] if logits else [])]


def _activations(uses: tuple[OpUse, ...], name: Literal["decode", "extend"]) -> list[Term]:
    """The largest op that the pass reaches, and the largest profile that it makes of any."""
    reached = [(use, use.decode_pass_rows if name == "decode" else use.extend_pass_rows) for use in uses]
    found = [(use, rows) for use, rows in reached if rows is not None]
    if not found:
        return []
    largest = max(
        ([(f"{use.layer}: {what}", size) for what, size in _call(use.call, rows)] for use, rows in found),
        key=lambda terms: sum(size for _, size in terms),
    )
    tuned = [(use.call, server_buckets(rows, use.call.bound_of(rows))) for use, rows in found]
    profiler = max(
        (profiling_bytes(call, op, buckets[-1]) for call, buckets in tuned if buckets for op in call.custom_ops),
        default=0,  # a prefill budget of 0 or less bounds the buckets to none
    )
    return [*largest, (_PROFILER, profiler)]


def _call(call: OpCall, m: int) -> list[Term]:
    return [("inputs", bytes_of(call.inputs(m))), ("output", call.output(m).bytes), *call.scratch(m)]
