"""One unit's attempts: what is done when a worker dies or hangs over it. Pure: no process, no clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune_planner.plan.plan import WorkUnit
from autotune_planner.tuning.messages import TacticStarted
from autotune_planner.tuning.quarantine import Fault, Quarantined

_TRIES = 12  # losses over one unit before it is given up


@dataclass(frozen=True)
class Loss:
    """How a worker ended. ``last``: the tactic that it had begun, if it was careful. ``stray``: killed from outside."""

    reason: str
    last: TacticStarted | None = None
    hung: bool = False
    stray: bool = False


@dataclass(frozen=True)
class Attempt:
    """A unit on its way. ``losses`` are the workers that it has cost, ``careful`` how the next try is made."""

    unit: WorkUnit
    losses: int = 0
    careful: bool = False

    def after_loss(self, loss: Loss) -> tuple[Attempt | None, Quarantined | None]:
        """(the next attempt, the culprit); no next attempt where the unit is given up.

        The first loss, and every stray kill, may be anybody's: the same is tried again. After that, and after a hang,
        each tactic is run by itself, so that the next loss names the one that was running, and the race goes on
        without it.
        """
        lost = replace(self, losses=self.losses + 1)
        if lost.losses >= _TRIES:
            return None, None
        if loss.stray:
            return lost, None
        if not self.careful:
            return replace(lost, careful=loss.hung or lost.losses >= 2), None
        if loss.last is None or loss.last.tactic == -1:  # not in a tactic, or in one that cannot be blocked
            return None, None
        fault: Fault = "hang" if loss.hung else "crash"
        unit, last = self.unit, loss.last
        culprit = Quarantined(
            unit.custom_op, last.runner, last.tactic, fault, loss.reason, unit.bucket, unit.call.label
        )
        return replace(lost, careful=False), culprit
