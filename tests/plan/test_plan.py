"""Which buckets are tuned, in which phase, and why."""

from autotune_planner.engines.resolved import OpUse
from autotune_planner.ops.bmm_fp8 import BmmFp8
from tests.tuning.plans import plan_of, qwen3_moe

QKV = BmmFp8(n=6144, k=4096)


def phases(plan):
    return [(op.custom_op, op.phase, len(op.buckets), op.buckets[-1], op.covers) for op in plan.ops]


def test_prefill_buckets_are_tuned_even_where_the_server_has_no_extend_pass():
    # Llama-3.1-8B FP8 at tp1: 3906 requests, chunk 8192, EXTEND off. 20 buckets from the server, one more from us.
    plan = plan_of(OpUse("attn.qkv_proj", QKV, 3906, None, 3906, 8192))
    assert phases(plan) == [("fp8_gemm", "decode", 20, 4096, 3906), ("fp8_gemm", "extend", 21, 8192, 8192)]
    assert len(plan.units) == 21
    assert [op.reason for op in plan.ops] == ["at start, production", "production"]


def test_a_moe_has_two_custom_ops_with_the_same_buckets():
    plan = plan_of(OpUse("mlp.experts", qwen3_moe(), 4096, None, 4096, 8192))
    assert {op.custom_op for op in plan.ops} == {"trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2"}
    assert {len(op.buckets) for op in plan.ops} == {21}
    assert len(plan.units) == 42


def test_a_decode_worker_has_no_prefill_rows():
    # PD decode, 300 requests: the bound is next_power_of_two(300) = 512, 10 buckets for each of the two GEMMs.
    plan = plan_of(OpUse("mlp.experts", qwen3_moe(tune_max=512), 300, None, 300, None))
    assert {op.phase for op in plan.ops} == {"decode"}
    assert len(plan.units) == 20


def test_a_prefill_worker_keeps_what_the_server_tunes_though_it_never_serves_it():
    plan = plan_of(OpUse("attn.qkv_proj", QKV, 3906, None, None, 8192))
    decode, extend = plan.ops
    assert decode.buckets[-1] == 4096
    assert decode.reason == "at start only"
    assert extend.covers == 8192


def test_units_are_distinct_and_ordered_by_call_then_size():
    plan = plan_of(OpUse("attn.qkv_proj", QKV, 8, None, 8, 16), OpUse("again", QKV, 8, None, 8, 16))
    assert [unit.bucket for unit in plan.units] == [16, 8, 4, 2, 1]
    assert len({unit.id for unit in plan.units}) == 5


def test_nothing_reached_nothing_planned():
    assert plan_of().units == ()
