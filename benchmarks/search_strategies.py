"""Compare the search strategies on this machine's GPU, one process, strategies in turn, compiling excluded.

    python benchmarks/search_strategies.py moe --out RESULT.json
    python benchmarks/search_strategies.py bmm_fp8 --out RESULT.json

``moe``: bf16 MoE of Qwen3-30B-A3B, TP 1 (42 profiles). ``bmm_fp8``: the four linears of Llama-3.1-8B FP8, TP 1 (84).
Every run of a strategy starts with a fresh tuner; stock is FlashInfer's own loop, largest size first. The oracle times
every tactic of every profile 64 times, in passes over all in an order drawn anew, and the contenders 40 times again in
bursts after a warm launch, with rests so that the power limit does not lower the clock. Each burst is set against the
others of its pass, and the mean of these ratios counts. Regret of a pick: its oracle time over the oracle's least,
less 1.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune_planner.ops.base import OpCall
from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.ops.cutlass_fused_moe import CutlassFusedMoe
from autotune_planner.plan.buckets import hybrid_grid
from autotune_planner.tuning import flashinfer_internals as internals
from autotune_planner.tuning.contexts import tuning_contexts
from autotune_planner.tuning.race import RaceResult, Stopwatch, race
from autotune_planner.tuning.tie_order import tie_order

LARGEST = 8192
RUNS = 3
SINGLES = 64
BURSTS = 40
CONTENDER_RATIO = {True: 1.06, False: 1.25}  # with a cycle; without, single launches depend on what ran before
CONTENDER_MS = 0.002
REST = 1.0  # of the busy time
HELD_UP = 0.03
BURST_MS = 0.3  # at least 2 launches; of an op with a cycle whole cycles, or quarters of one where kernels are long
SHORT_MS = 0.175
QUEUED_MS = 8.0  # kernels queued at once, in whole passes: less than what it takes to meet the power limit

QWEN3_MOE = CutlassFusedMoe(
    num_experts=128,
    local_experts=128,
    hidden_size=2048,
    intermediate_size=768,
    top_k=8,
    tp_size=1,
    ep_size=1,
    tune_max_num_tokens=LARGEST,
)
LLAMA_LINEARS = (
    BmmFp8(n=6144, k=4096),
    BmmFp8(n=4096, k=4096),
    BmmFp8(n=28672, k=4096),
    BmmFp8(n=4096, k=14336),
)
CALLS: dict[str, tuple[OpCall, ...]] = {"moe": (QWEN3_MOE,), "bmm_fp8": LLAMA_LINEARS}

EACH = [(bucket,) for bucket in hybrid_grid(LARGEST)]  # one bucket at a time, the smallest first, as ``run`` goes

Picks = dict[str, Any]  # profile -> tactic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("op", choices=sorted(CALLS))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    bench = Bench(CALLS[options.op])
    runs = bench.alternate(RUNS)
    oracle = bench.oracle()
    measured = {"op": options.op, "device": device(), "runs": runs, "oracle": oracle}
    write(options.out, measured)  # first of all: what follows may stumble over a tactic that ran once and not again
    found = summary(runs, oracle)
    write(options.out, found | measured)
    print(json.dumps(rounded(found), indent=1))


def write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(rounded(value), separators=(",", ":")) + "\n", encoding="utf-8")


class Bench:
    """The calls of one op family with their tensors, ready to be tuned."""

    def __init__(self, calls: Sequence[OpCall]) -> None:
        internals.import_flashinfer(quiet=True)
        self._launches = {call: call.prepare("cuda")(LARGEST) for call in calls}
        self.stock(warm_up=True)
        self.race(warm_up=True)

    def alternate(self, runs: int) -> list[dict[str, Any]]:
        return [run() for _ in range(runs) for run in (self.stock, self.race)]

    def stock(self, *, warm_up: bool = False) -> dict[str, Any]:
        seconds, picks, _ = self._tune(None, [(1, LARGEST)] if warm_up else [None])
        return {"strategy": "stock", "seconds": seconds, "picks": picks}

    def race(self, *, search: internals.Search = race, warm_up: bool = False) -> dict[str, Any]:
        """One bucket at a time, the smallest first, as ``run`` does."""
        seconds, picks, raced = self._tune(search, [(1, LARGEST)] if warm_up else EACH)
        return {
            "strategy": "race",
            "seconds": seconds,
            "picks": picks,
            "launches": sum(one.result.launches for one in raced),
            "kernel_ms": sum(one.result.busy_ms for one in raced),
            "search_seconds": sum(one.seconds for one in raced),
            "profiles": {
                profile(label, one.custom_op, one.shapes): {
                    "tied": [one.tactics[place] for place in one.result.tied],
                    "spread": one.result.spread,
                    "margin": one.result.margin,
                    "rounds": one.result.rounds,
                    "ms": one.result.busy_ms,
                    "us": 1e3 * one.result.times[one.result.winner],
                }
                for label, one in zip(self._labels(raced), raced, strict=True)
            },
        }

    def oracle(self) -> dict[str, Any]:
        """Profile -> tactic -> [mean us of single launches, mean us in bursts or None, their standard deviation]."""
        tables: list[OracleTable] = []

        def search(places: Sequence[int], stopwatch: Stopwatch, *, cycle: int) -> RaceResult:
            tables.append(measure(places, stopwatch, cycle))
            return tables[-1].as_result()

        _, _, raced = self._tune(search, EACH)
        return {
            profile(label, one.custom_op, one.shapes): {
                str(one.tactics[place]): row for place, row in table.rows().items()
            }
            for label, one, table in zip(self._labels(raced), raced, tables, strict=True)
        }

    def _labels(self, raced: Sequence[internals.Raced]) -> list[str]:
        """The call of each raced profile: calls are tuned one after another, each with equally many profiles."""
        return [call.label for call in self._launches for _ in range(len(raced) // len(self._launches))]

    def _tune(
        self, search: internals.Search | None, passes: Sequence[tuple[int, ...] | None]
    ) -> tuple[float, Picks, list[internals.Raced]]:
        """Each call with a fresh tuner, each pass over some of its buckets; None is FlashInfer's own loop over all."""
        import torch
        from flashinfer.autotuner import autotune

        raced: list[internals.Raced] = []
        picks: Picks = {}
        torch.cuda.synchronize()
        started = time.perf_counter()
        for call, launch in self._launches.items():
            first_of = functools.partial(tie_order, call.searched_as, torch.cuda.get_device_capability())
            with internals.fresh_tuner() as tuner, internals.silenced(), tuning_contexts(None):
                for buckets in passes:
                    if buckets is None:
                        raced += tuned(launch, search, first_of)
                    else:
                        with autotune(True, tuning_buckets=buckets, round_up=True):
                            raced += tuned(launch, search, first_of)
                picks |= {
                    profile(call.label, key.custom_op, key.nearest_profile): value[0]
                    for key, value in tuner.profiling_cache.items()
                }
        torch.cuda.synchronize()
        return time.perf_counter() - started, picks, raced


