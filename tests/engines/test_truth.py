"""The rules against the real server: every configuration that SGLang 0.5.23 resolved or refused, field by field."""

from pathlib import Path

import pytest

from autotune_planner.engines import resolve
from autotune_planner.errors import DeploymentError, ExitCode
from tests.engines import parity
from tests.engines.truth import CAPACITY, deployment_of, rows

REFUSED = [row for row in rows() if not parity.accepted(row) and row.get("error_stage") != "argparse"]
PARITY = Path(__file__).parents[2] / "docs" / "parity.md"


@pytest.mark.parametrize("identity", [row["id"] for row in rows()])
def test_the_command_gives_what_the_server_gives(identity):
    """All 242: equal fields and exit 0, or the refusal with exit 3."""
    both = parity.compared(identity)
    assert both
    assert {one.field: (one.ours, one.theirs) for one in both if not one.equal} == {}


def test_nothing_is_left_out():
    assert len(rows()) == 242
    assert sum("error" in row for row in rows()) == 32
    stages = [row.get("error_stage", "") for row in rows()]
    assert stages.count("argparse") == 5
    # 32 resolved arguments, the two CUDA graphs among them as three fields each; buffers; cache path.
    fields = [one.field for one in parity.compared("dpa8-H200-32768")]
    assert sum(field.startswith("resolved.") for field in fields) == 32 - 2 + 2 * 3
    assert {"buffers.gpu_bytes", "runtime.extend_pass_if_enabled", "runtime.flashinfer_autotune_cache_path"} < {*fields}


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row["id"])
def test_what_the_server_refuses_is_refused_with_the_flag_and_a_hint(row):
    with pytest.raises(DeploymentError) as caught:
        resolve(deployment_of(row, CAPACITY))
    assert caught.value.exit_code is ExitCode.INVALID_DEPLOYMENT
    assert caught.value.where
    assert caught.value.hint


def test_the_table_in_docs_is_what_the_comparison_prints():
    assert PARITY.read_text(encoding="utf-8") == parity.document()
