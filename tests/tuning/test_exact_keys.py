"""Exact cache keys against those that the real server's own call sites produced (truth/keys-sglang-0.5.23.jsonl)."""

import pytest

from autotune_planner.cache.sglang_layout import rank_file
from autotune_planner.engines import resolve
from autotune_planner.errors import DeploymentError
from autotune_planner.pipeline import require_startable
from autotune_planner.plan.plan import make_plan
from autotune_planner.tuning.keys import exact_keys
from tests.engines.truth import deployment_of, row, rows

pytestmark = pytest.mark.flashinfer

KEYS = "keys-sglang-0.5.23.jsonl"
STARTS = [found["id"] for found in rows(KEYS) if not found.get("rejected_by_sglang")]
REJECTED = [found["id"] for found in rows(KEYS) if found.get("rejected_by_sglang")]


def plan_of(identity):
    return make_plan(resolve(deployment_of(row(identity, KEYS))))


def test_every_row_is_looked_at():
    assert len(STARTS) + len(REJECTED) == 108
    assert len(REJECTED) == 4


@pytest.mark.parametrize("identity", STARTS)
def test_keys_tuned_by_the_server(identity):
    truth = row(identity, KEYS)
    keys = exact_keys(plan_of(identity))
    assert {key.key for key in keys if key.tuned_by_server} == set(truth["keys"])
    for key in keys:
        custom_op = key.key.split("'")[1]
        assert list(key.policy) == truth["policy"][custom_op]


@pytest.mark.parametrize("identity", REJECTED)
def test_rows_that_the_server_rejects(identity):
    with pytest.raises(DeploymentError) as caught:
        require_startable(plan_of(identity))  # as compute --keys and run ask; most are refused earlier
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("identity", [identity for identity in STARTS if row(identity, KEYS)["should_run"]])
def test_passes(identity):
    truth = row(identity, KEYS)
    resolved = resolve(deployment_of(truth))
    ran = [decision for decision in resolved.passes if decision.run and decision.name != "draft"]
    assert resolved.runtime.should_run_flashinfer_autotune == truth["should_run"]
    assert [decision.name.upper() for decision in ran] == [found["name"] for found in truth["passes"]]
    assert [decision.tokens_per_rank for decision in ran] == [found["tokens_per_rank"] for found in truth["passes"]]
    for decision, found in zip(ran, truth["passes"], strict=True):
        assert found["moe_rows"] in (None, decision.moe_rows)
    assert resolved.cache_place.key_parts[0] == truth["args"][1]
    assert truth["cache_path"] in {str(rank_file(resolved.cache_place, rank)) for rank in resolved.cache_place.ranks}


@pytest.mark.parametrize("identity", ["dsv3fp4-b200-trtllm-tp8-capture", "dsv3fp4-b200-trtllm-dpa8-capture"])
def test_captured_graphs_find_their_keys(identity):
    """What captured graphs look up, by requests a rank: keys without a last sum, which the server never tunes."""
    captured = {key for keys in row(identity, KEYS)["capture_mode_keys"].values() for key in keys}
    assert captured
    published = {key.key: key.tuned_by_server for key in exact_keys(plan_of(identity))}
    assert captured <= set(published)
    deferred = [tuned for key, tuned in published.items() if ", 0), (" in key.split("((")[1][:12]]
    assert deferred == [False] * 9  # 1, 2, 4 .. 256, which serves 192 rows


def test_prefill_sizes_are_published_beyond_what_the_server_tunes():
    # Llama-3.1-8B FP8 tp1: the server's DECODE pass tunes 20 buckets a linear, production prefill reaches 8192 as well.
    keys = exact_keys(plan_of("llama8b-fp8-h200-tp1"))
    beyond = [key.key for key in keys if not key.tuned_by_server]
    assert len(keys) == 84
    assert len(beyond) == 4
    assert all("((1, 8192, " in key for key in beyond)


def test_finalize_is_not_fused_unless_the_server_is_told_to():
    assert all(key.key.endswith(", False))") for key in exact_keys(plan_of("q30-h200-tp2")))
    assert all(key.key.endswith(", True))") for key in exact_keys(plan_of("q30-h200-tp2-finalize")))
