"""What the checks read, and how they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune_planner.engines.sglang_0_5_23.arguments import ServerArguments
from autotune_planner.engines.sglang_0_5_23.attention import Attention
from autotune_planner.engines.sglang_0_5_23.environment import Environment
from autotune_planner.engines.sglang_0_5_23.graph_settings import GraphSettings
from autotune_planner.engines.sglang_0_5_23.model import ModelFacts
from autotune_planner.engines.sglang_0_5_23.moe import MoeResolved
from autotune_planner.engines.sglang_0_5_23.rejection import rejected
from autotune_planner.engines.sglang_0_5_23.speculative import SpeculativeResolved
from autotune_planner.values import dataclass

Rule = tuple[object, str, str, str]
"""Broken where true; the flag, the rule in words, and what to write instead."""

_ORDERED_PREFIXES = ("ascend", "fa3", "fa4", "triton")  # deterministic with cached prefixes too


@dataclass(frozen=True)
class Subject:
    """One deployment after resolution.

    ``given`` are its flags as typed, by server argument; ``arguments`` those that the plan reads, after the
    attention-DP alias. ``chunk`` and ``buffer_tokens`` are per rank. ``major`` is the compute capability's, None on AMD
    GPUs: they are not asked for NVIDIA architectures.
    """

    given: Mapping[str, Any]
    arguments: ServerArguments
    model: ModelFacts
    attention: Attention
    graphs: GraphSettings
    experts: MoeResolved
    drafts: SpeculativeResolved
    environment: Environment
    chunk: int
    buffer_tokens: int
    major: int | None

    def on(self, name: str) -> bool:
        return bool(self.given.get(name))

    def get(self, name: str, default: Any = None) -> Any:
        """The flag's value, the release's ``default`` where it is not given."""
        value = self.given.get(name)
        return default if value is None else value

    @property
    def attn_tp_size(self) -> int:
        return self.arguments.tp_size // self.arguments.attn_dp_size // self.arguments.attn_cp_size

    @property
    def has_attention_dp(self) -> bool:
        return self.arguments.attn_dp_size > 1

    @property
    def mode(self) -> str:
        return self.arguments.disaggregation_mode

    @property
    def phases(self) -> tuple[str | None, str | None]:
        """Attention backends of prefill and decode."""
        return self.attention.prefill, self.attention.decode

    @property
    def radix_cache_off(self) -> bool:
        """Sources: ``pd_disaggregation_hook.handle_pd_disaggregation``, ``attention_hook.handle_multi_item_scoring``
        and ``handle_deterministic_inference``."""
        arguments = self.arguments
        unordered = arguments.enable_deterministic_inference and self.attention.base not in _ORDERED_PREFIXES
        if arguments.enable_mis or unordered:
            return True
        if self.mode == "decode":
            return not arguments.disaggregation_decode_enable_radix_cache
        return arguments.disable_radix_cache

    def decode_graph(self) -> tuple[int, int]:
        """(requests of one rank, tokens each) of the largest decode graph; (0, 1) where none is captured.

        Source: ``moe_hook._decode_graph_dispatch_tokens_per_rank``.
        """
        if self.mode == "prefill" or self.graphs.decode.backend == "disabled":
            return 0, 1
        requests = self.graphs.decode.max_bs or 0
        if self.drafts.max_running_requests is not None:
            requests = min(requests, max(1, self.drafts.max_running_requests // self.arguments.attn_dp_size))
        return requests, (self.drafts.num_draft_tokens or 1) if self.drafts.algorithm else 1


def refuse(source: str, *rules: Rule) -> None:
    """``DeploymentError`` for the first broken rule; ``source`` is the server's own function."""
    for broken, flag, rule, hint in rules:
        if broken:
            raise rejected(flag, rule, hint, source=source)


def least(subject: Subject, name: str, default: Any, smallest: int, flag: str | None = None) -> Rule:
    """A number must not be smaller."""
    value = subject.get(name, default)
    option = flag or "--" + name.replace("_", "-")
    return value < smallest, option, f"must be {smallest} or more, got {value}", f"{option} {max(smallest, default)}"
