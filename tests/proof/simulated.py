"""Deployments, and caches of simulated runs, for proofs and measurements of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune_planner import pipeline
from autotune_planner.cache.v1 import Entry, read_v1, render_v1
from autotune_planner.deployment.load import load_deployment
from autotune_planner.plan.plan import Plan
from autotune_planner.tuning.tune import Options

MOE = {
    "model": "qwen3-30b-a3b",
    "moe": "{runner_backend: flashinfer_cutlass}",
    "kv_token_capacity": 1000000,
}
# 16 tokens a rank: the MoE's buckets end at 16 x 4 gathered rows, and it has 7 of them.
DP4 = {**MOE, "parallel": "{tp: 4, dp: 4, dp_attention: true}", "prefill": "{chunked_prefill_size: 64}",
       "decode": "{max_running_requests: 64}"}  # fmt: skip
# Graphs of up to 4 requests, and 7 requests at most.
DECODE = {**MOE, "disaggregation": "decode", "decode": "{max_running_requests: 7, cuda_graph_bs_decode: [1, 2, 4]}"}


def deployment_file(folder: Path, **fields: Any) -> Path:
    """A deployment on H200s."""
    path = folder / "deployment.yaml"
    lines = {"gpu": "H200", "engine_version": "0.5.23", "model_path": "/models/m", **fields}
    path.write_text("".join(f"{name}: {value}\n" for name, value in lines.items()))
    return path


def tuned(file: Path, cache_dir: Path, strategy: str = "race") -> tuple[Plan, list[Path]]:
    """Plan and tune a deployment file on the simulated device: the plan, and the rank files."""
    plan = pipeline.plan(load_deployment(file), {})
    outcome = pipeline.run(
        plan,
        device="simulated",
        devices=1,
        target=pipeline.target_of(plan, cache_dir=str(cache_dir), flashinfer_version="0.7.2"),
        observer=lambda event: None,
        options=Options(strategy=strategy),  # type: ignore[arg-type]
    )
    return plan, list(outcome.published)


def rewrite(path: Path, change: Callable[[Entry], Entry | None], *, fitting: bool = True) -> None:
    """Change the entries of a file (None: leave one out), with a digest that fits them, or with the old one."""
    file = read_v1(path)
    entries = [changed for entry in file.entries if (changed := change(entry)) is not None]
    content = render_v1(file.metadata, {entry.text: entry for entry in entries}, file.records)
    if not fitting:
        content = json.dumps({**json.loads(content), "_generation": file.generation}, indent=2).encode()
    path.write_bytes(content)