def tuned(
    launch: Callable[[], Any], search: internals.Search | None, first_of: Callable[[str], Sequence[Any]]
) -> list[internals.Raced]:
    if search is None:
        launch()
        return []
    with internals.racing(search, first_of) as raced:
        launch()
    return raced


def profile(label: str, custom_op: str, shapes: Sequence[Sequence[int]]) -> str:
    """Name of a profile: call, custom op, M."""
    return f"{label} {custom_op.split('::')[-1]} M={shapes[0][-2]}"


@dataclass(frozen=True)
class OracleTable:
    """Milliseconds per launch, one value for each pass: ``singles`` of every tactic, ``bursts`` of the contenders."""

    singles: dict[int, list[float]]
    bursts: dict[int, list[float]]
    errors: dict[int, Exception]

    def rows(self) -> dict[int, list[float | None]]:
        settled = settle(self.bursts)
        return {
            place: [1e3 * statistics.fmean(values), *(1e3 * value for value in settled[place])]
            if place in settled
            else [1e3 * statistics.fmean(values), None, None]
            for place, values in self.singles.items()
        }

    def as_result(self) -> RaceResult:
        times = {place: statistics.fmean(values) for place, values in self.singles.items()}
        times |= {place: mean for place, (mean, _) in settle(self.bursts).items()}
        winner = min(self.bursts or times, key=lambda place: times[place], default=None)
        return RaceResult(winner, times, self.errors, () if winner is None else (winner,), None, None, 0, 0.0, 0)


def settle(bursts: dict[int, list[float]]) -> dict[int, tuple[float, float]]:
    """Time of each place and its standard deviation in a pass. What the clock did to a whole pass is taken out, and a
    burst that something held up counts as one by ``HELD_UP`` above the median."""
    if not bursts:
        return {}
    means = [statistics.fmean(values) for values in zip(*bursts.values(), strict=True)]
    level = statistics.median(means)
    settled = {}
    for place, values in bursts.items():
        ratios = [value / mean for value, mean in zip(values, means, strict=True)]
        limit = statistics.median(ratios) * (1 + HELD_UP)
        kept = [min(ratio, limit) for ratio in ratios]
        settled[place] = (level * statistics.fmean(kept), level * statistics.stdev(kept))
    return settled


