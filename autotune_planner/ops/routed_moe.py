"""What every MoE has in common, whatever its kernels and formats."""

from __future__ import annotations

from autotune_planner.ops.base import OpCall
from autotune_planner.values import dataclass


@dataclass(frozen=True)
class RoutedMoe(OpCall):
    """Gated MoE of one rank: ``local_experts`` of ``num_experts``, each (2 * intermediate, hidden) and (hidden,
    intermediate), both sizes per rank and as the server pads them; every token goes to ``top_k`` experts."""

    num_experts: int
    local_experts: int
    hidden_size: int
    intermediate_size: int
    top_k: int

    @property
    def shape(self) -> str:
        """Short text of the sizes."""
        return f"E{self.local_experts} H{self.hidden_size} I{self.intermediate_size} k{self.top_k}"

    def weight_share(self, m: int) -> float:
        return min(1.0, m * self.top_k / self.num_experts)

    def flops(self, custom_op: str, m: int) -> float:
        """Of all routed rows that an even routing sends to this rank: gate, linear and output."""
        here = m * self.top_k * self.local_experts / self.num_experts
        return 2.0 * here * 3 * self.intermediate_size * self.hidden_size
