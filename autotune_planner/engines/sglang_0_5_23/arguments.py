"""The server's arguments as the operator gives them: deployment fields and other flags, before any rule."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from autotune_planner import profiles
from autotune_planner.deployment.field_flags import LARGEST
from autotune_planner.deployment.fields import shown
from autotune_planner.deployment.model import Deployment
from autotune_planner.errors import DeploymentError
from autotune_planner.values import dataclass

PROFILE = "sglang-0.5.23"


@dataclass(frozen=True)
class ServerArguments:
    """The flags that matter to the plan, with the release's defaults (``arg_groups/fields``). None: not given."""

    model_path: str
    tp_size: int = 1
    dp_size: int = 1
    attn_dp_size: int = 1
    enable_dp_attention: bool = False
    ep_size: int = 1
    pp_size: int = 1
    attn_cp_size: int = 1
    dcp_size: int = 1
    moe_dp_size: int = 1
    nnodes: int = 1
    moe_dense_tp_size: int | None = None
    enable_dp_lm_head: bool = False
    ep_num_redundant_experts: int = 0
    chunked_prefill_size: int | None = None
    max_prefill_tokens: int = 16384
    enable_dynamic_chunking: bool = False
    enable_mixed_chunk: bool = False
    max_running_requests: int | None = None
    max_total_tokens: int | None = None
    context_length: int | None = None
    cuda_graph_config: Mapping[str, Any] | None = None
    cuda_graph_max_bs_decode: int | None = None
    cuda_graph_bs_decode: tuple[int, ...] | None = None
    cuda_graph_backend_decode: str | None = None
    cuda_graph_max_bs_prefill: int | None = None
    cuda_graph_bs_prefill: tuple[int, ...] | None = None
    cuda_graph_backend_prefill: str | None = None
    disable_cuda_graph: bool = False
    disable_decode_cuda_graph: bool = False
    disable_prefill_cuda_graph: bool = False
    disable_cuda_graph_padding: bool = False
    enable_torch_compile: bool = False
    disaggregation_mode: str = "null"
    fp8_gemm_runner_backend: str = "auto"
    fp4_gemm_runner_backend: str = "auto"
    flashinfer_mxfp4_moe_precision: str = "default"
    flashinfer_a2a_dispatch_type: str | None = None
    disable_flashinfer_cutlass_moe_fp4_allgather: bool = False
    disable_shared_experts_fusion: bool = False
    enforce_shared_experts_fusion: bool = False
    enable_eplb: bool = False
    init_expert_location: str = "trivial"
    ep_dispatch_algorithm: str | None = None
    speculative_algorithm: str | None = None
    speculative_num_steps: int | None = None
    speculative_eagle_topk: int | None = None
    speculative_num_draft_tokens: int | None = None
    speculative_draft_model_path: str | None = None
    speculative_ngram_max_bfs_breadth: int = 10
    enable_multi_layer_eagle: bool = False
    speculative_adaptive: bool = False
    speculative_adaptive_config: str | None = None
    speculative_dflash_block_size: int | None = None
    speculative_dspark_block_size: int | None = None
    enable_return_aux_hidden_states: bool = False
    moe_runner_backend: str = "auto"
    moe_a2a_backend: str = "none"
    enable_waterfill: bool = False
    deepep_mode: str = "auto"
    attention_backend: str | None = None
    prefill_attention_backend: str | None = None
    decode_attention_backend: str | None = None
    speculative_draft_attention_backend: str | None = None
    page_size: int | None = None
    kv_cache_dtype: str = "auto"
    prefill_kv_cache_dequant_dtype: str = "auto"
    quantization: str | None = None
    dtype: str = "auto"
    mem_fraction_static: float | None = None
    enable_two_batch_overlap: bool = False
    disable_attn_tp_gather: bool = False
    enable_kv_cache_sharding: bool = False
    language_only: bool = False
    enable_mis: bool = False
    enable_pdmux: bool = False
    disable_flashinfer_autotune: bool = False
    flashinfer_autotune_skip_ops: tuple[str, ...] = ()
    enable_deterministic_inference: bool = False
    rl_on_policy_target: str | None = None
    debug_tensor_dump_output_folder: str | None = None
    msprobe_dump_config: str | None = None
    json_model_override_args: str = "{}"
    device: str | None = None
    disable_radix_cache: bool = False
    disaggregation_decode_enable_radix_cache: bool = False
    disable_overlap_schedule: bool = False
    mamba_radix_cache_strategy: str = "auto"
    mamba_track_interval: int = 256
    linear_attn_backend: str = "triton"
    linear_attn_decode_backend: str | None = None
    linear_attn_verify_backend: str | None = None
    mamba_ssm_dtype: str | None = None


_KNOWN = frozenset(field.name for field in fields(ServerArguments))


def server_arguments(deployment: Deployment) -> ServerArguments:
    """Arguments of a deployment file. ``DeploymentError`` for a flag that the release does not have or would reject."""
    given = given_flags(deployment)
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
    known: dict[str, Any] = {name: value for name, value in values.items() if name in _KNOWN}
    for name, value in known.items():
        _check_size(name, value)
    return ServerArguments(**known)


def given_flags(deployment: Deployment) -> dict[str, Any]:
    """Every flag that a deployment gives, by server argument. ``DeploymentError`` as :func:`server_arguments`."""
    return {**_fields(deployment), **_flags(deployment)}


