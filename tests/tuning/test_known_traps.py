"""Behaviour of FlashInfer 0.7 that a tool for it falls into: first shown with FlashInfer alone, then that we do not."""

import json
import re

import pytest

from autotune_planner.engines.resolved import OpUse
from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.tuning import flashinfer_internals as internals
from autotune_planner.tuning import pool
from autotune_planner.tuning.contexts import tuning_contexts
from autotune_planner.tuning.keys import exact_keys
from autotune_planner.tuning.simulated import CostModel
from autotune_planner.tuning.tune import Options, tune
from tests.tuning.plans import H200, plan_of, qwen3_moe, request, small_plan, unit_tuner

pytestmark = pytest.mark.flashinfer

LINEAR = BmmFp8(n=4096, k=4096)


@pytest.fixture
def on_cpu():
    with (
        internals.without_gpu((9, 0), H200.name, CostModel(H200, 0)),
        internals.fresh_tuner() as tuner,
    ):
        yield tuner


def flashinfer_grid(bound):
    from flashinfer.fused_moe.utils import get_hybrid_num_tokens_buckets

    return set(get_hybrid_num_tokens_buckets(bound))


def bucket_of(key):
    """M of the first input, the token dimension of every op: ``((M, K), ..`` or ``((1, M, K), ..``."""
    return int(re.search(r"\(\((?:1, )?(\d+), \d+\)", key)[1])


def buckets(keys, intermediate=None):
    """Buckets of the keys; ``intermediate`` tells two MoE shapes apart by the last dimension of fc2."""
    return {bucket_of(key) for key in keys if intermediate is None or f", 2048, {intermediate})" in key}


def moe_use(tp, tune_max, rows):
    return OpUse("mlp.experts", qwen3_moe(tp=tp, tune_max=tune_max), rows, None, rows, None)


# Several MoE bounds in one process. ``MoERunner.refine_tuning_config`` is cached by value and writes a class attribute,
# so that a bound met for the second time changes nothing: after 8192, 64, 8192 the bound is 64.


def test_flashinfer_keeps_the_last_new_bound(on_cpu):
    tops = []
    for tune_max in (8192, 64, 8192):
        on_cpu.clear_cache()
        with tuning_contexts(None):
            qwen3_moe(tune_max=tune_max).prepare("meta")(1)()
        tops.append(max(buckets(internals.tuned_keys(on_cpu))))
    assert tops == [8192, 64, 64]


