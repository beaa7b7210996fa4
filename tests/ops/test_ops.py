"""Op families: what they call, weigh and need. Sizes by arithmetic from the shipped models' configurations."""

import dataclasses
import pickle

import pytest

from autotune_planner.ops.base import JitModule
from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.ops.cutlass_fused_moe import CutlassFusedMoe

QKV = BmmFp8(n=6144, k=4096)  # Llama-3.1-8B: 32 query and 2 * 8 key and value heads of 128, hidden 4096
MOE = CutlassFusedMoe(
    num_experts=128,
    local_experts=128,
    hidden_size=2048,
    intermediate_size=768,
    top_k=8,
    tp_size=1,
    ep_size=1,
    tune_max_num_tokens=8192,
)  # Qwen3-30B-A3B at tp1
DEEPSEEK = CutlassFusedMoe(
    num_experts=256,
    local_experts=256,
    hidden_size=7168,
    intermediate_size=2048,
    top_k=8,
    tp_size=1,
    ep_size=1,
    tune_max_num_tokens=8192,
)
CALLS = pytest.mark.parametrize("call", [QKV, MOE, DEEPSEEK], ids=["linear", "qwen3", "deepseek"])


def test_custom_ops_are_flashinfer_s_names():
    assert QKV.custom_ops == ("fp8_gemm",)
    assert MOE.custom_ops == ("trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2")


def test_only_the_moe_is_bounded():
    assert QKV.tune_max is None
    assert MOE.tune_max == 8192
    assert dataclasses.replace(MOE, tune_max_num_tokens=1000).tune_max == 1000


def test_weights_of_one_rank():
    assert QKV.weight_bytes() == 6144 * 4096  # FP8
    assert MOE.weight_bytes() == 128 * 3 * 768 * 2048 * 2 == 1_207_959_552  # gate, up and down in bf16
    tp8 = dataclasses.replace(MOE, intermediate_size=96, tp_size=8)
    ep8 = dataclasses.replace(MOE, local_experts=16, ep_size=8)
    assert tp8.weight_bytes() * 8 == ep8.weight_bytes() * 8 == MOE.weight_bytes()


def test_labels():
    assert QKV.label == "N6144 K4096"
    assert MOE.label == "E128 H2048 I768 k8"


@pytest.mark.parametrize("capability", [(8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)])
def test_supported_architectures(capability):
    assert QKV.unsupported_reason(capability) is None
    assert MOE.unsupported_reason(capability) is None


@pytest.mark.parametrize(("capability", "name"), [((8, 0), "SM80"), ((7, 5), "SM75")])
def test_unsupported_architectures_are_named(capability, name):
    assert QKV.unsupported_reason(capability) == f"FP8 needs SM89 or newer, this is {name}"
    assert name in MOE.unsupported_reason(capability)


def test_a_moe_without_a_module_is_unsupported():
    assert "SM110" in MOE.unsupported_reason((11, 0))


@pytest.mark.parametrize(
    ("capability", "name"),
    [((8, 9), "89"), ((9, 0), "90"), ((10, 0), "100"), ((10, 3), "103"), ((12, 0), "120"), ((12, 1), "120")],
)
def test_modules(capability, name):
    assert QKV.jit_modules(capability) == (JitModule("gemm", "flashinfer.jit.gemm:gen_gemm_module", 3),)
    (module,) = MOE.jit_modules(capability)
    assert module.name == f"fused_moe_{name}"
    assert module.generator == f"flashinfer.jit.fused_moe:gen_cutlass_fused_moe_sm{name}_module"


@CALLS
def test_calls_are_values(call):
    copy = pickle.loads(pickle.dumps(call))
    assert copy == call
    assert copy is not call
    assert hash(copy) == hash(call)
    assert repr(copy) == repr(call)  # work units are named by it in the journal
    with pytest.raises(dataclasses.FrozenInstanceError):
        call.tp_size = 2


def test_every_field_tells_calls_apart():
    for field in dataclasses.fields(MOE):
        value = getattr(MOE, field.name)
        other = not value if isinstance(value, bool) else "fp8" if isinstance(value, str) else value + 1
        assert dataclasses.replace(MOE, **{field.name: other}) != MOE


@pytest.mark.flashinfer
@pytest.mark.parametrize(
    ("call", "dtype"),
    [(QKV, "float8_e4m3fn"), (MOE, "bfloat16"), (DEEPSEEK, "bfloat16")],
    ids=["linear", "qwen3", "deepseek"],
)
def test_nothing_is_materialised_on_meta(call, dtype):
    # DeepSeek-V3's experts of one layer would take 22 GB.
    import flashinfer.fused_moe  # noqa: F401 - makes a few constants of its own when first imported
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    made = []

    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            made.extend(result if isinstance(result, list | tuple) else [result])
            return result

    with Recorded():
        bind = call.prepare("meta")
        storages = {
            tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes()
            for tensor in made
            if tensor.dtype is getattr(torch, dtype)
        }
        launch = bind(8192)
    assert callable(launch)
    assert {tensor.device.type for tensor in made} == {"meta"}
    assert sum(storages.values()) == call.weight_bytes()
