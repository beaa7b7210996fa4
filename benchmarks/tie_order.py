"""The order in which ``race`` breaks ties, from oracle tables of the bf16 MoE that search_strategies.py measured.

    python -m benchmarks.tie_order docs/measurements/search-h200/moe-[12].json

Prints ``ties`` of profiles/search.yaml. Two races pick differently where a tactic lies at the edge of a tie: noise puts
it inside once and outside once. Only tactics that precede the pick matter. So those go first that are inside in many
profiles and at the edge in few, each counted over the profiles that those before it leave open.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import yaml

from autotune_planner.tuning.race import Rules
from benchmarks.search_strategies import truth

NOISE = 0.0015  # standard deviation of a final's ratio from one race to the next

Distances = dict[int, float]  # tactic -> log of its time over the least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("oracles", nargs="+", type=Path)
    print(yaml.safe_dump(orders(parser.parse_args().oracles), default_flow_style=None, width=120), end="")


def orders(oracles: list[Path]) -> dict[str, list[int]]:
    """Custom op -> tactics, the first of a tie first; the default is left out, as it precedes all."""
    profiles: dict[str, list[Distances]] = {}
    for path in oracles:
        for name, row in json.loads(path.read_text(encoding="utf-8"))["oracle"].items():
            times = truth(row)
            distances = {int(tactic): math.log(time / min(times.values())) for tactic, time in times.items()}
            profiles.setdefault(f"trtllm::fused_moe::{name.split()[-2]}", []).append(distances)
    return {custom_op: order(rows, Rules().tie, NOISE) for custom_op, rows in sorted(profiles.items())}


def order(rows: list[Distances], tie: float, noise: float) -> list[int]:
    """As long as a tactic settles more profiles than it leaves in doubt, the one that settles most is next."""
    left = {tactic for row in rows for tactic in row} - {-1}
    unsettled = [1 - inside(row, -1, tie, noise) for row in rows]
    found: list[int] = []
    while left:
        gains = {tactic: gain(rows, unsettled, tactic, tie, noise) for tactic in left}
        best = max(left, key=lambda tactic: (gains[tactic], -tactic))
        if gains[best] <= 0:
            break
        found.append(best)
        left.remove(best)
        unsettled = [share * (1 - inside(row, best, tie, noise)) for share, row in zip(unsettled, rows, strict=True)]
    return found


def gain(rows: list[Distances], unsettled: list[float], tactic: int, tie: float, noise: float) -> float:
    """Unsettled profiles in which ``tactic`` would be picked, less those in which it would be picked half the time."""
    total = 0.0
    for row, share in zip(rows, unsettled, strict=True):
        picked = inside(row, tactic, tie, noise)
        total += share * (picked - 4 * picked * (1 - picked))
    return total


def inside(row: Distances, tactic: int, tie: float, noise: float) -> float:
    """Probability that a race puts ``tactic`` inside the tie: its ratio to the best is the difference of two."""
    return 0.5 * (1 + math.erf((tie - row[tactic]) / (2 * noise))) if tactic in row else 0.0


if __name__ == "__main__":
    main()
