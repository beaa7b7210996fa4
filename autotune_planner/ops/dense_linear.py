"""What every dense linear has in common, whatever its formats."""

from __future__ import annotations

from autotune_planner.ops.base import OpCall
from autotune_planner.ops.numerics import COMPARED_ROWS
from autotune_planner.ops.tensors import ITEM_BYTES
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

    def check_bytes(self, m: int) -> int:
        """The weight in float32, and of each compared row its inputs and five copies of its outputs. FP4, two numbers a
        byte, is decoded by a table: the index of each number comes beside."""
        weight, rows = self.weights()[0], min(m, COMPARED_ROWS)
        float32, index = ITEM_BYTES["float32"], ITEM_BYTES["int64"]
        each = 2 * (float32 + index) if weight.dtype == "uint8" else float32
        return super().check_bytes(m) + weight.elements * each + float32 * rows * (self.k + 5 * self.n)

    def profiler_bytes(self, custom_op: str, bucket: int) -> int:
        return 0
