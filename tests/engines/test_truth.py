"""The rules against the real server: every configuration that SGLang 0.5.23 resolved or refused, field by field."""

from dataclasses import asdict

import pytest

from autotune_planner.cache.sglang_layout import rank_file
from autotune_planner.engines import resolve
from autotune_planner.errors import DeploymentError, ExitCode
from tests.engines.truth import CAPACITY, deployment_of, rows

# Command lines that argparse refuses never become a deployment: they are the launch-line parser's.
DEPLOYMENTS = [row for row in rows() if row.get("error_stage") != "argparse"]


def accepted(row):
    return "error" not in row and "runtime" in row["resolved"]


def equal(ours, theirs):
    """Long lists of the truth are abridged to {len, first, last}."""
    if isinstance(theirs, dict) and {"len", "first", "last"} <= set(theirs):
        ends = ours[: len(theirs["first"])], ours[-len(theirs["last"]) :]
        return len(ours) == theirs["len"] and [list(end) for end in ends] == [theirs["first"], theirs["last"]]
    if isinstance(theirs, dict):
        return all(equal(ours[name], value) for name, value in theirs.items())
    return list(ours) == theirs if isinstance(theirs, list) and ours is not None else ours == theirs


def capacity_of(row):
    return row["resolved"]["runtime"]["assumed_token_capacity"]


@pytest.mark.parametrize("row", [row for row in DEPLOYMENTS if accepted(row)], ids=lambda row: row["id"])
def test_resolved_and_runtime_equal_the_servers(row):
    resolved = resolve(deployment_of(row, capacity_of(row)))
    theirs = row["resolved"]
    arguments = asdict(resolved.arguments)
    assert {name: value for name, value in arguments.items() if not equal(value, theirs[name])} == {}
    runtime, real = theirs["runtime"], theirs["runtime"]["real"]
    assert resolved.dtype == theirs["model"]["dtype"]
    for name, value in asdict(resolved.runtime).items():
        if name == "capture_bs" and "capture_bs_error" in runtime:
            assert value is None
            assert any(notice.level == "error" for notice in resolved.notices)
        elif name != "capture_bs" or name in runtime:
            assert equal(value, real[name] if name in real else runtime[name]), name
    place = resolved.cache_place
    assert str(rank_file(place, place.ranks[0])) == real["flashinfer_autotune_cache_path"]


@pytest.mark.parametrize("row", [row for row in DEPLOYMENTS if not accepted(row)], ids=lambda row: row["id"])
def test_what_the_server_refuses_is_refused_with_the_flag_and_a_hint(row):
    if row["id"] == "bad-nomodel":
        pytest.skip("a model folder that is not there is refused by the deployment file's reader")
    with pytest.raises(DeploymentError) as caught:
        resolve(deployment_of(row, CAPACITY))
    assert caught.value.exit_code is ExitCode.INVALID_DEPLOYMENT
    assert caught.value.where
    assert caught.value.hint
