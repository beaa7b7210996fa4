"""Replay a published cache and time whole ops, tuned against FlashInfer's fallback, on this machine's GPU.

    python benchmarks/whole_op.py DEPLOYMENT.yaml --cache-dir DIR --out RESULT.json

The cache must have been published by ``autotune-plan run DEPLOYMENT.yaml --cache-dir DIR``. Each op runs as a CUDA
graph; fallback and tuned replays alternate, 30 samples each of as many replays as fill 2 ms, medians reported.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

from autotune_planner import pipeline
from autotune_planner.deployment.load import load_deployment
from autotune_planner.ops.base import Bind, OpCall
from autotune_planner.proof.replay import replay

REPLAY_SIZES = (1, 24, 700, 3000, 8192)
TIMED_SIZES = (1, 64, 1024, 8192)
SAMPLES = 30
SAMPLE_MS = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deployment", type=Path)
    parser.add_argument("--cache-dir", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    plan = pipeline.plan(load_deployment(options.deployment), os.environ)
    version = pipeline.flashinfer_version(plan, None)
    target = pipeline.target_of(plan, cache_dir=options.cache_dir, flashinfer_version=version)
    path = str(target.directory / target.files[0])
    calls = [use.call for use in plan.resolved.ops]
    gpu = plan.resolved.gpu
    report = replay(path, calls, REPLAY_SIZES, device="cuda", gpu=gpu, log_path=f"{options.out}.log")
    result = {
        "deployment": options.deployment.name,
        "file": path,
        "replay": {
            "loaded": report.loaded,
            "served": report.served,
            "calls": [
                {
                    "op": replayed.call.family,
                    "shape": replayed.call.label,
                    "m": replayed.m,
                    "hits": len(replayed.hits),
                    "misses": len(replayed.misses),
                    "timings": replayed.timings,
                }
                for replayed in report.calls
            ],
        },
        "whole_op": [row for call in calls for row in time_call(call, path)],
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["whole_op"], indent=1))
    print("served" if report.served else "NOT SERVED")


def time_call(call: OpCall, path: str) -> list[dict[str, Any]]:
    """Medians in microseconds of one op at the timed sizes, fallback and tuned."""
    bind = call.prepare("cuda")
    return [time_size(call, bind, m, path) for m in TIMED_SIZES]


def time_size(call: OpCall, bind: Bind, m: int, path: str) -> dict[str, Any]:
    from flashinfer.autotuner import AutoTuner

    tuner = AutoTuner.get()
    launch = bind(m)
    tuner.clear_cache()
    fallback = capture(launch)
    assert tuner.load_configs(path)
    tuned = capture(launch)
    replays = max(1, round(SAMPLE_MS / max(sample_us(fallback, 3) / 1e3, 1e-3)))
    samples: dict[str, list[float]] = {"fallback": [], "tuned": []}
    for _ in range(SAMPLES):
        samples["fallback"].append(sample_us(fallback, replays))
        samples["tuned"].append(sample_us(tuned, replays))
    medians = {name: statistics.median(values) for name, values in samples.items()}
    return {
        "op": call.family,
        "shape": call.label,
        "m": m,
        "fallback_us": round(medians["fallback"], 2),
        "tuned_us": round(medians["tuned"], 2),
        "speedup": round(medians["fallback"] / medians["tuned"], 3),
        "replays_per_sample": replays,
        "spread_tuned_us": [round(min(samples["tuned"]), 2), round(max(samples["tuned"]), 2)],
    }


def capture(launch: Any) -> Any:
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def sample_us(graph: Any, replays: int) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / replays


if __name__ == "__main__":
    main()
