"""Exact cache keys against those that the real server's own call sites produced (truth/keys-sglang-0.5.23.jsonl)."""

import re

import pytest

from autotune_planner.cache.sglang_layout import rank_file
from autotune_planner.engines import resolve
from autotune_planner.plan.plan import make_plan
from autotune_planner.tuning.keys import exact_keys
from tests.engines.truth import deployment_of, row, rows

pytestmark = pytest.mark.flashinfer

KEYS = "keys-sglang-0.5.23.jsonl"
# The deployments of this release of the tool: bf16 MoE on flashinfer_cutlass, and dense ModelOpt FP8.
PLANNED = [
    found["id"]
    for found in rows(KEYS)
    if found["keys"]
    and (
        re.match(r"q(30|235)-(h200|b200-cutlass)", found["id"])
        or found["id"].startswith(("llama8b-fp8", "q30-fp8-h200-tp"))
    )
]


def plan_of(identity):
    return make_plan(resolve(deployment_of(row(identity, KEYS))))


def test_the_named_rows_are_among_them():
    named = {f"q30-h200-{name}" for name in ("tp2", "tp8", "tp4-ep4", "dpa8", "dpa8-extend", "tp4-pd-prefill")}
    named |= {f"q30-h200-{name}" for name in ("tp4-pd-decode", "tp8-chunk1000", "tp8-chunk5000")}
    named |= {f"llama8b-fp8-h200-{name}" for name in ("tp1", "tp2", "tp8", "tp1-extend", "tp1-maxreq300")}
    assert named <= set(PLANNED)


@pytest.mark.parametrize("identity", PLANNED)
def test_keys_tuned_by_the_server(identity):
    truth = row(identity, KEYS)
    keys = exact_keys(plan_of(identity))
    assert {key.key for key in keys if key.tuned_by_server} == set(truth["keys"])
    for key in keys:
        custom_op = key.key.split("'")[1]
        assert list(key.policy) == truth["policy"][custom_op]


@pytest.mark.parametrize("identity", PLANNED)
def test_passes(identity):
    truth = row(identity, KEYS)
    resolved = resolve(deployment_of(truth))
    ran = [decision for decision in resolved.passes if decision.run]
    assert resolved.runtime.should_run_flashinfer_autotune == truth["should_run"]
    assert [decision.name.upper() for decision in ran] == [found["name"] for found in truth["passes"]]
    assert [decision.tokens_per_rank for decision in ran] == [found["tokens_per_rank"] for found in truth["passes"]]
    for decision, found in zip(ran, truth["passes"], strict=True):
        assert found["moe_rows"] in (None, decision.moe_rows)
    assert resolved.cache_place.key_parts[0] == truth["args"][1]
    assert truth["cache_path"] in {str(rank_file(resolved.cache_place, rank)) for rank in resolved.cache_place.ranks}


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
