"""Every op family: what it keeps in memory, what the tuner makes, and the key of one bucket as the reference has it."""

import dataclasses
import pickle
import weakref

import pytest

from autotune_planner import profiles
from autotune_planner.deployment.gpus import load_gpu
from autotune_planner.ops.tensors import bytes_of
from autotune_planner.plan.forecast import forecast_units
from autotune_planner.plan.modules import build_seconds
from autotune_planner.plan.plan import WorkUnit
from autotune_planner.tuning import flashinfer_internals as internals
from autotune_planner.tuning.contexts import tuning_contexts
from autotune_planner.tuning.simulated import CostModel
from tests.ops import families
from tests.ops.test_op_memory import spec
from tests.tuning.plans import H200

GPU_NAME = "a GPU"


def keys_of(call, capability, m):
    with (
        internals.silenced(),
        internals.without_gpu(capability, GPU_NAME, lambda *_: 1.0),
        internals.fresh_tuner() as tuner,
        tuning_contexts(None),
    ):
        call.prepare("meta")(m)()
        return internals.tuned_keys(tuner)


@families.each()
def test_calls_are_values(call, capability):
    copy = pickle.loads(pickle.dumps(call))
    assert copy == call
    assert hash(copy) == hash(call)
    assert repr(copy) == repr(call)
    assert call.unsupported_reason(capability) is None
    assert call.unsupported_reason((7, 5)) is not None


@families.each()
def test_every_runner_has_a_forecast_and_every_module_a_build_time(call, capability):
    table = profiles.table("search")["runners"]
    assert table[call.searched_as]["basis"] in ("measured", "listed", "estimate")
    for module in call.jit_modules(capability):
        assert build_seconds(module.name, 1) > 0
    unit = WorkUnit(call.custom_ops[0], call, 64)
    assert forecast_units([unit], H200, "stock")[0].seconds > 0


@pytest.mark.flashinfer
@families.each()
@pytest.mark.parametrize("m", [1, 200])
def test_prepare_and_bind_keep_exactly_what_is_listed(call, capability, m):
    families.require(call)
    import flashinfer.fused_moe  # noqa: F401 - makes a few constants of its own when first imported
    from torch.utils._python_dispatch import TorchDispatchMode

    made = []

    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            made.extend(map(weakref.ref, result if isinstance(result, list | tuple) else [result]))
            return result

    with internals.without_gpu(capability, GPU_NAME, lambda *_: 1.0):
        with Recorded():
            launch = call.prepare("meta")(m)
        alive = [tensor for tensor in (reference() for reference in made) if tensor is not None]
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in alive}
        assert sum(storages.values()) == call.weight_bytes() + bytes_of(call.inputs(m))
        output = launch()
    if getattr(call, "finalize", True) and output is not None and output.is_meta:
        assert spec(output, "output") == call.output(m)


@pytest.mark.flashinfer
@families.each()
def test_the_tuner_makes_exactly_the_listed_tensors(call, capability, monkeypatch):
    families.require(call)
    from flashinfer.autotuner import AutoTuner

    made = []
    make = vars(AutoTuner)["_create_tensor_like"]

    def create(self, origin, dims, initializer):
        tensor = make(self, origin, dims, initializer)
        made.append(spec(tensor))
        return tensor

    monkeypatch.setattr(AutoTuner, "_create_tensor_like", create)
    unit = WorkUnit(call.custom_ops[0], call, 256)
    with internals.without_gpu(capability, GPU_NAME, lambda *_: 1.0), internals.fresh_tuner(), tuning_contexts(unit):
        call.prepare("meta")(1)()
    assert [(tensor.shape, tensor.dtype) for tensor in made] == [
        (tensor.shape, tensor.dtype) for tensor in call.tuner_inputs(256)
    ]


@pytest.mark.flashinfer
@families.each()
def test_policies(call, capability):
    """Cold where the op measures with a cold L2 cache; of those only CuTe DSL's MoE replays no graph."""
    families.require(call)
    replays = None if call.family == "cute_dsl_moe" or not call.cold_l2 else 1
    expected = ("cuda_graph_profile_replays", replays, "l2_cache_policy", "cold" if call.cold_l2 else "hot")
    assert set(keys_of(call, capability, 8).values()) == {expected}


@pytest.mark.flashinfer
@families.each()
def test_the_simulated_device_times_every_family(call, capability):
    families.require(call)
    model = CostModel(load_gpu("B200"), 0)
    with (
        internals.silenced(),
        internals.without_gpu(capability, GPU_NAME, model),
        internals.fresh_tuner() as tuner,
        tuning_contexts(WorkUnit(call.custom_ops[-1], call, 64)),
    ):
        call.prepare("meta")(1)()
        assert len(tuner.profiling_cache) == 1
    assert model.elapsed_ms > 0


