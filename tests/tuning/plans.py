"""Small plans for tests of tuning: real ops of the shipped models at TP sizes, without a deployment file."""

from types import SimpleNamespace

from autotune_planner.deployment.model import Gpu, Traffic
from autotune_planner.engines.resolved import OpUse
from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.ops.cutlass_fused_moe import CutlassFusedMoe
from autotune_planner.plan.plan import make_plan

H200 = Gpu("NVIDIA H200", "nvidia", 143771, (9, 0), 132, profile="H200-141G")


def qwen3_moe(tp=8, tune_max=8192):
    """Qwen3-30B-A3B: 128 experts, hidden 2048, MoE intermediate 768, top-8."""
    return CutlassFusedMoe(
        num_experts=128,
        local_experts=128,
        hidden_size=2048,
        intermediate_size=768 // tp,
        top_k=8,
        tp_size=tp,
        ep_size=1,
        tune_max_num_tokens=tune_max,
    )


def plan_of(*uses, gpu=H200):
    return make_plan(SimpleNamespace(ops=uses, gpu=gpu, traffic=Traffic()))


def small_plan():
    """Two custom ops of one MoE and one linear, 4 buckets each: 12 work units."""
    moe = OpUse("mlp.experts", qwen3_moe(tune_max=8), 8, None, 8, None)
    linear = OpUse("attn.o_proj", BmmFp8(n=4096, k=4096), 8, None, 8, None)
    return plan_of(moe, linear)


def unit_tuner(model, planted=(), said=None):
    """A worker's tuner in this process, on the simulated device; what it sends is appended to ``said``."""
    from autotune_planner.tuning.messages import WorkerSpec
    from autotune_planner.tuning.worker import _UnitTuner

    spec = WorkerSpec(0, "simulated", None, H200, 0, "worker-0.log", tuple(planted))
    return _UnitTuner(spec, "meta", model, (lambda message: None) if said is None else said.append)


def request(unit, strategy="stock", **how):
    from autotune_planner.tuning.messages import TuneUnit

    return TuneUnit(unit, strategy, **how)
