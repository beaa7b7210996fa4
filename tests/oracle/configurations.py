"""What the oracle resolves: the examples, and random command lines over every flag that the planner reads."""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from autotune_planner import profiles
from autotune_planner.deployment.gpus import load_gpu
from autotune_planner.engines.sglang_0_5_23.arguments import PROFILE, ServerArguments

ROOT = Path(__file__).parents[2]
MODEL_SETS = (ROOT / "tests" / "data" / "truth" / "models", ROOT / "tests" / "data" / "models")
OTHER_NAMES = {"sglang-EAGLE3-LLaMA3.1-Instruct-8B": "EAGLE3-Llama-3.1-8B"}
"""Last component of an example's model path, where it is not the name of the model's folder."""

CAPACITY = 1_000_000  # KV tokens per rank of the random configurations, as in tests/data/truth
SEED, RANDOM_ROWS = 19, 100  # of seeds 11 to 20, one whose lines draw every flag and end in every way but a difference

_ENGINE = profiles.load("engines", PROFILE)
_DRAFTS = ("EAGLE3-Llama-3.1-8B", "Llama-3.2-1B-draft")


@dataclass(frozen=True)
class Configuration:
    """One server: its command line, and the deployment file that says the same, where there is one."""

    name: str
    gpu: str
    arguments: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    kv_token_capacity: int | None = CAPACITY
    file: Path | None = None

    @property
    def row(self) -> dict[str, Any]:
        """As ``tests/oracle/server.py`` reads it."""
        return {"args": self.arguments, "env": self.environ, "kv_token_capacity": self.kv_token_capacity}


def option(flag: str) -> str:
    """A server argument as the command line spells it."""
    return str(_ENGINE["flags"].get(flag, {}).get("cli_name") or "--" + flag.replace("_", "-"))


def model_folders() -> dict[str, Path]:
    """Every model config of the tests by its folder's name, and by the names of ``OTHER_NAMES``."""
    found = {folder.name: folder for models in MODEL_SETS for folder in sorted(models.iterdir()) if folder.is_dir()}
    return found | {name: found[folder] for name, folder in OTHER_NAMES.items()}


def gpu_names() -> list[str]:
    """The profiles of NVIDIA GPUs."""
    return [name for name in profiles.names("gpus") if profiles.load("gpus", name)["vendor"] == "nvidia"]


# The examples


def examples() -> list[Configuration]:
    """Every example of SGLang on an NVIDIA GPU."""
    return list(filter(None, map(_example, sorted((ROOT / "examples").glob("*.yaml")))))


def _example(path: Path) -> Configuration | None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    if document["engine"] != "sglang" or load_gpu(document["gpu"]).vendor != "nvidia":
        return None
    environ = {name: str(value) for name, value in document.get("env", {}).items()}
    arguments: list[str] = []
    if "launch" in document:
        words = shlex.split(document["launch"].replace("\\\n", " "))
        start = words.index("sglang.launch_server") + 1
        environ |= dict(word.split("=", 1) for word in words[:start] if "=" in word)
        arguments += words[start:]
    if document.get("autotune", {}).get("extend"):
        environ["SGLANG_FLASHINFER_AUTOTUNE_EXTEND"] = "1"
    for name, flag in _ENGINE["field_flags"].items():
        section, _, within = name.partition(".")
        value = document.get(section, {}).get(within) if within else document.get(section)
        arguments += _words(flag, value)
    for flag, value in document.get("flags", {}).items():
        arguments += _words(flag, value)
    gpu = load_gpu(document["gpu"]).name
    profile = next(name for name in gpu_names() if profiles.load("gpus", name)["name"] == gpu)
    return Configuration(path.stem, profile, tuple(arguments), environ, document.get("kv_token_capacity"), path)


