"""The Python API from a deployment file to a proof, on the simulated device: no GPU, and files that no server loads.

    python examples/api.py [CACHE_DIR]

On a GPU machine leave ``device`` out.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from autotune_planner import api
from autotune_planner.errors import PlannerError

DEPLOYMENT = Path(__file__).parent / "qwen3-30b-h200-pd-prefill.yaml"


def main() -> None:
    cache_dir = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    try:
        plan = api.plan(api.load_deployment(DEPLOYMENT), environ={})
        for op in plan.ops:
            print(f"{op.custom_op} {op.layer} {op.phase}: {len(op.buckets)} buckets up to {op.buckets[-1]} tokens")

        outcome = api.tune(plan, device="simulated", gpus=1, cache_dir=cache_dir)
        print(f"{len(outcome.tuned.entries)} profiles tuned, {len(outcome.published)} rank files published")

        # What a server on the real GPU makes of these files: it ignores what a simulated run wrote.
        stamp = {**outcome.tuned.metadata, "gpu": plan.resolved.gpu.name}
        checked = api.check(plan, cache_dir=cache_dir, environment=stamp)
        problems = [finding.code for finding in checked.findings if finding.level == "problem"]
        print("check:", "used" if checked.used else f"not used: {', '.join(problems)}")

        proof = api.prove(plan, device="simulated", cache_dir=cache_dir)
        print("prove:", "every call hits" if proof.proved else "the server would tune again")

        bench = api.bench(plan, device="simulated", cache_dir=cache_dir, sizes=[64, 8192])
        for result in bench.sizes:
            gain = result.gains[0]
            print(f"bench: M = {result.m} with {result.l2} L2: {gain.ratio.median:.2f} times, {gain.verdict}")
    except PlannerError as error:
        sys.exit(f"{error.message} ({error.code}): {error.hint}")


if __name__ == "__main__":
    main()
