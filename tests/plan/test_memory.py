"""Peaks of the passes and of work units: sums of terms that are worked out here."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.deployment.gpus import load_gpu
from autotune_planner.deployment.model import Decode, Deployment, Moe, Parallel, Prefill
from autotune_planner.deployment.models import profile_model
from autotune_planner.engines import resolve
from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.ops.mm_fp4 import CuteDslMmFp4
from autotune_planner.plan.memory import pass_memories, profiling_bytes, unit_memory
from autotune_planner.plan.plan import WorkUnit, make_plan
from tests.tuning.plans import qwen3_moe

TP1 = Deployment(
    gpu=load_gpu("H200"),
    model=profile_model("qwen3-30b-a3b"),
    model_path="/models/Qwen3-30B-A3B",
    prefill=Prefill(chunked_prefill_size=8192),
    decode=Decode(max_running_requests=256),
    moe=Moe(runner_backend="flashinfer_cutlass"),
    autotune_extend=True,
    kv_token_capacity=1_000_000,
)
MOE = qwen3_moe(tp=1)  # hidden 2048, intermediate 768, top-8, 128 experts
H, I, K, E, V = 2048, 768, 8, 128, 151936  # noqa: E741 - the model's usual letters


def moe_terms(m):
    routed = m * K
    return {
        "mlp.experts: inputs": m * H * 2 + routed * 4 + routed * 4,
        "mlp.experts: output": m * H * 2,
        "mlp.experts: routed rows in": routed * H * 2,
        "mlp.experts: routed rows x intermediate": routed * max(2 * I, H) * 2,
        "mlp.experts: routing maps": routed * 12 + 2 * E * m * 4 + 2 * E * 256,
    }


def dummy(tokens, requests):
    """The set without logits: 48 T + T*H*2 + 16 bs + (bs + T) + 8."""
    return 48 * tokens + tokens * H * 2 + 16 * requests + requests + tokens + 8


def test_peak_of_the_decode_pass():
    (decode, _) = pass_memories(resolve(TP1))
    terms = dict(decode.terms)
    # It profiles the whole grid up to its bound of 8192, whatever it is sent.
    profiler = terms.pop("FlashInfer's profiler")
    assert profiler == profiling_bytes(MOE, MOE.custom_ops[0], 8192)
    assert terms == {
        "decode set": dummy(256, 256),
        "decode set, float32 logits": 256 * V * 4,
        "hidden states and residual": 2 * 256 * H * 2,
        **moe_terms(256),
    }
    assert decode.total == sum(terms.values()) + profiler


def test_the_extend_pass_runs_beside_the_decode_set():
    terms = dict(pass_memories(resolve(TP1))[1].terms)
    terms.pop("FlashInfer's profiler")
    assert terms == {
        "decode set": dummy(256, 256),
        "decode set, float32 logits": 256 * V * 4,
        "extend set": dummy(8192, 8192),
        "hidden states and residual": 2 * 8192 * H * 2,
        **moe_terms(8192),
    }


def test_gathered_rows_and_the_a2a_workspace_are_counted():
    deployment = replace(
        TP1,
        parallel=Parallel(tp=8, dp=8, dp_attention=True),
        prefill=Prefill(chunked_prefill_size=32768),
        moe=Moe(runner_backend="flashinfer_cutlass", a2a_backend="flashinfer"),
    )
    extend = dict(pass_memories(resolve(deployment))[1].terms)
    assert extend["flashinfer_a2a"] == 271_253_888  # ep 8, M 4096, H 2048, k 8
    assert extend["gathered hidden states"] == 8 * 4096 * H * 2
    assert extend["mlp.experts: output"] == 8 * 4096 * H * 2


def test_the_sweep_counts_its_own_set_and_the_lm_head():
    deployment = replace(TP1, parallel=Parallel(tp=4, pp=2), env={"SGLANG_PP_PARALLEL_DEEPGEMM_WARMUP": "1"})
    sweep = pass_memories(resolve(deployment))[-1]
    terms = dict(sweep.terms)
    assert sweep.name == "deep_gemm_pp"
    assert terms["deep_gemm_pp set, float32 logits"] == 8448 * V * 4
    assert terms["LM head logits"] == 8448 * V * 2
    assert terms["decode set, float32 logits"] == 256 * V * 4
    assert terms["deep_gemm_pp set"] == dummy(8448, 8448) + 2 * 8448 * H * 2  # and two pipeline proxies


def test_nothing_where_no_pass_runs():
    assert pass_memories(resolve(replace(TP1, moe=Moe(runner_backend="triton")))) == ()


def test_profiling_a_moe_bucket_holds_the_workspace_of_the_one_before():
    gemm1, gemm2 = (MOE.profiler_bytes(op, 8192) for op in MOE.custom_ops)
    assert gemm1 > gemm2  # three intermediate widths against one
    assert profiling_bytes(MOE, MOE.custom_ops[0], 8192) == 8192 * H * 2 + 2 * gemm1
    assert profiling_bytes(MOE, MOE.custom_ops[1], 8192) == 8192 * H * 2 + gemm1 + gemm2


def test_profiling_a_linear_is_bounded_by_the_random_output():
    # Input, output and workspace are drawn one after another, each as two float32 tensors before its cast.
    call, m = BmmFp8(n=28672, k=4096), 8192
    assert profiling_bytes(call, "fp8_gemm", m) == m * 4096 + 8 * m * 28672
    # Small M: the workspace of 40 MiB itself is drawn at random.
    assert profiling_bytes(call, "fp8_gemm", 1) == 4096 + 2 * 28672 + 8 * 40 * 2**20


def test_peak_of_a_work_unit():
    unit = WorkUnit("fp8_gemm", BmmFp8(n=6144, k=4096), 1024)
    memory = unit_memory(unit)
    assert memory.name == unit.id
    assert memory.terms == (
        ("weights", 6144 * 4096),
        ("inputs", 1024 * 4096 + 4),
        ("output", 1024 * 6144 * 2),
        ("cuBLASLt workspace", 40 * 2**20),
        ("FlashInfer's profiler", 1024 * 4096 + 1024 * 6144 * 2 + 8 * 40 * 2**20),
    )


def test_a_small_unit_s_peak_is_the_check_of_its_winner():
    # A float32 weight is larger than what the tuner draws: the workspace twice in float32, and one token.
    linear = BmmFp8(n=28672, k=4096)
    check = 4 * (28672 * 4096 + 4096 + 5 * 28672) + 4 * 28672
    assert check > profiling_bytes(linear, "fp8_gemm", 1)
    assert unit_memory(WorkUnit("fp8_gemm", linear, 1)).terms[-1] == ("check of the winner", check)
    # One token goes to 8 of 128 experts: their first matrices in bfloat16 and float32, and its rows.
    # The profiler's workspace is kept meanwhile.
    check = 8 * 2 * I * H * (2 + 4) + 4 * 8 * (3 * H + 6 * I) + 4 * H
    kept = ("FlashInfer's profiler", MOE.profiler_bytes(MOE.custom_ops[0], 1))
    assert unit_memory(WorkUnit(MOE.custom_ops[0], MOE, 1)).terms[-2:] == (kept, ("check of the winner", check))


def test_the_check_of_an_fp4_linear_decodes_its_weight_by_a_table():
    # float32 and an index of eight bytes for each number; 512 rows of inputs and five outputs; whether all is finite
    call = CuteDslMmFp4(n=4096, k=2048)
    assert call.check_bytes(1024) == (4 + 8) * 4096 * 2048 + 4 * 512 * (2048 + 5 * 4096) + 4 * 1024 * 4096


def test_a_check_holds_few_rows_and_experts():
    # 512 rows of 8 experts each, and of the whole output whether it is finite
    assert MOE.check_bytes(8192) == 8 * 2 * I * H * 6 + 4 * 512 * K * (3 * H + 6 * I) + 4 * 8192 * H
    narrow = replace(MOE, quant="nvfp4")  # no float32 reference
    assert narrow.check_bytes(8192) == 4 * 8192 * H
    decoded = replace(MOE, quant="w4a16_mxfp4")  # seven experts' three matrices of I x H in bfloat16
    assert decoded.check_bytes(8192) == MOE.check_bytes(8192) + 7 * 3 * I * H * 2


@given(m=st.integers(1, 131072), more=st.integers(1, 131072))
def test_a_larger_bucket_never_needs_less(m, more):
    for call in (MOE, BmmFp8(n=6144, k=4096)):
        for custom_op in call.custom_ops:
            small, large = (unit_memory(WorkUnit(custom_op, call, bucket)).total for bucket in (m, m + more))
            assert small <= large


def test_every_unit_of_a_plan_has_a_peak_above_its_weights():
    plan = make_plan(resolve(TP1))
    assert plan.units
    assert all(unit_memory(unit).total > unit.call.weight_bytes() for unit in plan.units)
