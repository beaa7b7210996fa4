"""The main job end to end: plan a deployment, tune it, publish the cache, look at it, and prove that it is used.

    python examples/demo.py [CACHE_DIR]

Uses the GPU of this machine if it is the example's, else the simulated device (whose files no server loads).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from autotune_planner import pipeline
from autotune_planner.deployment.load import load_deployment
from autotune_planner.tuning.devices import DeviceKind, cuda_devices

DEPLOYMENT = Path(__file__).parent / "qwen3-30b-h200-tp1.yaml"


def command(*arguments: str) -> None:
    print(f"\n$ autotune-plan {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "autotune_planner", *arguments], check=True)


def main() -> None:
    cache_dir = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    plan = pipeline.plan(load_deployment(DEPLOYMENT), {})
    gpu = plan.resolved.gpu
    device: DeviceKind = "cuda" if any(found.name == gpu.name for found in cuda_devices()) else "simulated"
    target = pipeline.target_of(plan, cache_dir=cache_dir, flashinfer_version=plan.resolved.release.flashinfer_version)
    command("compute", str(DEPLOYMENT))
    command("run", str(DEPLOYMENT), "--device", device, "--cache-dir", cache_dir)
    command("show", str(target.directory))
    command("prove", str(DEPLOYMENT), "--device", device, "--cache-dir", cache_dir)


if __name__ == "__main__":
    main()
