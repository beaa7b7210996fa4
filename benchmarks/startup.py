"""Whole-process time of ``autotune-plan compute`` against the bare import of the libraries that it stands on.

    python benchmarks/startup.py [--pairs 15] [-- FILE | -- --gpu H200 -- <server flags>]

Both run in fresh interpreters, in turn, so that a busy machine slows both alike, and with compiled bytecode, as an
installed package has it. Printed are the median of each with its 95% confidence interval, and the ratio of the medians
with the interval of the ratios of the pairs. Without arguments: a deployment file and a launch line.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("-c", "import typer, rich.table, yaml, pydantic")
COMPUTE = ("-m", "autotune_planner", "compute")
CASES: tuple[tuple[str, ...], ...] = (
    ("examples/qwen3-30b-h200-pd-prefill.yaml",),
    (
        "--gpu", "H200", "--",
        "--model-path", "deepseek-ai/DeepSeek-V3", "--tp", "8", "--dp", "8", "--enable-dp-attention",
        "--speculative-algorithm", "NEXTN",
    ),
)  # fmt: skip
WARM_UP_PAIRS = 2


def main() -> None:
    ours, given = split(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    pairs = parser.parse_args(ours).pairs
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for case in (given,) if given else CASES:
            print(report(case, pairs, environment))


def split(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Our own options, and the arguments of ``compute`` behind the first ``--``."""
    if "--" not in arguments:
        return list(arguments), ()
    at = arguments.index("--")
    return list(arguments[:at]), tuple(arguments[at + 1 :])


def report(case: Sequence[str], pairs: int, environment: Mapping[str, str]) -> str:
    libraries, compute = measure(case, pairs, environment)
    ratios = [ours / theirs for ours, theirs in zip(compute, libraries, strict=True)]
    ratio = statistics.median(compute) / statistics.median(libraries)
    low, high = interval(ratios)
    return "\n".join(
        (
            f"compute {' '.join(case)}",
            f"  {LIBRARIES[1]}: {in_ms(libraries)}",
            f"  compute: {in_ms(compute)}",
            f"  ratio {ratio:.2f} (pairs: {low:.2f} to {high:.2f}), {pairs} pairs",
        )
    )


def measure(case: Sequence[str], pairs: int, environment: Mapping[str, str]) -> tuple[list[float], list[float]]:
    """Seconds of each run of the libraries' import and of ``compute``, in pairs; the first pairs only warm up."""
    libraries, compute = [], []
    for _ in range(WARM_UP_PAIRS + pairs):
        libraries.append(seconds(LIBRARIES, environment))
        compute.append(seconds((*COMPUTE, *case), environment))
    return libraries[WARM_UP_PAIRS:], compute[WARM_UP_PAIRS:]


def seconds(arguments: Sequence[str], environment: Mapping[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, check=True, capture_output=True)
    return time.perf_counter() - start


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95% confidence interval of the median: the order statistics n/2 -+ 0.98 sqrt(n)."""
    ordered = sorted(values)
    reach = 0.98 * math.sqrt(len(ordered))
    low = max(0, math.floor(len(ordered) / 2 - reach))
    return ordered[low], ordered[len(ordered) - 1 - low]


def in_ms(values: Sequence[float]) -> str:
    low, high = interval(values)
    return f"{1e3 * statistics.median(values):.0f} ms ({1e3 * low:.0f} to {1e3 * high:.0f})"


if __name__ == "__main__":
    main()
