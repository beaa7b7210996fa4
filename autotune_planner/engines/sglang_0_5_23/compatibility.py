"""Combinations that the server refuses and that belong to no single topic.

Sources: ``arg_groups/validation_hook.py``, ``arg_groups/overrides.py``.
"""

from __future__ import annotations

from autotune_planner.engines.sglang_0_5_23.arguments import ServerArguments
from autotune_planner.engines.sglang_0_5_23.rejection import rejected
from autotune_planner.errors import DeploymentError

_VALIDATION = "validation_hook.check_server_args"


def check_device(arguments: ServerArguments) -> None:
    """No rule of the server, which runs on other devices too: a plan is for its GPUs."""
    device = arguments.device
    if device is not None and not device.startswith("cuda"):
        raise DeploymentError(
            f"{device} has no GPU to plan for",
            code="not-planned",
            where="--device",
            hint="leave --device out, or --device cuda",
        )


def check_dp_lm_head(arguments: ServerArguments) -> None:
    """Alone it is ignored; next to replicas it is an error. Source: ``overrides._dp_lm_head_validation``."""
    if arguments.enable_dp_lm_head and arguments.attn_dp_size == 1 and arguments.dp_size > 1:
        raise rejected(
            "--enable-dp-lm-head",
            "needs attention data parallelism",
            "add --enable-dp-attention --dp-size N, or leave it out",
            source="overrides._dp_lm_head_validation",
        )


def check_context_parallel(arguments: ServerArguments) -> None:
    """Source: ``parallel_hook.handle_context_parallelism``."""
    tp, attn_dp, cp, moe_dp = arguments.tp_size, arguments.attn_dp_size, arguments.attn_cp_size, arguments.moe_dp_size
    source = "parallel_hook.handle_context_parallelism"
    if cp > 1 and tp % (attn_dp * cp):
        raise rejected(
            "--attn-cp-size",
            f"tp_size {tp} is not divisible by attn_dp_size x attn_cp_size = {attn_dp * cp}",
            "--attn-cp-size 1",
            source=source,
        )
    if moe_dp > 1 and (tp % moe_dp or arguments.ep_size * moe_dp > tp or cp != moe_dp):
        raise rejected(
            "--moe-dp-size",
            f"{moe_dp} must divide tp_size {tp}, leave room for ep_size {arguments.ep_size}, equal attn_cp_size {cp}",
            "--moe-dp-size 1",
            source=source,
        )


def check_roles(arguments: ServerArguments, *, is_multimodal: bool) -> None:
    """Sources: ``kv_shard_hook.handle_kv_cache_sharding``, ``pd_disaggregation_hook.handle_encoder_disaggregation``."""
    if arguments.enable_kv_cache_sharding and arguments.disaggregation_mode != "prefill":
        raise rejected(
            "--enable-kv-cache-sharding",
            "works on PD prefill workers only",
            "--disaggregation-mode prefill, or leave it out",
            source="kv_shard_hook.handle_kv_cache_sharding",
        )
    if arguments.language_only and not is_multimodal:
        raise rejected(
            "--language-only",
            "is the language half of a multimodal model, and this one is text-only",
            "leave it out",
            source="pd_disaggregation_hook.handle_encoder_disaggregation",
        )


def check_server_args(arguments: ServerArguments) -> None:
    """Checks after resolution. Source: ``check_server_args``."""
    if arguments.tp_size * arguments.pp_size % arguments.nnodes:
        raise rejected(
            "--nnodes",
            f"tp_size x pp_size = {arguments.tp_size * arguments.pp_size} is not divisible by {arguments.nnodes} nodes",
            "a number of nodes that divides it",
            source=_VALIDATION,
        )
    if arguments.disable_cuda_graph_padding and arguments.enable_torch_compile:
        raise rejected(
            "--disable-cuda-graph-padding",
            "cannot be combined with --enable-torch-compile: every batch size would be compiled",
            "leave one of the two out",
            source=_VALIDATION,
        )
    if arguments.dp_size > 1 and arguments.nnodes != 1:
        raise rejected(
            "--dp-size",
            f"{arguments.dp_size} replicas cannot span {arguments.nnodes} nodes",
            "attention data parallelism (--enable-dp-attention), or one node",
            source=_VALIDATION,
        )
    if arguments.enable_two_batch_overlap and arguments.moe_a2a_backend == "none" and arguments.attn_dp_size == 1:
        raise rejected(
            "--enable-two-batch-overlap",
            "needs an all-to-all backend or attention data parallelism",
            "--moe-a2a-backend deepep, or --enable-dp-attention --dp-size N",
            source="validation_hook.check_two_batch_overlap",
        )
