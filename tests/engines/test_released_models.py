"""Released models of several architectures against what the released wheel itself resolved for them.

The rows' origin is in ``tests/data/models/README.md``.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune_planner.deployment.gpus import load_gpu
from autotune_planner.deployment.launch_line import deployment_of_launch_line
from autotune_planner.deployment.models import hf_id, model_from_config, profile_model
from autotune_planner.engines import resolve
from autotune_planner.engines.sglang_0_5_23 import quantization
from autotune_planner.engines.sglang_0_5_23.model import model_facts
from autotune_planner.errors import DeploymentError

DATA = Path(__file__).parents[1] / "data" / "models"
ROWS = [json.loads(line) for line in (DATA / "resolved-sglang-0.5.23.jsonl").read_text().splitlines()]


def resolved(model, gpu, arguments):
    line = ["--model-path", hf_id(model.lower()), *arguments.split()]
    return resolve(deployment_of_launch_line(line, gpu=load_gpu(gpu), kv_token_capacity=1_000_000), {})


def graph(settings):
    return None if settings.backend == "disabled" else [settings.backend, settings.max_bs]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']} {row['gpu']} {row['args']}")
def test_resolved_as_the_release_does(row):
    if "error" in row:
        with pytest.raises(DeploymentError) as caught:
            resolved(row["model"], row["gpu"], row["args"])
        assert caught.value.code == "server-rejects"
        return
    found = resolved(row["model"], row["gpu"], row["args"])
    arguments = found.arguments
    assert {
        "attention": [arguments.prefill_attn_backend, arguments.decode_attn_backend],
        "page_size": arguments.page_size,
        "quantization": arguments.quantization,
        "moe_runner_backend": arguments.moe_runner_backend,
        "ep_size": arguments.ep_size,
        "mem_fraction_static": arguments.mem_fraction_static,
        "chunked_prefill_size": arguments.chunked_prefill_size,
        "decode_graph": graph(arguments.cuda_graph_decode),
        "prefill_graph": graph(arguments.cuda_graph_prefill),
        "speculative": [
            arguments.speculative_algorithm,
            arguments.speculative_num_steps,
            arguments.speculative_eagle_topk,
            arguments.speculative_num_draft_tokens,
        ],
        "dtype": found.dtype,
        "config_class": found.cache_place.key_parts[8],
    } == row["resolved"]


def test_a_pool_of_recurrent_states_may_hold_fewer_requests():
    """``kv_cache_configurator.resolve_max_num_reqs``: hybrid models only."""
    codes = {
        model: {notice.code for notice in resolved(model, "B200", "--tp 8").notices}
        for model in ("Qwen3.5-397B-A17B", "Qwen3-235B-A22B")
    }
    assert "recurrent-states" in codes["Qwen3.5-397B-A17B"]
    assert "recurrent-states" not in codes["Qwen3-235B-A22B"]


def quantized(name, content, *, beside=False):
    """A released model with another quantization, in its config.json or in ModelOpt's file beside it."""
    config = {key: value for key, value in profile_model(name).config.items() if key != "quantization_config"}
    if beside:
        return model_from_config(config, {"quantization": content})
    return model_from_config({**config, "quantization_config": content})


def moe_of(model, gpu="B200", arguments="--tp 8"):
    given = deployment_of_launch_line(
        ["--model-path", "Qwen/Qwen3-30B-A3B", *arguments.split()], gpu=load_gpu(gpu), kv_token_capacity=1_000_000
    )
    found = resolve(replace(given, model=model), {}).arguments
    return found.moe_runner_backend, found.quantization


NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
INT4 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group"}}},
}


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        # minimax_m2._minimax_m2_overrides: the argument stays out, the runner is the routed one
        ("minimax-m2", NVFP4, ("flashinfer_trtllm_routed", None)),
        # glm4_moe._glm4_moe_overrides: NVFP4 and bf16 only
        ("glm-4.6", NVFP4, ("flashinfer_trtllm", "modelopt_fp4")),
        ("glm-4.6", {"quant_method": "fp8"}, ("auto", "fp8")),
        # overrides._deepseek_moe_quant_resolution: 4-bit integers in groups of 32, as Kimi-K2 Thinking has them
        ("kimi-k2-instruct", INT4, ("flashinfer_trtllm", "compressed-tensors")),
        ("deepseek-v3.2", NVFP4, ("flashinfer_trtllm", "modelopt_fp4")),
        # qwen3_moe._qwen3_moe_family_overrides
        ("qwen3.5-397b-a17b", NVFP4, ("flashinfer_trtllm", "modelopt_fp4")),
        ("qwen3-30b-a3b", INT4, ("auto", "compressed-tensors")),
        (
            "qwen3-30b-a3b",
            {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {"model.layers.0.mlp.experts": {"quant_algo": "W4A16_NVFP4"}},
            },
            ("marlin", "modelopt_mixed"),
        ),
    ],
)
def test_moe_runner_of_quantized_checkpoints_on_sm100(name, content, expected):
    assert moe_of(quantized(name, content)) == expected


def test_a_quantization_beside_config_json_does_not_reach_the_argument():
    """``utils/common.get_quantization_config`` reads ``config.json`` alone."""
    assert moe_of(quantized("qwen3-30b-a3b", NVFP4, beside=True)) == ("flashinfer_trtllm", None)


def test_experts_of_16_bit_activations_have_no_other_runner():
    mixed = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {"model.layers.0.mlp.experts": {"quant_algo": "W4A16_NVFP4"}},
    }
    with pytest.raises(DeploymentError, match="W4A16_NVFP4"):
        moe_of(quantized("qwen3-30b-a3b", mixed), arguments="--tp 8 --moe-runner-backend flashinfer_trtllm")


@pytest.mark.parametrize(
    ("content", "beside", "expected"),
    [
        ({"quant_method": "fp8"}, False, "fp8"),
        (INT4, False, "compressed-tensors"),
        ({"quant_algo": "NVFP4"}, False, "modelopt_fp4"),
        ({"quant_algo": "W4A16_NVFP4"}, True, "modelopt_fp4"),
        ({"quant_algo": "FP8"}, True, "modelopt_fp8"),
        ({"quant_algo": "MXFP8"}, True, "mxfp8"),
        ({"quant_algo": "W4A8_AWQ"}, True, None),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "NVFP4"}}}, True, "modelopt_mixed"),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "FP8"}}}, True, "w4afp8"),
    ],
)
def test_names_of_checkpoint_quantizations(content, beside, expected):
    """``ModelConfig._parse_modelopt_quant_config``."""
    facts = model_facts(quantized("qwen3-30b-a3b", content, beside=beside), "auto", None)
    assert quantization.checkpoint_quantization(facts) == expected


@pytest.mark.parametrize(
    ("flag", "checkpoint", "accepted"),
    [
        ("w8a8_int8", "compressed-tensors", True),
        ("fp8", "compressed-tensors", False),
        ("awq_marlin", "awq", True),
        ("gptq", "awq", False),
        ("gptq_marlin", "gptq", True),
        ("modelopt_fp4", "w4afp8", False),
        ("humming", "mxfp8", True),
        ("awq", "bitsandbytes", False),
    ],
)
def test_flags_that_a_checkpoint_allows(flag, checkpoint, accepted):
    """``ModelConfig._verify_quantization``: the flag is the checkpoint's method, or one that it is compatible with."""
    if accepted:
        quantization.check(flag, checkpoint, 9)
    else:
        with pytest.raises(DeploymentError, match=f"{flag} does not match the checkpoint"):
            quantization.check(flag, checkpoint, 9)