def _check_size(name: str, value: Any) -> None:
    """The deployment file has the same bound; a launch line may hold any integer."""
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, int) and abs(number) > LARGEST:
            flag = f"--{name.replace('_', '-')}"
            raise DeploymentError(
                f"{flag} is {shown(number)}; servers count in 32 bits, up to {LARGEST}",
                code="bad-value",
                where=flag,
                hint=f"{flag} 8",
            )


def ignored_flags(deployment: Deployment) -> tuple[str, ...]:
    """Known flags of the deployment that no rule of the plan reads, and that change nothing in it."""
    return tuple(sorted(set(deployment.flags) - _KNOWN - _unmodelled()))


def unmodelled_flags(deployment: Deployment) -> tuple[str, ...]:
    """Flags of the deployment that change the server's numbers by rules that are not written down here."""
    return tuple(sorted(set(deployment.flags) & _unmodelled()))


def _unmodelled() -> set[str]:
    return set(profiles.load("engines", PROFILE)["unmodelled_flags"])


def _fields(deployment: Deployment) -> dict[str, Any]:
    parallel, prefill, decode = deployment.parallel, deployment.prefill, deployment.decode
    speculative, moe = deployment.speculative, deployment.moe
    given = {
        "model_path": deployment.model_path,
        "tp_size": parallel.tp,
        "dp_size": parallel.dp,
        "enable_dp_attention": parallel.dp_attention,
        "ep_size": parallel.ep,
        "pp_size": parallel.pp,
        "moe_dense_tp_size": parallel.moe_dense_tp,
        "enable_dp_lm_head": parallel.dp_lm_head,
        "chunked_prefill_size": prefill.chunked_prefill_size,
        "max_prefill_tokens": prefill.max_prefill_tokens,
        "enable_dynamic_chunking": prefill.dynamic_chunking,
        "enable_mixed_chunk": prefill.mixed_chunk,
        "max_running_requests": decode.max_running_requests,
        "cuda_graph_max_bs_decode": decode.cuda_graph_max_bs_decode,
        "cuda_graph_bs_decode": decode.cuda_graph_bs_decode,
        "disaggregation_mode": deployment.disaggregation,
        "speculative_algorithm": speculative.algorithm,
        "speculative_num_steps": speculative.num_steps,
        "speculative_eagle_topk": speculative.eagle_topk,
        "speculative_num_draft_tokens": speculative.num_draft_tokens,
        "speculative_draft_model_path": speculative.draft_model_path,
        "moe_runner_backend": moe.runner_backend,
        "moe_a2a_backend": moe.a2a_backend,
    }
    table = profiles.load("engines", PROFILE)
    field_of = {flag: field for field, flag in table["field_flags"].items()}
    for name, value in given.items():
        if value is not None:
            _check_choice(deployment, field_of[name], value, table["flags"][name], tuple(field_of[name].split(".")))
    return {name: value for name, value in given.items() if value is not None}


def _flags(deployment: Deployment) -> dict[str, Any]:
    table = profiles.load("engines", PROFILE)
    if deployment.launch is None and "config" in deployment.flags:
        raise DeploymentError(
            f"flags.config: the server's flags are in another file, {shown(deployment.flags['config'])}",
            code="flag-type",
            where=deployment.where("flags", "config"),
            hint="write the flags of that file here, or launch: with --config FILE",
        )
    for name, value in deployment.flags.items():
        path = ("flags", name)
        if name not in table["flags"]:
            near = difflib.get_close_matches(name, table["flags"], n=1)
            raise DeploymentError(
                f"SGLang 0.5.23 has no flag --{name.replace('_', '-')}",
                code="unknown-flag",
                where=deployment.where(*path),
                hint=f"did you mean {near[0]}?" if near else "python -m sglang.launch_server --help lists them",
            )
        _check_type(deployment, name, value, table["flags"][name]["type"])
        _check_choice(deployment, f"--{name.replace('_', '-')}", value, table["flags"][name], path)
    return dict(deployment.flags)


_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "switch": (bool,),
    "int": (int,),
    "size": (int,),
    "float": (int, float),
    "str": (str,),
    "ints": (list, tuple),
    "floats": (list, tuple),
    "strs": (list, tuple),
    "json": (dict, list, str),
}


def _check_type(deployment: Deployment, name: str, value: Any, kind: str) -> None:
    right = isinstance(value, _TYPES[kind]) and not (isinstance(value, bool) and bool not in _TYPES[kind])
    if right and kind == "ints":
        right = all(isinstance(item, int) and not isinstance(item, bool) for item in value)
    if not right:
        raise DeploymentError(
            f"flags.{name} takes {_KINDS[kind]}, not {value!r}",
            code="flag-type",
            where=deployment.where("flags", name),
            hint=f"write it as {_KINDS[kind]}",
        )


_KINDS = {
    "bool": "true or false",
    "switch": "true or false",
    "int": "an integer",
    "size": "an integer",
    "float": "a number",
    "str": "a text",
    "ints": "a list of integers",
    "floats": "a list of numbers",
    "strs": "a list of texts",
    "json": "a mapping",
}


def _check_choice(
    deployment: Deployment, shown: str, value: Any, flag: Mapping[str, Any], path: tuple[str, ...]
) -> None:
    choices = flag.get("choices")
    if not choices or not isinstance(value, str) or value in choices:
        return
    near = difflib.get_close_matches(value, choices, n=1)
    raise DeploymentError(
        f"{shown}: SGLang 0.5.23 does not know {value!r}",
        code="flag-choice",
        where=deployment.where(*path),
        hint=f"did you mean {near[0]}?" if near else f"one of {', '.join(map(str, choices))}",
    )
