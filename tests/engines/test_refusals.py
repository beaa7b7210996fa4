"""Flags that are checked but not computed with, and numbers of rarer flags, against the released wheel.

``refusals-sglang-0.5.23.jsonl``: what SGLang 0.5.23's own parser, resolution and ``check_server_args`` made of each
line, on a machine with mocked GPU queries: the resolved arguments, or the error. Graphs are [backend, largest size].
The two models in ``drafts/`` are ``Llama-3.2-1B-draft`` with the keys of a DFLASH and of a DSPARK checkpoint.
"""

from dataclasses import replace

import pytest

from autotune_planner.deployment.models import load_model
from autotune_planner.engines import resolve
from autotune_planner.errors import DeploymentError, ExitCode
from tests.engines.test_launch_lines import launched
from tests.engines.truth import DATA, rows

ROWS = rows("refusals-sglang-0.5.23.jsonl")
REFUSED = [row for row in ROWS if "error" in row]
RESOLVED = [row for row in ROWS if "error" not in row]


def deployment(row):
    found = launched(row)
    path = found.flags.get("speculative_draft_model_path", "").replace("/models", str(DATA / "drafts"))
    return replace(found, draft_model=load_model(path)) if path.endswith(("DFlash-draft", "DSpark-draft")) else found


def line(row):
    return " ".join([row["gpu"], *row["args"][1:]])


@pytest.mark.parametrize("row", REFUSED, ids=line)
def test_what_the_server_refuses_is_no_plan(row):
    with pytest.raises(DeploymentError) as caught:
        resolve(deployment(row), {})
    error = caught.value
    assert error.exit_code is ExitCode.INVALID_DEPLOYMENT
    assert error.where in {*row["args"], *row.get("env", {})} or error.where.startswith(("--", "SGLANG_"))
    assert error.message
    assert error.hint


@pytest.mark.parametrize("row", RESOLVED, ids=line)
def test_resolved_as_the_server_does(row):
    found = resolve(deployment(row), {}).arguments
    ours = {name: getattr(found, name) for name in row["resolved"]}
    for phase in ("cuda_graph_decode", "cuda_graph_prefill"):
        ours[phase] = [ours[phase].backend, ours[phase].max_bs]
    assert ours == row["resolved"]


def test_both_kinds_are_there():
    assert len(ROWS) <= 200
    assert len(REFUSED) >= 100
    assert len(RESOLVED) >= 50
