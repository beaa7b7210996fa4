"""One unit that cannot be tuned fails alone, with the reason that FlashInfer or torch gave."""

import pytest

from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.plan.plan import WorkUnit
from autotune_planner.tuning import flashinfer_internals as internals
from autotune_planner.tuning.simulated import CostModel
from autotune_planner.values import dataclass
from tests.tuning.plans import H200, request, small_plan, unit_tuner

pytestmark = pytest.mark.flashinfer


@dataclass(frozen=True)
class Broken(BmmFp8):
    """A linear whose weights do not fit."""

    def prepare(self, device):
        raise MemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nsecond line")


@pytest.fixture(scope="module")
def tuner():
    model = CostModel(H200, 0)
    with internals.without_gpu((9, 0), H200.name, model), internals.fresh_tuner():
        yield unit_tuner(model)


def test_a_unit_that_raises_fails_alone(tuner):
    failed = tuner.tune(request(WorkUnit("fp8_gemm", Broken(n=256, k=256), 8)))
    assert failed.failure == "MemoryError: CUDA out of memory. Tried to allocate 9 GiB."
    assert failed.entries == {}
    assert tuner.tune(request(small_plan().units[0])).failure is None


def test_a_unit_without_a_tactic_that_runs_says_so(tuner, monkeypatch):
    from flashinfer.autotuner import AutoTuner

    def no_memory(*_, **__):
        raise MemoryError

    monkeypatch.setattr(AutoTuner, "_profile_single_kernel", no_memory)
    result = tuner.tune(request(small_plan().units[-1]))
    assert result.entries == {}
    assert "did not fit" in result.failure


def test_tactics_that_flashinfer_rejects_are_listed_and_the_rest_race(tuner, monkeypatch):
    from flashinfer.autotuner import AutoTuner

    def only_tactic_5(self, runner, inputs, tactic, *_, **__):
        if tactic != 5:
            raise RuntimeError("this algorithm does not support the shape")
        return 1.0

    monkeypatch.setattr(AutoTuner, "_profile_single_kernel", only_tactic_5)
    result = tuner.tune(request(small_plan().units[-1]))
    (value,) = result.entries.values()
    assert value[:2] == ["CublasFp8GemmRunner", 5]
    assert len(result.skipped) == 8  # 8 stand-in algorithms and the default, less the one that runs


def test_tensors_are_kept_for_one_call_only(tuner):
    moe, linear = small_plan().units[0], small_plan().units[-1]
    tuner.tune(request(linear))
    prepared = tuner._prepared
    tuner.tune(request(linear))
    assert tuner._prepared is prepared
    tuner.tune(request(moe))
    assert tuner._prepared is not prepared
