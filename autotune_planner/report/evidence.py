"""What is not known of planned ops, in every output: keys that no real run has confirmed on this architecture."""

from __future__ import annotations

from collections.abc import Iterable

from autotune_planner.plan.plan import PlannedOp


def evidence_lines(ops: Iterable[PlannedOp]) -> list[str]:
    """``OP, OP: keys verified, not run on hardware``: a line for each kind of doubt, none for ops that were run."""
    found: dict[str, list[str]] = {}
    for op in ops:
        if op.evidence is not None:
            found.setdefault(op.evidence, []).append(op.custom_op)
    return [f"{', '.join(dict.fromkeys(names))}: {evidence}" for evidence, names in found.items()]
