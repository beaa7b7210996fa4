"""The released server's own argument resolution against ``compute --json``, for the examples and 100 random lines."""

from __future__ import annotations

import copy
import shlex
from dataclasses import fields, replace

import pytest

from autotune_planner.engines.resolved import Arguments, Runtime
from tests.engines.parity import Outcome
from tests.oracle.comparison import Judged, compared
from tests.oracle.configurations import (
    RANDOM_ROWS,
    SHAPE_FLAGS,
    VALUES,
    Configuration,
    examples,
    option,
    planner_flags,
    random_configurations,
)

EXAMPLE = "qwen3-30b-h200-pd-prefill"


@pytest.mark.parametrize("configuration", [*examples(), *random_configurations()], ids=lambda one: one.name)
def test_the_planner_says_what_the_server_resolves_or_refuses(
    configuration: Configuration, judged: dict[str, Judged]
) -> None:
    found = judged[configuration.name]
    assert found.compared
    assert found.different == {}, f"{configuration.gpu}: {shlex.join(configuration.arguments)}"


def test_nothing_is_left_out(judged: dict[str, Judged]) -> None:
    """Every field of ``resolved`` and ``runtime``, every pass but the draft's, every buffer and file."""
    names = {one.field for one in judged[EXAMPLE].compared}
    graphs = {"cuda_graph_decode", "cuda_graph_prefill"}
    wanted = {f"resolved.{field.name}" for field in fields(Arguments) if field.name not in graphs}
    wanted |= {f"resolved.{graph}.{part}" for graph in graphs for part in ("backend", "max_bs", "bs")}
    wanted |= {f"runtime.{field.name}" for field in fields(Runtime)} | {"runtime.flashinfer_autotune_cache_path"}
    shown_under_their_name = {name.partition(" ")[0] for name in names}
    assert wanted - shown_under_their_name == {"runtime.capture_bs"}  # a PD prefill worker captures no decode graph
    assert any(one.field == "runtime.capture_bs" for one in judged["qwen3-30b-h200-dp8"].compared)
    assert {"cache_files", "passes.decode.run", "passes.extend.run", "buffers.gpu_bytes"} < names


def test_a_difference_is_seen(judged: dict[str, Judged]) -> None:
    """One number, one file, one gate and one refusal of the server's answer changed: each is found."""
    found = judged[EXAMPLE]
    assert found.verdict == "equal"
    for place, field in (
        (("chunked_prefill_size",), "resolved.chunked_prefill_size"),
        (("runtime", "real", "should_run_flashinfer_autotune"), "runtime.should_run_flashinfer_autotune"),
        (("runtime", "real", "passes", "extend"), "passes.extend.run"),
        (("runtime", "real", "cache_files"), "cache_files"),
        (("moe_runner_backend",), "resolved.moe_runner_backend"),
    ):
        answer = copy.deepcopy(dict(found.server))
        holder = answer["resolved"]
        for name in place[:-1]:
            holder = holder[name]
        holder[place[-1]] = "changed"
        assert set(replace(found, compared=tuple(compared(answer, found.ours))).different) == {field}
    refused = compared({"error": "ValueError: no", "error_stage": "resolve_once"}, found.ours)
    assert replace(found, compared=tuple(refused)).verdict == "different"
    accepted = compared(found.server, Outcome(3, {"where": "--tp-size", "message": "no", "hint": "1"}))
    assert replace(found, compared=tuple(accepted)).verdict == "different"


def test_random_lines_cover_the_flags_of_the_planner() -> None:
    configurations = random_configurations()
    assert len(configurations) == RANDOM_ROWS
    assert set(VALUES) | SHAPE_FLAGS == planner_flags()
    drawn = {word for one in configurations for word in one.arguments}
    assert {flag for flag in planner_flags() if option(flag) not in drawn} == set()


def test_random_lines_are_of_every_kind(judged: dict[str, Judged]) -> None:
    verdicts = [judged[one.name].verdict for one in random_configurations()]
    assert verdicts.count("equal") >= RANDOM_ROWS // 3
    assert verdicts.count("refused by both") >= RANDOM_ROWS // 10
    assert "equal until the server fails" in verdicts
