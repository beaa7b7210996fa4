"""Launch lines end to end: argv -> deployment -> rules, against what SGLang 0.5.23 resolved or refused.

``random-sglang-0.5.23.jsonl`` holds random command lines of the same flags, models and GPUs, resolved by the released
wheel with GPU queries replaced: only the arguments after resolution, and none of the runtime values.
"""

from dataclasses import asdict, replace

import pytest

from autotune_planner.deployment.gpus import load_gpu
from autotune_planner.deployment.launch_line import deployment_of_launch_line
from autotune_planner.engines import resolve
from autotune_planner.errors import DeploymentError, ExitCode
from tests.engines.parity import accepted, equal
from tests.engines.truth import CAPACITY, DATA, deployment_of, rows

RANDOM = "random-sglang-0.5.23.jsonl"


def launched(row, capacity=CAPACITY):
    deployment = deployment_of_launch_line(
        row["args"],
        gpu=load_gpu(row["gpu"]),
        model_dir=str(DATA / "models"),
        kv_token_capacity=capacity,
    )
    return replace(deployment, env={"SGLANG_CACHE_DIR": "/cache", **row.get("env", {})})


@pytest.mark.parametrize("row", [row for row in rows() if accepted(row)], ids=lambda row: row["id"])
def test_a_launch_line_says_what_the_deployment_file_says(row):
    capacity = row["resolved"]["runtime"]["assumed_token_capacity"]
    by_line, by_file = resolve(launched(row, capacity)), resolve(deployment_of(row, capacity))
    assert by_line.arguments == by_file.arguments
    assert by_line.runtime == by_file.runtime
    assert by_line.cache_place == by_file.cache_place
    assert (by_line.passes, by_line.ops) == (by_file.passes, by_file.ops)


@pytest.mark.parametrize("row", [row for row in rows() if not accepted(row)], ids=lambda row: row["id"])
def test_refused_lines(row):
    with pytest.raises(DeploymentError) as caught:
        resolve(launched(row))
    error = caught.value
    assert error.exit_code is ExitCode.INVALID_DEPLOYMENT
    assert error.hint
    assert error.where
    assert error.where.startswith("--") or error.where in row["env"]


@pytest.mark.parametrize("row", rows(RANDOM), ids=lambda row: row["id"])
def test_random_lines(row):
    if "error" in row:
        with pytest.raises(DeploymentError):
            resolve(launched(row))
        return
    resolved = resolve(launched(row))
    ours = {**asdict(resolved.arguments), "dtype": resolved.dtype}
    assert {name: ours[name] for name, value in row["resolved"].items() if not equal(ours[name], value)} == {}
