"""What a unit is expected to take, worked out from the figures of the H200's profile and profiles/search.yaml."""

import pytest

from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.ops.mm_fp4 import CuteDslMmFp4
from autotune_planner.plan.forecast import forecast_units
from autotune_planner.plan.plan import WorkUnit
from tests.tuning.plans import H200, qwen3_moe


def of(call, bucket, strategy):
    (found,) = forecast_units([WorkUnit(call.custom_ops[0], call, bucket)], H200, strategy)
    return found


def test_a_linear_by_hand():
    # FP8 weight, one token of inputs and a scale, a bfloat16 output, at 4800 GB/s; 9 tactics take 1.1 times that
    launch = (6144 * 4096 + 4096 + 4 + 2 * 6144) / 4800e9
    found = of(BmmFp8(n=6144, k=4096), 1, "race")
    assert found.candidates == 9
    assert found.launch_seconds == pytest.approx(launch)
    assert found.seconds == pytest.approx(0.027 + 9 * (0.00006 + 1.1 * launch) + 60 * launch)
    assert of(BmmFp8(n=6144, k=4096), 1, "stock").seconds == pytest.approx(0.02 + 9 * (0.0053 + 13 * 1.1 * launch))


def test_a_large_moe_gemm_is_bound_by_its_operations():
    # 8192 x 8 routed rows times 2 x 768 columns of 2048, at 989 TFLOP/s
    launch = 2 * 8192 * 8 * 2 * 768 * 2048 / 989e12
    found = of(qwen3_moe(tp=1), 8192, "race")
    assert found.launch_seconds == pytest.approx(launch, rel=1e-9)
    assert found.seconds == pytest.approx(0.027 + 46 * (0.00006 + 3.6 * launch) + 350 * launch, rel=1e-9)


def test_what_is_measured_with_a_cold_cache_is_left_to_flashinfer_s_loop():
    call = CuteDslMmFp4(n=4096, k=4096)
    assert call.cold_l2
    assert of(call, 1024, "race") == of(call, 1024, "stock")
