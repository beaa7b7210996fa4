"""Start-up memory and warm-ups of a plan, for people: small tables; the JSON document has every buffer and term."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import ConsoleRenderable
from rich.table import Table
from rich.text import Text

from autotune_planner.engines.resolved import Warmup
from autotune_planner.plan.memory import PassMemory, pass_memories, unit_memory
from autotune_planner.plan.plan import Plan
from autotune_planner.plan.rows import RowCheck, row_checks

_MB = 1e6
_LARGEST_TERMS = 3
_OWN_SET = ("input_ids", "seq_lens")  # sized by the dummy itself: shown only where they are too short


def memory_view(plan: Plan) -> Iterator[ConsoleRenderable]:
    """Tables with an empty line before each; nothing where the server runs no pass of its own."""
    resolved = plan.resolved
    memories = list(pass_memories(resolved))
    if memories:
        yield from (Text(), _memory(memories, plan))
    gathered = [check for check in row_checks(resolved) if check.buffer not in _OWN_SET or not check.fits]
    if gathered:
        yield from (Text(), _rows(gathered))
    running = [warmup for warmup in resolved.warmups if warmup.run]
    if running:
        yield from (Text(), _warmups(running))


def _memory(memories: Sequence[PassMemory], plan: Plan) -> Table:
    table = _table("Peak GPU memory of a rank, beside weights and KV cache", "pass", "peak", "most of it")
    for memory in memories:
        table.add_row(_title(memory.name), _bytes(memory.total), _largest(memory))
    units = [unit_memory(unit) for unit in plan.units]
    if units:
        most = max(units, key=lambda memory: memory.total)
        table.add_row("tuning here, largest unit", _bytes(most.total), _largest(most))
    return table


def _largest(memory: PassMemory) -> str:
    terms = sorted(memory.terms, key=lambda term: -term[1])[:_LARGEST_TERMS]
    return ", ".join(f"{what} {_bytes(number)}" for what, number in terms)


def _rows(checks: Sequence[RowCheck]) -> Table:
    table = _table("Rows against buffers", "pass", "buffer", "holds", "gets", "bytes", right=("holds", "gets", "bytes"))
    for check in checks:
        style = None if check.fits else "yellow"
        values = (check.buffer, str(check.capacity), str(check.rows), _bytes(check.bytes))
        table.add_row(_title(check.pass_name), *values, style=style)
    return table


def _warmups(warmups: Sequence[Warmup]) -> Table:
    table = _table("Kernel warm-ups at start", "warm-up", "sizes (M)", "reason")
    for warmup in warmups:
        table.add_row(_title(warmup.name), _sizes(warmup.m), warmup.reason)
    return table


def _sizes(m: Sequence[int]) -> str:
    return f"{len(m)}: {m[0]} .. {m[-1]}"


def _title(name: str) -> str:
    return {"deep_gemm": "DeepGEMM", "deep_gemm_pp": "DeepGEMM, pipeline ranks"}.get(name, name.upper())


def _bytes(number: int) -> str:
    """In decimal units: 2.5 GB."""
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / _MB:.1f} MB"


def _table(title: str, *columns: str, right: tuple[str, ...] = ("peak",)) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table