@pytest.mark.parametrize("bounds", [(8192, 64), (64, 8192)])
def test_exact_keys_of_two_bounds(bounds):
    first, second = bounds
    keys = [key.key for key in exact_keys(plan_of(moe_use(8, first, 4096), moe_use(4, second, 4096)))]
    assert buckets(keys, 768 // 8) == flashinfer_grid(first)
    assert buckets(keys, 768 // 4) == flashinfer_grid(second)


def test_what_the_server_tunes_under_two_bounds():
    keys = exact_keys(plan_of(moe_use(8, 8192, 4096), moe_use(4, 64, 4096), moe_use(2, 8192, 4096)))
    assert all(key.tuned_by_server for key in keys)


def test_a_worker_is_started_anew_for_another_bound(monkeypatch, tmp_path):
    starts = []
    start = pool._Worker.start
    monkeypatch.setattr(pool._Worker, "start", lambda self: (starts.append(self.spec.index), start(self)))
    plan = plan_of(moe_use(8, 16, 16), moe_use(4, 4, 4), OpUse("attn.o_proj", LINEAR, 4, None, 4, None))
    tuned = tune(plan, device="simulated", devices=1, work_dir=tmp_path, observer=lambda event: None, options=Options())
    assert tuned.failures == ()
    assert buckets(tuned.entries, 768 // 8) == flashinfer_grid(16)
    assert buckets(tuned.entries, 768 // 4) == flashinfer_grid(4)
    assert starts == [0, 0]  # one start for each bound; a linear has none and goes anywhere


# ``save_configs`` dumps the whole in-memory table, whatever was tuned last.


def test_flashinfer_saves_all_it_ever_tuned(on_cpu, tmp_path):
    for unit in small_plan().units[:2]:
        with tuning_contexts(unit):
            unit.call.prepare("meta")(1)()
    on_cpu.save_configs(str(tmp_path / "saved.json"))
    saved = json.loads((tmp_path / "saved.json").read_text())
    assert len([key for key in saved if not key.startswith("_")]) == 2


def test_a_unit_holds_only_its_own_key(on_cpu):
    units = small_plan().units
    tuner = unit_tuner(CostModel(H200, 0))
    results = [tuner.tune(request(unit)) for unit in units]
    for unit, result in zip(units, results, strict=True):
        (key,) = result.entries
        assert key.startswith(f"('{unit.custom_op}', '{unit.call.runner}', ")
        assert bucket_of(key) == unit.bucket
    assert {key for result in results for key in result.entries} == {key.key for key in exact_keys(small_plan())}


# A custom bucket list rounds down unless ``round_up`` is given: M = 24 would be served by bucket 16, and FlashInfer's
# own mapper, which the server uses, asks for 32.


@pytest.mark.parametrize(("round_up", "bucket"), [(False, 16), (True, 32)])
def test_flashinfer_rounds_custom_buckets_down_by_default(on_cpu, round_up, bucket):
    from flashinfer.autotuner import DynamicTensorSpec, TuningConfig, autotune
    from flashinfer.autotuner.autotuner import make_bucket_mapper

    assert make_bucket_mapper((8, 16, 32, 64), round_map=round_up)(24) == bucket
    config = TuningConfig(dynamic_tensor_specs=(DynamicTensorSpec((0,), (0,), (1, 2), lambda m: m),))
    with autotune(True, tuning_buckets=(8, 16, 32, 64), round_up=round_up):
        assert on_cpu.get_effective_map_to_tuning_buckets(config)(24) == bucket


def test_flashinfer_rounds_up_where_the_server_gives_no_buckets():
    from flashinfer.fused_moe.utils import make_hybrid_bucket_mapper, map_to_hybrid_bucket_uncapped

    assert map_to_hybrid_bucket_uncapped(24) == make_hybrid_bucket_mapper(8192)(24) == 32


@pytest.mark.parametrize("call", [LINEAR, qwen3_moe()], ids=["linear", "moe"])
@pytest.mark.parametrize("m", [17, 24, 32])
def test_a_unit_serves_every_size_of_its_bucket(on_cpu, call, m):
    plan = plan_of(OpUse("layer", call, None, None, 32, None))
    units = [unit for unit in plan.units if unit.bucket == 32]
    bind = call.prepare("meta")
    for unit in units:
        with tuning_contexts(unit):
            bind(m)()
    assert buckets(internals.tuned_keys(on_cpu)) == {32}
    with internals.watched_tuner() as watch:
        bind(m)()  # as in serving: no context, the op's own mapper
    assert (watch.hits, watch.misses) == (list(call.custom_ops), [])


# The top bucket: a bounded op asks for its bound even off the grid, an unbounded one rounds up to the grid.


@pytest.mark.parametrize(
    ("call", "rows", "top"),
    [
        (qwen3_moe(tune_max=1000), 1000, 1000),
        (qwen3_moe(tune_max=1000), 4096, 1000),
        (qwen3_moe(tune_max=8184), 8184, 8184),
        (LINEAR, 3906, 4096),
        (LINEAR, 4096, 4096),
    ],
)
def test_the_top_bucket(call, rows, top):
    keys = exact_keys(plan_of(OpUse("layer", call, rows, None, rows, None)))
    assert max(buckets(key.key for key in keys)) == top
    assert all(key.tuned_by_server for key in keys)
