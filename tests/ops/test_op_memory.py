"""Bytes of the ops: those that torch and FlashInfer's tuner really allocate, and FlashInfer's workspace formulas."""

import weakref

import pytest

from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.ops.cutlass_fused_moe import CutlassFusedMoe
from autotune_planner.ops.tensors import TensorSpec, bytes_of, random_fill_peak
from autotune_planner.plan.plan import WorkUnit
from autotune_planner.tuning import flashinfer_internals as internals
from autotune_planner.tuning.contexts import tuning_contexts
from tests.tuning.plans import H200, qwen3_moe

QKV = BmmFp8(n=6144, k=4096)
MOE = qwen3_moe(tp=1)
CALLS = pytest.mark.parametrize("call", [QKV, MOE, qwen3_moe(tp=8)], ids=["linear", "moe", "moe-tp8"])


def spec(tensor, name=""):
    return TensorSpec(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


@pytest.mark.flashinfer
@CALLS
@pytest.mark.parametrize("m", [1, 8192])
def test_prepare_bind_and_launch_keep_exactly_what_is_listed(call, m):
    import flashinfer.fused_moe  # noqa: F401 - makes a few constants of its own when first imported
    from torch.utils._python_dispatch import TorchDispatchMode

    made = []

    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            made.extend(map(weakref.ref, result if isinstance(result, list | tuple) else [result]))
            return result

    with internals.without_gpu((9, 0), H200.name, lambda *_: 1.0):
        with Recorded():
            launch = call.prepare("meta")(m)
        alive = [tensor for tensor in (reference() for reference in made) if tensor is not None]
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in alive}
        assert sum(storages.values()) == call.weight_bytes() + bytes_of(call.inputs(m))
        assert spec(launch(), "output") == call.output(m)


@pytest.mark.flashinfer
@CALLS
def test_the_tuner_makes_exactly_the_listed_tensors_for_a_bucket(call, monkeypatch):
    from flashinfer.autotuner import AutoTuner

    made = []

    def create(self, origin, dims, initializer):
        tensor = make(self, origin, dims, initializer)
        made.append(spec(tensor))
        return tensor

    make = vars(AutoTuner)["_create_tensor_like"]
    monkeypatch.setattr(AutoTuner, "_create_tensor_like", create)
    unit = WorkUnit(call.custom_ops[0], call, 256)
    with internals.without_gpu((9, 0), H200.name, lambda *_: 1.0), internals.fresh_tuner(), tuning_contexts(unit):
        call.prepare("meta")(1)()
    assert [(tensor.shape, tensor.dtype) for tensor in made] == [
        (tensor.shape, tensor.dtype) for tensor in call.tuner_inputs(256)
    ]


def test_a_random_tensor_takes_two_float32_copies_first():
    small, large = TensorSpec("a", (10,), "bfloat16"), TensorSpec("b", (100,), "float8_e4m3fn")
    assert random_fill_peak((small,)) == 10 * 4 * 2
    assert random_fill_peak((small, large)) == 10 * 2 + 100 * 4 * 2
    assert random_fill_peak((large, small)) == 100 * 4 * 2  # 100 + 80 is less
    assert random_fill_peak(()) == 0


def test_workspace_of_the_moe_by_its_formula():
    # Qwen3-30B-A3B, tp1: 8192 tokens x top-8 = 65536 routed rows, hidden 2048, intermediate 768, 128 experts.
    rows = 65536
    scratch = dict(MOE.scratch(8192))
    assert scratch["routed rows in"] == rows * 2048 * 2  # 268 MB; its fc2 result has as many
    assert scratch["routed rows x intermediate"] == rows * 2048 * 2  # 2 x 768 gated is less than the fc2 result
    assert scratch["routing maps"] == rows * 4 * 3 + 2 * 128 * 8192 * 4 + 2 * 128 * 256
    wide = CutlassFusedMoe(256, 256, 7168, 2048 * 4, 8, 1, 1, 8192)
    assert dict(wide.scratch(1))["routed rows x intermediate"] == 8 * 2 * 8192 * 2


def test_workspace_of_the_gemm_profiler_by_its_formula():
    rows, maps = 65536, 65536 * 4 * (3 * 16 + 2) + 128 * 8192 * 4
    tables = 129 * 8 * 16 + 128 * 8 + 128 * 256 * 65
    gemm1, gemm2 = (MOE.profiler_bytes(op, 8192) for op in MOE.custom_ops)
    assert gemm1 == rows * 2048 * 2 + rows * 768 * 2 + rows * 2 * 768 * 2 + maps + tables
    assert gemm2 == rows * 768 * 2 + 2048 * 2 + rows * 2048 * 2 + maps + tables


def test_the_linear_has_a_workspace_of_40_mib():
    assert QKV.scratch(1) == QKV.scratch(8192) == (("cuBLASLt workspace", 40 * 2**20),)
    assert QKV.profiler_bytes("fp8_gemm", 8192) == 0
