"""One plan of several layer shapes tuned on 1, 2, .. N GPUs of this machine, numbers of GPUs in turn.

    python benchmarks/gpu_scaling.py moe|bmm_fp8 --gpus N --out RESULT.json [--runs 2]

``moe``: bf16 MoE of Qwen3-30B-A3B, ``bmm_fp8``: linears of Llama-3.1-8B FP8, at TP 1, 2, 4 and 8. Every run starts with
an empty journal. ``tuning_seconds`` is from the first worker's readiness to the last result, compiling excluded; the
other workers start within it. Efficiency at N: seconds on one GPU over N times the seconds on N.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune_planner import planning
from autotune_planner.deployment.load import load_deployment
from autotune_planner.plan.plan import Plan
from autotune_planner.tuning.devices import cuda_devices
from autotune_planner.tuning.messages import Event, UnitFinished
from autotune_planner.tuning.tune import Options, Tuned, tune

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
FILES = {"moe": "qwen3-30b-h200-tp1.yaml", "bmm_fp8": "llama-8b-fp8-h200-tp1.yaml"}
TP_SIZES = (1, 2, 4, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("op", choices=sorted(FILES))
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    plan = plan_of_all(FILES[options.op])
    counts = [count for _ in range(options.runs) for count in range(1, options.gpus + 1)]
    runs = [run(plan, count) for count in counts]
    result = {"op": options.op, "profiles": len(plan.units), "summary": summary(runs), "runs": runs}
    options.out.write_text(json.dumps(result, indent=None, separators=(",", ":")) + "\n", encoding="utf-8")
    print(json.dumps(result["summary"], indent=1))


def plan_of_all(file: str) -> Plan:
    """The plans of a deployment at each TP size as one."""
    plans = []
    with tempfile.TemporaryDirectory() as folder:
        for tp in TP_SIZES:
            path = Path(folder) / f"tp{tp}.yaml"
            path.write_text((EXAMPLES / file).read_text(encoding="utf-8") + f"parallel: {{tp: {tp}}}\n")
            plans.append(planning.plan(load_deployment(path), {}, None))
    units = tuple(dict.fromkeys(unit for plan in plans for unit in plan.units))
    return replace(plans[0], ops=tuple(op for plan in plans for op in plan.ops), units=units)


def run(plan: Plan, gpus: int) -> dict[str, Any]:
    started = time.monotonic()
    finished: list[tuple[float, UnitFinished]] = []

    def observe(event: Event) -> None:
        if isinstance(event, UnitFinished):
            finished.append((time.monotonic() - started, event))

    with tempfile.TemporaryDirectory() as folder:
        tuned = tune(
            plan,
            device="cuda",
            devices=cuda_devices()[:gpus],
            work_dir=Path(folder),
            observer=observe,
            options=Options(),
        )
    return {
        "gpus": gpus,
        "wall_seconds": time.monotonic() - started - tuned.build_seconds,
        "tuning_seconds": tuned.tuning_seconds,
        "forecast_seconds": tuned.forecast_seconds,
        "units_of_each_gpu": dict(Counter(event.worker for _, event in finished)),
        "busy_seconds_of_each_gpu": {
            gpu: sum(event.result.seconds for _, event in finished if event.worker == gpu) for gpu in range(gpus)
        },
        "first_result_of_each_gpu": {
            gpu: min((at for at, event in finished if event.worker == gpu), default=None) for gpu in range(gpus)
        },
        "picks": picks(tuned),
    }


def picks(tuned: Tuned) -> dict[str, Any]:
    """Key -> tactic."""
    return {key: value[1] for result in tuned.results for key, value in result.entries.items()}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    counts = sorted({run["gpus"] for run in runs})
    seconds = {
        kind: {count: statistics.median(run[kind] for run in runs if run["gpus"] == count) for count in counts}
        for kind in ("wall_seconds", "tuning_seconds")
    }
    return {
        **seconds,
        "efficiency": {
            kind: {count: times[1] / (count * times[count]) for count in counts} for kind, times in seconds.items()
        },
        "keys_equal": len({frozenset(run["picks"]) for run in runs}) == 1,
        "differing_picks": [
            {"gpus": [a["gpus"], b["gpus"]], "count": sum(a["picks"][key] != b["picks"][key] for key in a["picks"])}
            for a, b in itertools.combinations(runs, 2)
        ],
    }


if __name__ == "__main__":
    main()
