"""The same path on a real GPU: a tiny FP8 linear tuned and replayed. Minutes where its module must be compiled."""

import pytest

from autotune_planner.cache.merge import merged
from autotune_planner.cache.v1 import entry_of, render_v1
from autotune_planner.deployment.model import Gpu
from autotune_planner.engines.resolved import OpUse
from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.proof.replay import Step, replay
from autotune_planner.proof.whole_op import ROUNDS, Variant, time_ops
from autotune_planner.tuning.devices import cuda_devices
from autotune_planner.tuning.keys import exact_keys
from autotune_planner.tuning.messages import ModuleReady, UnitFinished
from autotune_planner.tuning.tune import Options, tune
from tests.tuning.plans import plan_of

pytestmark = [pytest.mark.gpu, pytest.mark.flashinfer]

TINY = BmmFp8(n=256, k=256)


@pytest.fixture(scope="module")
def device():
    found = cuda_devices()
    if not found:
        pytest.skip("no GPU that torch can see")
    if found[0].compute_capability < (9, 0):
        pytest.skip(f"{found[0]}: SGLang tunes on SM90 and newer")
    return found[0]


@pytest.fixture(scope="module")
def gpu(device):
    return Gpu(device.name, "nvidia", device.memory_mib, device.compute_capability, None)


@pytest.fixture(scope="module")
def plan(gpu):
    """Buckets 1, 2, 4 .. 64: seven work units."""
    return plan_of(OpUse("attn.o_proj", TINY, 64, None, 64, None), gpu=gpu)


@pytest.fixture(scope="module")
def tuned(device, plan, tmp_path_factory):
    work_dir, events = tmp_path_factory.mktemp("run"), []
    result = tune(plan, device="cuda", devices=[device], work_dir=work_dir, observer=events.append, options=Options())
    return result, events, work_dir


def test_every_unit_is_tuned_under_the_planned_key(tuned, plan, device):
    result, events, _ = tuned
    assert result.failures == ()
    assert set(result.entries) == {key.key for key in exact_keys(plan)}
    assert len(result.entries) == 7
    assert result.metadata["gpu"] == device.name
    assert [event.name for event in events if isinstance(event, ModuleReady)] == ["gemm"]
    assert sum(isinstance(event, UnitFinished) for event in events) == 7
    assert all(unit.device_seconds is None for unit in result.results)


def test_a_second_run_tunes_nothing(tuned, plan, device):
    result, _, work_dir = tuned
    events = []
    again = tune(plan, device="cuda", devices=[device], work_dir=work_dir, observer=events.append, options=Options())
    assert (again.resumed, events) == (7, [])
    assert again.entries == result.entries


def test_the_published_file_serves_without_a_timing(tuned, gpu, tmp_path):
    result, _, _ = tuned
    path = tmp_path / "rank.json"
    path.write_bytes(render_v1(result.metadata, merged(entry_of(*item) for item in result.entries.items())))
    steps = [Step(TINY, m) for m in (1, 3, 24, 64)]
    report = replay([str(path)], steps, device="cuda", gpu=gpu, log_path=str(tmp_path / "replay.log"))
    assert report.loaded
    assert report.served
    assert sum(call.timings for call in report.calls) == 0


def test_whole_ops_are_timed_in_graphs(tuned, gpu, tmp_path):
    result, _, _ = tuned
    path = tmp_path / "rank.json"
    path.write_bytes(render_v1(result.metadata, merged(entry_of(*item) for item in result.entries.items())))
    variants = [Variant("fallback", None), Variant("ours", str(path))]
    calls = [(TINY, 24), (TINY, 64)]
    timed, machine = time_ops(calls, variants, device="cuda", gpu=gpu, log_path=str(tmp_path / "bench.log"))
    assert machine.metadata == result.metadata
    assert [(one.call, one.m) for one in timed] == calls
    for one in timed:
        assert dict(one.tactics["fallback"]) == {"fp8_gemm": -1}
        for state in ("hot", "cold"):
            for samples in one.samples[state].values():
                assert len(samples) == ROUNDS
                assert all(0.5 < us < 1000 for us in samples)  # a launch takes microseconds
