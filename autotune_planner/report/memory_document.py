"""``warmups``, ``buffers``, ``row_checks`` and ``memory`` of the ``autotune-plan/plan@1`` document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from autotune_planner.engines.resolved import Resolved, Warmup
from autotune_planner.plan.buffers import (
    Buffer,
    BufferUse,
    buffer_uses,
    decode_buffers,
    extend_buffers,
    sweep_buffers,
    total_bytes,
)
from autotune_planner.plan.memory import PassMemory, pass_memories, unit_memory
from autotune_planner.plan.plan import Plan
from autotune_planner.plan.rows import row_checks


def warmup_document(warmup: Warmup) -> dict[str, Any]:
    """``m`` is whole: up to 131072 sizes."""
    return {
        "name": warmup.name,
        "run": warmup.run,
        "reason": warmup.reason,
        "m": list(warmup.m),
        "count": len(warmup.m),
        "modes": list(warmup.modes),
        "logits_rows": warmup.logits_rows,
    }


def buffers_document(resolved: Resolved) -> dict[str, Any]:
    """Every set, and who uses it; the totals are those of the DECODE set, the only one that every server allocates."""
    sets = {
        "decode": decode_buffers(resolved),
        "extend": extend_buffers(resolved),
        "deep_gemm_pp": sweep_buffers(resolved),
    }
    return {
        **{name: [_buffer(buffer) for buffer in buffers] for name, buffers in sets.items()},
        "gpu_bytes": total_bytes(sets["decode"], "cuda"),
        "host_bytes": total_bytes(sets["decode"], "cpu"),
        "reuse": [_use(use, sets.get(use.set)) for use in buffer_uses(resolved)],
    }


def row_checks_document(resolved: Resolved) -> list[dict[str, Any]]:
    return [
        {
            "pass": check.pass_name,
            "buffer": check.buffer,
            "capacity": check.capacity,
            "rows": check.rows,
            "fits": check.fits,
            "bytes": check.bytes,
            "rule": check.rule,
        }
        for check in row_checks(resolved)
    ]


def memory_document(plan: Plan) -> dict[str, Any]:
    """Peaks by pass, and of the work unit that needs most."""
    units = [unit_memory(unit) for unit in plan.units]
    largest = max(units, key=lambda memory: memory.total, default=None)
    return {
        "passes": [_memory("pass", memory) for memory in pass_memories(plan.resolved)],
        "largest_work_unit": None if largest is None else _memory("unit", largest),
    }


def _buffer(buffer: Buffer) -> dict[str, Any]:
    return {**asdict(buffer), "bytes": buffer.bytes}


def _use(use: BufferUse, buffers: tuple[Buffer, ...] | None) -> dict[str, Any]:
    """Bytes are None for the draft model's graph buffers, which are not planned."""
    return {
        "pass": use.pass_name,
        "set": use.set,
        "alive": list(use.alive),
        "gpu_bytes": None if buffers is None else total_bytes(buffers, "cuda"),
        "host_bytes": None if buffers is None else total_bytes(buffers, "cpu"),
    }


def _memory(kind: str, memory: PassMemory) -> dict[str, Any]:
    terms = [{"what": what, "bytes": size} for what, size in memory.terms]
    return {kind: memory.name, "terms": terms, "total": memory.total}
