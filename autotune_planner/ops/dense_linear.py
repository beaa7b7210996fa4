"""What every dense linear has in common, whatever its formats."""

from __future__ import annotations

from autotune_planner.ops.base import OpCall
from autotune_planner.values import dataclass


@dataclass(frozen=True)
class DenseLinear(OpCall):
    """A linear of one rank: M rows of ``k`` inputs to ``n`` outputs each. Its buckets have no bound."""

    n: int
    k: int

    @property
    def tune_max(self) -> None:
        return None

    @property
    def label(self) -> str:
        return f"N{self.n} K{self.k}"

    def flops(self, custom_op: str, m: int) -> float:
        return 2.0 * m * self.n * self.k

    def profiler_bytes(self, custom_op: str, bucket: int) -> int:
        return 0