def measure(places: Sequence[int], stopwatch: Stopwatch, cycle: int) -> OracleTable:
    """Time one profile at length: single launches of all, then bursts of those near the best."""
    first = dict(zip(places, stopwatch(places, 1), strict=True))
    errors = {place: value for place, value in first.items() if isinstance(value, Exception)}
    running = [place for place in places if place not in errors]
    if not running:
        return OracleTable({}, {}, errors)
    singles = sampled(running, stopwatch, launches=1, passes=SINGLES, at_once=4, rest=0.0)
    means = {place: statistics.fmean(values) for place, values in singles.items()}
    best = min(means.values())
    contenders = [place for place in running if means[place] <= best * CONTENDER_RATIO[cycle > 1] + CONTENDER_MS]
    launches = burst_launches(best, cycle)
    at_once = max(1, int(QUEUED_MS / (len(contenders) * launches * best)))
    return OracleTable(singles, sampled(contenders, stopwatch, launches, BURSTS, at_once, REST), errors)


def burst_launches(best_ms: float, cycle: int) -> int:
    if cycle == 1:
        return min(32, max(2, math.ceil(BURST_MS / best_ms)))
    return cycle // 4 if best_ms >= SHORT_MS else cycle * math.ceil(BURST_MS / (cycle * best_ms))


def sampled(
    places: Sequence[int], stopwatch: Stopwatch, launches: int, passes: int, at_once: int, rest: float
) -> dict[int, list[float]]:
    """One burst of each place in each pass; ``at_once`` passes are queued, after a pause of ``rest`` times the busy
    time before. The order changes, since a tactic's time depends on which ran before it."""
    values: dict[int, list[float]] = {place: [] for place in places}
    draw = random.Random(0)
    rest_ms = 0.0
    for start in range(0, passes, at_once):
        count = min(at_once, passes - start)
        bursts = [place for _ in range(count) for place in draw.sample(places, len(places))]
        measured = stopwatch(bursts, launches, warm=1 if launches > 1 else 0, rest_ms=rest_ms)
        for place, value in zip(bursts, measured, strict=True):
            if isinstance(value, Exception):
                raise RuntimeError(f"tactic {place} ran once and not again") from value
            values[place].append(value)
        rest_ms = rest * launches * sum(values[place][-1] for place in bursts)
    return values


def summary(runs: Sequence[dict[str, Any]], oracle: dict[str, Any]) -> dict[str, Any]:
    by_strategy = {name: [run for run in runs if run["strategy"] == name] for name in ("stock", "race")}
    seconds = {name: [run["seconds"] for run in chosen] for name, chosen in by_strategy.items()}
    return {
        "seconds": seconds,
        "speedup_of_medians": statistics.median(seconds["stock"]) / statistics.median(seconds["race"]),
        "regret_percent": {
            name: [regret(run["picks"], oracle) for run in chosen] for name, chosen in by_strategy.items()
        },
        "differing_picks": {
            name: [differing(a["picks"], b["picks"], oracle) for a, b in itertools.combinations(chosen, 2)]
            for name, chosen in by_strategy.items()
        },
    }


def truth(row: dict[str, Any]) -> dict[str, float]:
    """Tactic -> microseconds: bursts of the contenders, the other tactics' singles brought to their scale."""
    ratios = [burst / single for single, burst, _ in row.values() if burst is not None]
    scale = statistics.median(ratios) if ratios else 1.0
    return {tactic: burst if burst is not None else single * scale for tactic, (single, burst, _) in row.items()}


def regret(picks: Picks, oracle: dict[str, Any]) -> dict[str, float]:
    values = {}
    for name, row in oracle.items():
        times = truth(row)
        values[name] = 100 * (times[str(picks[name])] / min(times.values()) - 1)
    ordered = sorted(values.values())
    return {
        "median": statistics.median(ordered),
        "p90": ordered[int(0.9 * (len(ordered) - 1))],
        "worst": ordered[-1],
        "worst_at": max(values, key=lambda name: values[name]),  # type: ignore[dict-item]
    }


def differing(a: Picks, b: Picks, oracle: dict[str, Any]) -> dict[str, Any]:
    names = [name for name in oracle if a[name] != b[name]]
    apart = {}
    for name in names:
        times = truth(oracle[name])
        apart[name] = 100 * abs(times[str(a[name])] / times[str(b[name])] - 1)
    return {"count": len(names), "of": len(oracle), "furthest_percent": max(apart.values(), default=0.0), "at": apart}


def device() -> dict[str, Any]:
    import torch

    return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, **internals.collect_metadata()}


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    main()
