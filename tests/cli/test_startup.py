"""``compute`` starts fast: what it imports, and that its short ways read what the long ones read."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune_planner.cli import compute as command
from autotune_planner.cli.app import app
from autotune_planner.cli.compute_call import plain_call

ROOT = Path(__file__).parents[2]
LAUNCH = ("--gpu", "H200", "--", "--model-path", "deepseek-ai/DeepSeek-V3", "--tp", "8", "--dp", "8")
CALLS = [
    ("examples/qwen3-30b-h200-pd-prefill.yaml",),
    ("examples/qwen3-30b-h200-pd-prefill.yaml", "--explain"),
    ("examples/qwen3-30b-h200-dp8.yaml", "--json"),
    (*LAUNCH, "--enable-dp-attention", "--speculative-algorithm", "NEXTN"),
]
HEAVY = ("torch", "flashinfer", "numpy", "transformers")
SLOW = ("typer", "pydantic", "multiprocessing", "importlib.metadata")


@pytest.mark.parametrize("call", CALLS, ids=lambda call: " ".join(call[:3]))
def test_heavy_packages_cannot_be_imported_and_slow_ones_are_not(tmp_path, call):
    for package in HEAVY:
        (tmp_path / f"{package}.py").write_text("raise ImportError('compute must not import this')\n")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "autotune_planner", "compute", *call],
        cwd=ROOT,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = set(re.findall(r"^import time:.*\|\s+(\S+)$", done.stderr, re.MULTILINE))
    assert "autotune_planner.planning" in imported
    assert imported.isdisjoint((*HEAVY, *SLOW))


def test_classes_of_a_plan_are_made_quickly():
    """See ``autotune_planner.values``."""
    for package in ("deployment", "engines", "plan", "ops", "cli"):
        for path in (ROOT / "autotune_planner" / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if "@dataclass(frozen=True)" in text and path.name != "yaml_source.py":
                assert "from autotune_planner.values import dataclass" in text, path


OPTIONS = ["--json", "--jso", "--explain", "--keys", "--gpu", "--gpu=H200", "--engine", "--model-dir", "-h", "--help"]
VALUES = [
    "a.yaml",
    "b.yaml",
    "H200",
    "sglang==0.5.23",
    "models",
    "0.5.23",
    "1000",
    "0",
    "-1",
    "01",
    "1_000",
    " 7",
    "-",
    "",
]
words = st.sampled_from([*OPTIONS, "--kv-token-capacity", "--assume-rules", *VALUES])


class Captured(Exception):  # noqa: N818
    """Carries the call that Typer read."""


def read_by_typer(arguments, flags):
    def capture(call):
        raise Captured(call)

    carry_out, command.carry_out = command.carry_out, capture
    try:
        app(args=list(arguments), prog_name="autotune-plan", standalone_mode=False, obj=flags)
    except Captured as captured:
        return captured.args[0]
    finally:
        command.carry_out = carry_out
    raise AssertionError(f"Typer does not carry out {arguments}")


@settings(max_examples=300, deadline=None)
@given(st.lists(words, max_size=6), st.none() | st.just(["--tp", "8"]))
def test_a_plain_call_is_what_typer_reads(arguments, flags):
    arguments = ["compute", *arguments]
    call = plain_call(arguments, flags)
    if call is not None:
        assert call == read_by_typer(arguments, flags)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "a.yaml"],
        ["compute", "a.yaml", "b.yaml"],
        ["compute", "--help"],
        ["compute", "a.yaml", "--gpu"],
        ["compute", "--gpu", "--json"],
        ["compute", "a.yaml", "--kv-token-capacity", "0"],
        ["compute", "a.yaml", "--json", "--json"],
        ["compute", ""],
        [],
    ],
)
def test_the_rest_is_for_typer(arguments):
    assert plain_call(arguments, None) is None
