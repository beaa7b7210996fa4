"""``--json-model-override-args``: keys of the model's configuration that the operator replaces.

Source: ``utils/hf_transformers/config.get_config``, which both the model and its draft go through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autotune_planner.deployment.fields import shown
from autotune_planner.deployment.model import TEXT_PARTS, Deployment, Model
from autotune_planner.deployment.models import model_from_config
from autotune_planner.engines.sglang_0_5_23.rejection import rejected
from autotune_planner.json_text import parse_json

_FLAG = "--json-model-override-args"
_ROPE = ("rope_scaling", "rope_parameters")
_OTHER_PARTS = ("vision_config", "audio_config")
_QUANTIZATION = ("quantization_config", "compression_config")


def overridden(deployment: Deployment) -> Deployment:
    """The deployment with its models' configurations as the server reads them. ``DeploymentError`` for a bad value."""
    text = deployment.flags.get("json_model_override_args")
    if text is None:
        return deployment
    values = _parsed(str(text))
    if not values:
        return deployment
    draft = deployment.draft_model
    return replace(
        deployment,
        model=_changed(deployment.model, values),
        draft_model=None if draft is None else _changed(draft, values),
    )


def _parsed(text: str) -> Mapping[str, Any]:
    example = f"""{_FLAG} '{{"max_position_embeddings": 131072}}'"""
    try:
        values = parse_json(text)
    except ValueError:
        raise rejected(_FLAG, f"is not JSON: {shown(text)}", example, source="model_config.ModelConfig") from None
    if values and not isinstance(values, dict):
        raise rejected(_FLAG, f"is not a JSON object: {shown(text)}", example, source="model_config.ModelConfig")
    return values or {}


def _changed(model: Model, values: Mapping[str, Any]) -> Model:
    """A part of the model (``text_config``) and the rope settings are merged, everything else is replaced.

    An image or audio part that the model does not have is read by no one.
    """
    config = dict(model.config)
    for key, value in values.items():
        if key in TEXT_PARTS and key not in config:
            rule = f"the model has no {key} of its own"
            raise rejected(_FLAG, rule, f"give the keys of {key} themselves", source="get_hf_text_config")
        if key in _OTHER_PARTS and key not in config:
            continue
        if key in _QUANTIZATION and value == {}:
            rule = f"{key} has no quant_method"
            raise rejected(_FLAG, rule, "give its quant_method", source="model_config.ModelConfig._verify_quantization")
        current = config.get(key)
        part = key in _ROPE or (key.endswith("_config") and key not in _QUANTIZATION)
        if part and isinstance(value, Mapping) and isinstance(current, Mapping):
            value = {**current, **value}
        config[key] = value
    changed = model_from_config(config, name=model.name, source=model.source)
    in_file = model_from_config(model.config, source=model.source).quantization_config is None
    stated = changed.quantization_config
    return replace(changed, quantization_config=model.quantization_config if in_file and stated is None else stated)
