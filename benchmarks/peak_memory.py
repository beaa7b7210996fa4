"""Peak device memory of tuning single work units on this machine's GPU, against what the plan forecasts for them.

    python benchmarks/peak_memory.py examples/FILE.yaml --out RESULT.json [--buckets 1,1024,8192]

Each unit is raced and its winner checked as a worker does it, after one that warms its modules up. ``measured`` is the
highest amount that torch's allocator handed out (FlashInfer takes its workspaces from it too), ``reserved`` what it
took from the device.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from autotune_planner import planning
from autotune_planner.deployment.load import load_deployment
from autotune_planner.ops.numerics import problem_of
from autotune_planner.plan.memory import unit_memory
from autotune_planner.plan.plan import WorkUnit
from autotune_planner.tuning import flashinfer_internals as internals
from autotune_planner.tuning.contexts import tuning_contexts
from autotune_planner.tuning.race import race


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--buckets", default="1,1024,8192")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    wanted = {int(word) for word in options.buckets.split(",")}
    plan = planning.plan(load_deployment(options.file), os.environ, None)
    internals.import_flashinfer(quiet=True)
    rows = [measured(unit) for unit in plan.units if unit.bucket in wanted]
    options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        print(f"{row['unit']}: forecast {row['forecast_mib']:.0f} MiB, measured {row['measured_mib']:.0f} MiB")


def measured(unit: WorkUnit) -> dict[str, Any]:
    import torch

    raced(unit)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    raced(unit)
    memory = unit_memory(unit)
    return {
        "unit": f"{unit.custom_op} {unit.call.label} M={unit.bucket}",
        "forecast_mib": memory.total / 2**20,
        "measured_mib": (torch.cuda.max_memory_allocated() - before) / 2**20,
        "reserved_mib": torch.cuda.max_memory_reserved() / 2**20,
        "terms_mib": {name: size / 2**20 for name, size in memory.terms},
    }


def raced(unit: WorkUnit) -> None:
    launch = unit.call.prepare("cuda")(unit.bucket)
    with internals.fresh_tuner(), internals.silenced(), tuning_contexts(unit), internals.racing(race):
        launch()
        problem_of(launch)


if __name__ == "__main__":
    main()
