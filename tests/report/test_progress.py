"""Progress of a run: plain lines where stderr is no terminal, a bar per GPU where it is one."""

import io

import pytest
from rich.console import Console

from autotune_planner.report.progress import progress_observer
from autotune_planner.tuning.messages import (
    ModuleBuilding,
    ModuleProgress,
    ModuleReady,
    UnitFinished,
    UnitResult,
    UnitStarted,
    WorkerLost,
)
from tests.tuning.plans import small_plan

PLAN = small_plan()


def events():
    yield ModuleBuilding("fused_moe_90", tuple(f"{i}.o" for i in range(248)))
    yield ModuleProgress("fused_moe_90", 17, 248)
    yield ModuleReady("fused_moe_90", 3600.0)
    for index, unit in enumerate(PLAN.units):
        worker = index % 2
        yield UnitStarted(worker, unit)
        if index == 3:
            yield WorkerLost(worker, unit, "killed by SIGSEGV")
        failure = "its worker process ended: killed by SIGSEGV" if index == 3 else None
        yield UnitFinished(worker, UnitResult(unit, {}, (), 0.1, None, failure))


def shown(*, terminal):
    console = Console(file=io.StringIO(), width=160, force_terminal=terminal, color_system=None, highlight=False)
    with progress_observer(console, PLAN, workers=2) as observer:
        for event in events():
            observer(event)
    return console.file.getvalue()


def test_plain_lines():
    lines = shown(terminal=False).splitlines()
    assert lines[0] == "building fused_moe_90: 248 objects (once per machine, not counted as tuning)"
    assert "built fused_moe_90 in 3600 s" in lines
    assert lines[-1].startswith("GPU 1: 12/12 profiles, ")
    assert any("ended while it tuned" in line and "SIGSEGV" in line for line in lines)
    assert any(line.startswith("not tuned: ") for line in lines)
    assert "\x1b" not in "".join(lines)


def test_bars():
    text = shown(terminal=True)
    assert "all profiles" in text
    assert "GPU 0" in text
    assert "GPU 1" in text
    assert "12/12" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_is_left_of_a_build_that_was_not_needed(terminal):
    console = Console(file=io.StringIO(), width=160, force_terminal=terminal, color_system=None)
    with progress_observer(console, PLAN, workers=1) as observer:
        observer(ModuleReady("gemm", 0.0))
    assert "gemm" not in console.file.getvalue()
