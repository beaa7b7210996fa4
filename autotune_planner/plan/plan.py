"""From a resolved deployment to what is tuned: ops by phase, their buckets, and the work units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from autotune_planner.deployment.model import Traffic
from autotune_planner.engines.resolved import OpUse, Resolved
from autotune_planner.ops.base import ComputeCapability, OpCall
from autotune_planner.plan.buckets import reachable_buckets, server_buckets
from autotune_planner.values import dataclass

if TYPE_CHECKING:
    from autotune_planner.plan.tiles import Tiles

Phase = Literal["decode", "extend"]


@dataclass(frozen=True)
class PlannedOp:
    """Buckets of one custom op and layer in one phase. ``covers`` is the largest M (tokens) of that phase.

    ``reason`` is what reaches the buckets; ``beyond`` why some of them are planned that the server leaves untuned, None
    where it tunes all; ``evidence`` what is not known of the keys, None where such an op was run on this architecture.
    """

    custom_op: str
    layer: str
    call: OpCall
    phase: Phase
    buckets: tuple[int, ...]
    covers: int
    reason: str
    beyond: str | None = None
    evidence: str | None = None

    @property
    def full_reason(self) -> str:
        return "; ".join(part for part in (self.reason, self.beyond, self.evidence) if part is not None)


@dataclass(frozen=True)
class WorkUnit:
    """The smallest piece of tuning: every tactic of one custom op, one shape, one bucket, on one GPU."""

    custom_op: str
    call: OpCall
    bucket: int

    @property
    def id(self) -> str:
        """Stable text that names the unit in a journal: equal units of equal calls have equal ids."""
        return f"{self.custom_op} {self.call!r} bucket={self.bucket}"


@dataclass(frozen=True)
class Plan:
    resolved: Resolved
    ops: tuple[PlannedOp, ...]
    units: tuple[WorkUnit, ...]
    tiles: Tiles | None  # None without traffic


def make_plan(resolved: Resolved) -> Plan:
    """Buckets of every op that the deployment reaches; no op and no unit where the server does not tune."""
    capability = resolved.gpu.compute_capability
    ops = tuple(planned for use in resolved.ops for planned in _phases(use, capability))
    return Plan(resolved=resolved, ops=ops, units=_units(ops), tiles=_tiles(resolved))


def _tiles(resolved: Resolved) -> Tiles | None:
    if resolved.traffic == Traffic():
        return None
    from autotune_planner.plan.tiles import sample_tiles  # few deployments have traffic

    return sample_tiles(resolved)


def _phases(use: OpUse, capability: ComputeCapability | None) -> list[PlannedOp]:
    planned = []
    tuned = {bucket for rows in (use.decode_pass_rows, use.extend_pass_rows) for bucket in _tuned(use.call, rows)}
    for custom_op in use.call.custom_ops:
        for phase, pass_rows, production_rows in (
            ("decode", use.decode_pass_rows, use.decode_rows),
            ("extend", use.extend_pass_rows, use.prefill_rows),
        ):
            if pass_rows is None and production_rows is None:
                continue
            buckets = _buckets(use.call, pass_rows, production_rows)
            planned.append(
                PlannedOp(
                    custom_op=custom_op,
                    layer=use.layer,
                    call=use.call,
                    phase="decode" if phase == "decode" else "extend",
                    buckets=buckets,
                    covers=max(pass_rows or 0, production_rows or 0),
                    reason=_reason(pass_rows, production_rows),
                    beyond=_beyond(use, phase, [bucket for bucket in buckets if bucket not in tuned]),
                    evidence=_evidence(use.call, capability),
                )
            )
    return planned


def _buckets(call: OpCall, pass_rows: int | None, production_rows: int | None) -> tuple[int, ...]:
    tuned = _tuned(call, pass_rows)
    reached = reachable_buckets(production_rows, call.tune_max) if production_rows else ()
    return tuple(sorted({*tuned, *reached}))


def _tuned(call: OpCall, pass_rows: int | None) -> tuple[int, ...]:
    return server_buckets(pass_rows, call.bound_of(pass_rows)) if pass_rows else ()


def _beyond(use: OpUse, phase: str, untuned: list[int]) -> str | None:
    if not untuned:
        return None
    if use.note is not None:
        return use.note
    sizes = str(untuned[0]) if len(untuned) == 1 else f"{untuned[0]}..{untuned[-1]}"
    what = "prefill sizes" if phase == "extend" else "decode or verify rows"
    return f"buckets {sizes}: {what} above the rows of the server's passes, which leave them untuned"


def _evidence(call: OpCall, capability: ComputeCapability | None) -> str | None:
    if capability is None or call.was_run(capability):
        return None
    if call.keys_verified(capability):
        return "keys verified, not run on hardware"
    return "keys not compared with a real server's, not run on hardware"


def _reason(pass_rows: int | None, production_rows: int | None) -> str:
    if pass_rows is None:
        return "production"
    if production_rows is None:
        return "at start only"
    return "at start, production"


def _units(ops: tuple[PlannedOp, ...]) -> tuple[WorkUnit, ...]:
    """Every (custom op, call, bucket) once, largest bucket first within a call, calls in the order of the plan."""
    units = {WorkUnit(op.custom_op, op.call, bucket): None for op in ops for bucket in op.buckets}
    calls = list(dict.fromkeys(unit.call for unit in units))
    return tuple(sorted(units, key=lambda unit: (calls.index(unit.call), -unit.bucket, unit.custom_op)))
