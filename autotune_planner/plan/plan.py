"""From a resolved deployment to what is tuned: ops by phase, their buckets, and the work units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from autotune_planner.deployment.model import Traffic
from autotune_planner.engines.resolved import OpUse, Resolved
from autotune_planner.ops.base import OpCall
from autotune_planner.plan.buckets import reachable_buckets, server_buckets
from autotune_planner.values import dataclass

if TYPE_CHECKING:
    from autotune_planner.plan.tiles import Tiles

Phase = Literal["decode", "extend"]


@dataclass(frozen=True)
class PlannedOp:
    """Buckets of one custom op and layer in one phase. ``covers`` is the largest M (tokens) of that phase."""

    custom_op: str
    layer: str
    call: OpCall
    phase: Phase
    buckets: tuple[int, ...]
    covers: int
    reason: str


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
    ops = tuple(planned for use in resolved.ops for planned in _phases(use))
    return Plan(resolved=resolved, ops=ops, units=_units(ops), tiles=_tiles(resolved))


def _tiles(resolved: Resolved) -> Tiles | None:
    if resolved.traffic == Traffic():
        return None
    from autotune_planner.plan.tiles import sample_tiles  # few deployments have traffic

    return sample_tiles(resolved)


def _phases(use: OpUse) -> list[PlannedOp]:
    planned = []
    for custom_op in use.call.custom_ops:
        for phase, pass_rows, production_rows in (
            ("decode", use.decode_pass_rows, use.decode_rows),
            ("extend", use.extend_pass_rows, use.prefill_rows),
        ):
            if pass_rows is None and production_rows is None:
                continue
            planned.append(
                PlannedOp(
                    custom_op=custom_op,
                    layer=use.layer,
                    call=use.call,
                    phase="decode" if phase == "decode" else "extend",
                    buckets=_buckets(use.call.tune_max, pass_rows, production_rows),
                    covers=max(pass_rows or 0, production_rows or 0),
                    reason=_reason(pass_rows, production_rows),
                )
            )
    return planned


def _buckets(tune_max: int | None, pass_rows: int | None, production_rows: int | None) -> tuple[int, ...]:
    tuned = server_buckets(pass_rows, tune_max) if pass_rows else ()
    reached = reachable_buckets(production_rows, tune_max) if production_rows else ()
    return tuple(sorted({*tuned, *reached}))


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
