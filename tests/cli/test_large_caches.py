"""A hundred thousand entries open in seconds and in little memory. Limits have slack for a loaded machine."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from autotune_planner.cache.v1 import read_v1, render_v1
from autotune_planner.cache.v2 import render_v2

RUN_A = Path(__file__).parents[1] / "data" / "h200" / "cutlass_moe_bf16_run_a.json"
SHOW = """
import re, sys
from autotune_planner.cli.main import main
try:
    main(["show", *sys.argv[1:]])
finally:  # not the resource module's figure, which counts the parent's memory at the fork
    print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1], file=sys.stderr)
"""


def entries(layers):
    """42 entries for each of ``layers`` layers, which differ in their hidden size."""
    made = {}
    for entry in read_v1(RUN_A).entries:
        for layer in range(layers):
            text = entry.text.replace(", 2048)", f", {2048 + 64 * layer})", 1)
            made[text] = replace(entry, text=text)
    return made


def show(*arguments):
    """Lines on stdout, wall time in seconds and peak memory in MiB of a process of its own."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", SHOW, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return len(done.stdout.splitlines()), time.perf_counter() - start, int(done.stderr) // 1024


@pytest.mark.parametrize("form", [(), ("--json",), ("--csv",)])
def test_a_v1_file_of_100_000_entries(tmp_path, form):
    made = entries(2400)
    assert len(made) == 100_800
    path = tmp_path / "rank_tp0_pp0_dp0.json"
    path.write_bytes(render_v1(read_v1(RUN_A).metadata, made))
    lines, seconds, mebibytes = show(path, *form)
    assert lines > 100_800
    assert seconds < 6  # under 3 s on an idle core
    assert mebibytes < 500


def test_a_v2_store_of_20_000_entries(tmp_path):
    """A fifth of the size, for the time that it takes to write; so a fifth of the ten seconds, and of the slack."""
    made = entries(480)
    for name, content in render_v2(read_v1(RUN_A).metadata, made).items():
        path = tmp_path / name
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
        path.write_bytes(content)
    lines, seconds, mebibytes = show(tmp_path)
    assert lines > len(made) == 20_160
    assert seconds < 6
    assert mebibytes < 250
