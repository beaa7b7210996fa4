"""What is left to do of one call of ``tune``, whoever does it: workers of this machine or tasks of a cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from autotune_planner.plan.plan import WorkUnit
from autotune_planner.plan.schedule import Shard
from autotune_planner.tuning.messages import Strategy, UnitResult
from autotune_planner.tuning.quarantine import Quarantine


@dataclass
class Job:
    """``shards`` come in the order in which they are begun; ``forecast`` gives seconds, ``finished`` takes results."""

    shards: deque[Shard]
    strategy: Strategy
    quarantine: Quarantine
    forecast: Callable[[WorkUnit], float]
    finished: Callable[[UnitResult], None]
