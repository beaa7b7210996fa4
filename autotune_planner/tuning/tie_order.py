"""Which tactics a tie of ``race`` goes to first: those that long measurements oftenest found among the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune_planner import profiles


def tie_order(searched_as: str, capability: tuple[int, int] | None, custom_op: str) -> tuple[Any, ...]:
    """Tactics in the order of ``ties`` in ``profiles/search.yaml``; none where nobody measured such a list.

    A tactic may mean something else in another release of FlashInfer. A tie then goes to another of its members, no
    slower than the tie is wide.
    """
    architecture = "" if capability is None else "{}.{}".format(*capability)
    return tuple(profiles.table("search")["ties"].get(architecture, {}).get(searched_as, {}).get(custom_op, ()))


def in_tie_order(tactics: Sequence[Any], first: Sequence[Any]) -> list[int]:
    """Places in ``tactics``: the default, which FlashInfer lists first, then those of ``first``, then the others."""
    if not first:
        return list(range(len(tactics)))
    rank = {tactic: number for number, tactic in enumerate(first)}
    return sorted(range(len(tactics)), key=lambda place: (place > 0, rank.get(tactics[place], len(rank)), place))
