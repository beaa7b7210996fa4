"""The values of a model's configuration that are read must be such as a released ``config.json`` has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune_planner.deployment.fields import shown
from autotune_planner.deployment.model import Model
from autotune_planner.errors import DeploymentError

_LARGEST = 2**31 - 1
_REQUIRED = ("hidden_size", "vocab_size")
_INTEGERS = (
    *_REQUIRED,
    "num_attention_heads",
    "num_key_value_heads",
    "num_hidden_layers",
    "head_dim",
    "intermediate_size",
    "num_experts",
    "n_routed_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "moe_topk",
    "moe_intermediate_size",
    "n_shared_experts",
    "index_kpool",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)


def check_config(model: Model) -> None:
    """``DeploymentError`` for a missing or impossible value; absent and null ones have defaults."""
    text = model.text_config
    for name in _INTEGERS:
        value = text.get(name)
        if value is None and name not in _REQUIRED:
            continue
        smallest = 1 if name in _REQUIRED else 0
        if type(value) is not int or not smallest <= value <= _LARGEST:
            raise _wrong(model, name, value, "a positive integer")
    heads = text.get("num_attention_heads") or 1
    if not text.get("head_dim") and heads > text["hidden_size"]:
        raise _wrong(model, "num_attention_heads", heads, f"at most hidden_size, which is {text['hidden_size']}")
    scaling = text.get("rope_scaling") or text.get("rope_parameters")
    if scaling is not None and not isinstance(scaling, Mapping):
        raise _wrong(model, "rope_scaling", scaling, "a mapping")
    factor = (scaling or {}).get("factor", 1)
    if type(factor) not in (int, float) or not 0 < factor <= _LARGEST:
        raise _wrong(model, "rope_scaling.factor", factor, "a positive number")


def _wrong(model: Model, name: str, value: Any, takes: str) -> DeploymentError:
    said = f"has no {name}" if value is None else f"says {name}: {shown(value)}"
    return DeploymentError(
        f"the model's configuration {said}; it takes {takes}",
        code="model-config",
        where=model.source if model.source not in (None, "profile") else "model",
        hint="give the config.json as released",
    )
