"""Each warning at its edge, with the figures it gives: operators act on these texts."""

import pytest

from autotune_planner.deployment.load import deployment_from
from autotune_planner.engines import resolve
from autotune_planner.engines.sglang_0_5_23 import notices

DP8 = {"tp": 8, "dp": 8, "dp_attention": True}


def of(code, **content):
    deployment = deployment_from(
        {
            "gpu": "H200",
            "model": "qwen3-30b-a3b",
            "moe": {"runner_backend": "flashinfer_cutlass"},
            "kv_token_capacity": 1_000_000,
            **content,
        }
    )
    return next((notice for notice in resolve(deployment).notices if notice.code == code), None)


class TestChunk:
    def test_machine_wide(self):
        found = of("chunk-is-machine-wide", parallel=DP8, prefill={"chunked_prefill_size": 32768})
        assert "32768 is machine-wide" in found.message
        assert "each of 8 ranks prefills 4096 tokens" in found.message  # 32768 / 8

    def test_alone(self):
        assert of("chunk-is-machine-wide") is None
        assert of("chunk-is-machine-wide", parallel=DP8, prefill={"chunked_prefill_size": -1}) is None


class TestExtend:
    def test_the_gate_is_not_strict(self):
        """32768 / 8 = 4096 tokens against 4096 requests: skipped. With one request less it is not."""
        closed = of("extend-skipped", parallel=DP8, prefill={"chunked_prefill_size": 32768})
        assert "4096 tokens are not more than the 4096 requests" in closed.message
        open_gate = {
            "parallel": DP8,
            "prefill": {"chunked_prefill_size": 32768},
            "decode": {"max_running_requests": 32760},
        }
        assert of("extend-skipped", **open_gate) is None  # 32760 / 8 = 4095

    def test_off_by_default(self):
        assert "SGLANG_FLASHINFER_AUTOTUNE_EXTEND=1" in of("extend-off").message
        assert of("extend-off", autotune={"extend": True}) is None

    def test_packing_that_exceeds_the_chunk(self):
        """8192 over 48 / 4 = 12 requests: 683 each (rounded up), 12 x 683 = 8196."""
        packed = {
            "gpu": "B200",
            "model": "qwen3-vl-30b-a3b",
            "moe": {"runner_backend": "flashinfer_trtllm"},
            "parallel": {"tp": 4, "dp": 4, "dp_attention": True},
            "prefill": {"chunked_prefill_size": 32768},
            "disaggregation": "prefill",
            "speculative": {"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4},
        }
        found = of("extend-packed", **packed)
        assert "12 requests x 683 tokens = 8196, more than the budget of 8192" in found.message
        assert of("extend-packed", **{**packed, "gpu": "H200", "moe": {"runner_backend": "flashinfer_cutlass"}}) is None
        assert notices.extend_packed(batch=8, per_request=1024, ceiling=8192) is None


def test_speculation_sets_the_requests_of_the_whole_server():
    found = of(
        "speculative-requests", parallel={"tp": 4, "dp": 4, "dp_attention": True}, speculative={"algorithm": "EAGLE"}
    )
    assert "48 for the whole server, 12 per attention-DP rank" in found.message
    given = {"speculative": {"algorithm": "EAGLE"}, "decode": {"max_running_requests": 48}}
    assert of("speculative-requests", **given) is None


def test_a2a_dummy_beyond_its_workspace():
    """65536 / 8 = 8192 requests a rank through a workspace for 32768 / 8 = 4096 tokens: the start-up check looks at
    captured graphs (512) and the chunk only."""
    content = {
        "parallel": {**DP8, "ep": 8},
        "moe": {"runner_backend": "flashinfer_cutlass", "a2a_backend": "flashinfer"},
        "prefill": {"chunked_prefill_size": 32768},
    }
    found = of("a2a-overflow", **content, decode={"max_running_requests": 65536})
    assert found.level == "error"
    assert "8192 tokens per rank through an A2A workspace for 4096" in found.message
    assert of("a2a-overflow", **content, decode={"max_running_requests": 32768}) is None  # 4096 fit


def test_32_bit_indices():
    """131072 x 8 x 2048 = 2^31."""
    found = notices.index_overflow(131072, 8, 2048)
    assert "131072 gathered rows x top-8 x intermediate 2048 = 2147483648" in found.message
    assert notices.index_overflow(131071, 8, 2048) is None
    assert of("int32-overflow") is None


def test_a_bound_below_the_largest_m():
    assert "up to 32768 rows, but its buckets end at 8192" in of("moe-bound-clamps", parallel=DP8).message
    assert notices.bound_clamps(8192, 8192) is None
    assert of("moe-bound-clamps", prefill={"chunked_prefill_size": 8192}) is None


def test_logits_in_gb():
    """4 bytes x 4096 x 151936 = 2.489e9; x 1024 = 0.62e9 is not worth a word."""
    assert "4096 x 151936: 2.5 GB" in of("dummy-logits").message
    assert of("dummy-logits", decode={"max_running_requests": 1024}) is None


@pytest.mark.parametrize("path", ["/models/Qwen3-30B-A3B", "/models/Qwen3-30B-A3B/", "Qwen/Qwen3-30B-A3B"])
def test_the_model_path_is_part_of_the_key(path):
    assert path in of("model-path-in-key", model_path=path).message


@pytest.mark.parametrize(
    ("gpu", "model", "flags", "failing"),
    [
        ("B200", "qwen3-30b-a3b", {"prefill_attention_backend": "fa3"}, "fa3"),  # SM100
        ("A100-80G", "qwen3-30b-a3b", {"attention_backend": "fa3"}, None),  # SM80
        ("A100-80G", "deepseek-v3", {"attention_backend": "fa3"}, "fa3"),  # SM80 and MLA
        ("H200", "deepseek-v3", {"attention_backend": "fa3"}, None),  # SM90
        ("H200", "qwen3-30b-a3b", {"prefill_attention_backend": "trtllm_mla"}, "trtllm_mla"),
        ("B200", "deepseek-v3", {"attention_backend": "trtllm_mla"}, None),
        ("B200", "deepseek-v3", {"decode_attention_backend": "trtllm_mha"}, "trtllm_mha"),
        ("H200", "qwen3-30b-a3b", {"decode_attention_backend": "torch_native"}, "torch_native"),
        ("H200", "qwen3-30b-a3b", {"prefill_attention_backend": "torch_native"}, None),
        ("H200", "qwen3-30b-a3b", {"attention_backend": "flex_attention"}, "flex_attention"),
        ("H200", "qwen3-30b-a3b", {"attention_backend": "flex_attention", "disable_flashinfer_autotune": True}, None),
    ],
)
def test_attention_that_fails_at_start(gpu, model, flags, failing):
    """What the released ``attention_registry`` asserts of a backend that it builds; two have no dummy batch."""
    moe = {} if model == "deepseek-v3" else {"runner_backend": "flashinfer_cutlass"}
    found = of("attention-fails", gpu=gpu, model=model, moe=moe, flags=flags)
    if failing is None:
        assert found is None
    else:
        assert found.level == "error"
        assert f"the attention backend {failing} " in found.message