@pytest.mark.flashinfer
@families.each()
def test_buckets_of_one_call(call, capability):
    """300 tokens: the capped CUTLASS MoE profiles its whole grid of 21, the others end at 512, which serves 300."""
    families.require(call)
    keys = keys_of(call, capability, 300)
    assert len(keys) == {"cutlass_fused_moe": 2 * 21}.get(call.family, 10)
    assert call.bound_of(300) == {"cutlass_fused_moe": 8192, "trtllm_moe": 512}.get(call.family)


# Keys that the reference prints for ops without a row in the truth: op contracts, sections 1.1, 1.2 and 1.3.
_ROUTED_8 = "(0,), (64, 8), (64, 8)"
CONTRACTS = {
    "cutlass-mxfp8": "('trtllm::fused_moe::gemm1', 'MoERunner', ((64, 3072), (128, 768, 192), (128, 768), "
    "(128, 3072, 24), (128, 3072)), (torch.float8_e4m3fn, torch.int64, torch.bfloat16, 4, 8, 1, 1, False, False, "
    "False, True, False, False, True, 3, False, False))",
    "trtllm-mxint4": "('flashinfer::trtllm_mxint4_block_scale_moe', 'MoERunner', ((64, 7168), (64, 384), (64,), "
    "(64,), (64, 7168), (0,), (0,), (0,)), ('Module', 8, 48, 384, 0, 1052672, 17892366, 0, 7168, 7168, 2048, 3, True, "
    "2, False, False))",
    "trtllm-bf16-routed": f"('flashinfer::trtllm_bf16_moe', 'MoERunner', ((64, 7168), {_ROUTED_8}, (64, 7168), (0,), "
    "(0,), (0,)), ('Module', 8, 32, 256, 0, 1052672, 1052672, 0, 7168, 7168, 2048, 3, True, 2, False, False))",
    "trtllm-nvfp4-deferred": "('flashinfer::trtllm_fp4_block_scale_moe', 'MoERunner', ((64, 0), (64, 256), (64, 8), "
    "(64, 8), (64, 3584), (64, 448), (0,), (0,)), ('Module', 8, 32, 256, 0, 17826818, 17826818, 0, 7168, 7168, 2048, "
    "3, True, 0, False, False))",
}


@pytest.mark.flashinfer
@pytest.mark.parametrize("name", CONTRACTS)
def test_keys_by_the_contracts(name):
    call, capability = families.CALLS[name]
    assert CONTRACTS[name] in keys_of(call, capability, 64)


def test_cute_dsl_moe_key_has_the_contract_s_inputs_in_order():
    pytest.importorskip("triton")
    call, capability = families.CALLS["cute-moe"]
    inputs = "((64, 3584), (64, 448), (64, 8), (64, 8), (32, 4096, 3584), "
    assert any(
        f"('CuteDslMoEWrapper::run::w4a4::Swiglu', 'CuteDslFusedMoERunner', {inputs}" in key
        for key in keys_of(call, capability, 64)
    )


def test_weights_of_one_rank_by_hand():
    moe = families.CALLS["cutlass-w4a16"][0]
    numbers = 128 * 3 * 384 * 3072  # experts x (gate, up, down) x intermediate x hidden
    biases, gate = 128 * (2 * 384 + 3072) * 2, 3 * 128 * 4
    assert moe.weight_bytes() == numbers // 2 + numbers // 32 + biases + gate
    fp8 = families.CALLS["cutlass-fp8"][0]
    assert fp8.weight_bytes() == 128 * 3 * 192 * 2048 + (2 * 128 + 2) * 4
    block = families.CALLS["trtllm-fp8-block"][0]
    assert block.weight_bytes() == 32 * 3 * 2048 * 7168 + 32 * 3 * 16 * 56 * 4
    linear = families.CALLS["mm_fp4-cute"][0]
    assert linear.weight_bytes() == 7168 * 2304 // 2 + 7168 * 144 + 4


def test_flops_of_one_rank_s_share():
    """DeepSeek-V3 at ep8: of 64 tokens x 8 experts, 64 rows are here, each of three matrices of 2048 x 7168."""
    call, _ = families.CALLS["trtllm-bf16"]
    assert call.flops(call.custom_ops[0], 64) == 64 * 3 * 2048 * 7168 * 2
    assert dataclasses.replace(call, local_experts=256).flops(call.custom_ops[0], 64) == 512 * 3 * 2048 * 7168 * 2