def _words(flag: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    if value is True:
        return [option(flag)]
    return [option(flag), *map(str, value if isinstance(value, list) else [value])]


# Random command lines

SHAPE_FLAGS = frozenset((
    "model_path", "tp_size", "dp_size", "enable_dp_attention", "attn_dp_size", "ep_size", "pp_size",
    "chunked_prefill_size", "max_running_requests", "disaggregation_mode", "moe_runner_backend", "moe_a2a_backend",
    "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens",
    "speculative_draft_model_path",
))  # fmt: skip
"""Flags that ``_shape`` gives; two to four of ``VALUES`` come on top."""

VALUES: dict[str, tuple[Any, ...]] = {
    "attention_backend": ("fa3", "triton", "flashinfer", "trtllm_mha", "trtllm_mla", "flashmla", "fa4", "torch_native"),
    "chunked_prefill_size": (-1, 1000, 10000, 131072),
    "context_length": (4096, 8192, 32768),
    "cuda_graph_backend_decode": ("full", "breakable", "disabled"),
    "cuda_graph_backend_prefill": ("full", "breakable", "disabled"),
    "cuda_graph_bs_decode": ([1, 2, 4, 8], [1, 3, 5], [16, 100, 333]),
    "cuda_graph_bs_prefill": ([128, 256], [100, 777]),
    "cuda_graph_config": (
        '{"decode": {"backend": "disabled"}}',
        '{"decode": {"max_bs": 96}, "prefill": {"max_bs": 512}}',
    ),
    "cuda_graph_max_bs_decode": (1, 3, 64, 160, 400, 1000),
    "cuda_graph_max_bs_prefill": (256, 4096, 20000),
    "debug_tensor_dump_output_folder": ("dumps",),
    "decode_attention_backend": ("fa3", "flashinfer", "triton", "trtllm_mha", "trtllm_mla", "flashmla"),
    "deepep_mode": ("auto", "normal", "low_latency"),
    "device": ("cuda",),  # for a CPU there is nothing to plan: refused, whatever the server does
    "disable_attn_tp_gather": (True,),
    "disable_cuda_graph": (True,),
    "disable_cuda_graph_padding": (True,),
    "disable_decode_cuda_graph": (True,),
    "disable_flashinfer_autotune": (True,),
    "disable_flashinfer_cutlass_moe_fp4_allgather": (True,),
    "disable_overlap_schedule": (True,),
    "disable_prefill_cuda_graph": (True,),
    "disable_radix_cache": (True,),
    "disable_shared_experts_fusion": (True,),
    "disaggregation_decode_enable_radix_cache": (True,),
    "dtype": ("auto", "half", "bfloat16", "float32"),
    "enable_deterministic_inference": (True,),
    "enable_dp_lm_head": (True,),
    "enable_dynamic_chunking": (True,),
    "enable_eplb": (True,),
    "enable_mis": (True,),
    "enable_mixed_chunk": (True,),
    "enable_return_aux_hidden_states": (True,),
    "enable_torch_compile": (True,),
    "enable_two_batch_overlap": (True,),
    "enable_waterfill": (True,),
    "enforce_shared_experts_fusion": (True,),
    "ep_dispatch_algorithm": ("static", "dynamic", "fake"),
    "ep_num_redundant_experts": (8, 16, 32),
    "flashinfer_a2a_dispatch_type": ("auto", "bf16", "nvfp4"),
    "flashinfer_autotune_skip_ops": (["fp4_gemm"], ["fp8_gemm", "fp4_gemm"]),
    "flashinfer_mxfp4_moe_precision": ("default", "bf16", "fp8"),
    "fp4_gemm_runner_backend": ("auto", "flashinfer_cudnn", "flashinfer_cutedsl", "flashinfer_cutlass", "marlin"),
    "fp8_gemm_runner_backend": ("auto", "deep_gemm", "flashinfer_trtllm", "flashinfer_cutlass", "cutlass", "triton"),
    "init_expert_location": ("trivial",),
    "json_model_override_args": ('{"max_position_embeddings": 8192}', '{"num_hidden_layers": 4}'),
    "kv_cache_dtype": ("auto", "fp8_e4m3", "fp8_e5m2", "bf16", "nvfp4"),
    "language_only": (True,),
    "linear_attn_backend": ("triton", "cutedsl", "flashinfer"),
    "linear_attn_decode_backend": ("triton", "flashinfer"),
    "linear_attn_verify_backend": ("triton", "flashinfer"),
    "mamba_radix_cache_strategy": ("auto", "no_buffer", "extra_buffer"),
    "mamba_ssm_dtype": ("float32", "bfloat16"),
    "mamba_track_interval": (128, 256),
    "max_prefill_tokens": (1024, 8192, 65536, "32k"),
    "max_running_requests": (1, 7, 300, 10000),
    "max_total_tokens": (4096, 100000),
    "mem_fraction_static": (0.7, 0.85, 0.9),
    "moe_a2a_backend": ("none", "deepep", "flashinfer", "mooncake", "nixl"),
    "moe_dense_tp_size": (1, 2),
    "moe_runner_backend": (
        "triton",
        "deep_gemm",
        "cutlass",
        "marlin",
        "flashinfer_cutedsl",
        "flashinfer_trtllm_routed",
    ),
    "msprobe_dump_config": ("dump.json",),
    "nnodes": (1, 2),
    "page_size": (1, 16, 32, 64, 128),
    "prefill_attention_backend": ("fa3", "flashinfer", "triton", "trtllm_mha", "trtllm_mla"),
    "prefill_kv_cache_dequant_dtype": ("auto", "fp8_e4m3"),
    "quantization": ("fp8", "modelopt_fp8", "modelopt_fp4", "mxfp8", "unquant", "w4afp8", "nvfp4_online"),
    "rl_on_policy_target": ("fsdp",),
    "speculative_dflash_block_size": (4, 8),
    "speculative_draft_attention_backend": ("triton", "fa3", "flashinfer"),
    "speculative_dspark_block_size": (4, 8),
    "speculative_ngram_max_bfs_breadth": (4, 10),
}


def planner_flags() -> frozenset[str]:
    """Flags that a rule of the planner reads, less those that it says it does not model."""
    return frozenset(known.name for known in fields(ServerArguments)) - set(_ENGINE["unmodelled_flags"])


def random_configurations(seed: int = SEED, count: int = RANDOM_ROWS) -> list[Configuration]:
    """The same ones for the same seed. GPUs take turns, so that each has its share."""
    chance = random.Random(seed)
    models = [name for name in model_folders() if name not in (*_DRAFTS, *OTHER_NAMES)]
    gpus = gpu_names()
    return [
        Configuration(f"random-{seed}-{index}", gpus[index % len(gpus)], tuple(_command_line(chance, models)))
        for index in range(count)
    ]


def _command_line(chance: random.Random, models: list[str]) -> Iterator[str]:
    given = _shape(chance, models)
    for flag in chance.sample(sorted(VALUES), chance.randint(2, 4)):
        given[flag] = chance.choice(VALUES[flag])
    for flag, value in given.items():
        yield from _words(flag, value)


def _shape(chance: random.Random, models: list[str]) -> dict[str, Any]:
    """Parallel sizes, role, MoE and draft of a server that somebody could run."""
    tp = chance.choice((1, 1, 2, 4, 8, 8))
    given: dict[str, Any] = {"model_path": f"/models/{chance.choice(models)}", "tp_size": tp}
    if chance.random() < 0.5:
        given["chunked_prefill_size"] = chance.choice((2048, 4096, 8192, 16384, 32768, 65536))
    if chance.random() < 0.3:
        given["max_running_requests"] = chance.choice((16, 48, 64, 256, 1000, 4096))
    if chance.random() < 0.1:
        given["pp_size"] = 2
    if tp > 1:
        given |= _data_parallel(chance, tp)
        if chance.random() < 0.2:
            given["ep_size"] = chance.choice((2, tp))
    if chance.random() < 0.3:
        given["disaggregation_mode"] = chance.choice(("prefill", "decode"))
    if chance.random() < 0.6:
        given["moe_runner_backend"] = chance.choice(
            ("flashinfer_cutlass", "flashinfer_cutlass", "flashinfer_trtllm", "flashinfer_mxfp4", "auto")
        )
    return given | (_drafts(chance) if chance.random() < 0.25 else {})


def _data_parallel(chance: random.Random, tp: int) -> dict[str, Any]:
    kind = chance.random()
    width = chance.choice((2, tp))
    if kind < 0.25:
        return {"dp_size": width, "enable_dp_attention": True}
    if kind < 0.35:
        return {"attn_dp_size": tp, "moe_a2a_backend": "flashinfer", "moe_runner_backend": "flashinfer_cutlass"}
    return {"dp_size": 2} if kind < 0.4 else {}


def _drafts(chance: random.Random) -> dict[str, Any]:
    algorithm = chance.choice(("EAGLE", "EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"))
    given: dict[str, Any] = {"speculative_algorithm": algorithm}
    if algorithm in ("EAGLE3", "STANDALONE"):
        given["speculative_draft_model_path"] = f"/models/{_DRAFTS[algorithm == 'STANDALONE']}"
    if chance.random() < 0.6:
        steps = chance.choice((1, 2, 3, 5))
        given |= {"speculative_num_steps": steps, "speculative_eagle_topk": chance.choice((1, 1, 1, 4))}
        given["speculative_num_draft_tokens"] = chance.choice((steps + 1, 4, 8))
    return given
