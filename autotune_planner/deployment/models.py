"""Models: a profile by name, or the ``config.json`` of a folder in Hugging Face form. Weights are never read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune_planner import profiles
from autotune_planner.deployment.fields import shown
from autotune_planner.deployment.model import TEXT_PARTS, Model, text_part
from autotune_planner.deployment.suggestions import nearest_first
from autotune_planner.deployment.text_files import read_text
from autotune_planner.errors import DeploymentError
from autotune_planner.json_text import parse_json

CONFIG_FILE = "config.json"
QUANT_FILE = "hf_quant_config.json"

_OTHER_MODALITIES = (
    "vision_config",
    "audio_config",
    "video_config",
    "sound_config",
    "vit_config",
    "thinker_config",
    "vision_tower",
    "mm_vision_tower",
    "img_processor",
    "audio_processor",
)


def load_model(path: str | Path) -> Model:
    """The model of a folder with a ``config.json``, or of the ``config.json`` itself.

    A ``hf_quant_config.json`` beside it is read too. ``DeploymentError`` if a file is missing or damaged.
    """
    folder_given = os.path.isdir(path)
    config_path = Path(path, CONFIG_FILE) if folder_given else Path(path)
    hint = "give the folder of the model, with its config.json in Hugging Face form, or a name in profiles/models"
    config = _read_json(config_path, "the model's config.json", hint)
    quant_path = config_path.parent / QUANT_FILE
    quant = _read_json(quant_path, f"the model's {QUANT_FILE}", hint) if os.path.exists(quant_path) else None
    name = Path(os.path.abspath(config_path)).parent.name
    return model_from_config(config, quant, name=name, source=str(config_path))


def find_profile(name: str) -> str | None:
    """Name of the profile that ``name`` means: its file name in any case, or its Hugging Face id. None if unknown."""
    lowered = name.lower()
    return lowered if lowered in profiles.names("models") else profile_of_hf_id(name)


def profile_of_hf_id(path: str) -> str | None:
    """Name of the profile of a Hugging Face id, such as a server's model path may be. None if unknown."""
    if "/" not in path:
        return None
    likely_first = sorted(
        profiles.names("models"), key=lambda known: not _last_component(path).lower().startswith(known)
    )
    return next((known for known in likely_first if hf_id(known) == path), None)


def hf_id(profile: str) -> str:
    """Hugging Face id of a profile, such as ``Qwen/Qwen3-30B-A3B``."""
    return str(profiles.load("models", profile)["hf_id"])


def profile_model(name: str) -> Model:
    """The model of a profile, by its name or Hugging Face id. ``DeploymentError`` lists the known, nearest first."""
    found = find_profile(name)
    if found is None:
        raise unknown_model(name)
    content = profiles.load("models", found)
    return model_from_config(content["config"], content.get("hf_quant_config"), name=found, source="profile")


def unknown_model(name: str) -> DeploymentError:
    """The error for a value that is neither a profile nor a file here."""
    known = nearest_first(_last_component(name), profiles.names("models"))
    return DeploymentError(
        f"model {shown(name)} is neither a known model nor a folder or config.json here",
        code="unknown-model",
        hint="one of these, nearest first: " + ", ".join(known),
    )


def profile_hint(path: str) -> str:
    """The line that names the profile most like a server's model path."""
    return f"add model: {nearest_first(_last_component(path), profiles.names('models'))[0]}"


def _last_component(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


def model_from_config(
    config: Mapping[str, Any],
    quant: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    source: str | None = None,
) -> Model:
    """A model from parsed JSON; ``quant`` is the content of ``hf_quant_config.json``.

    ``DeploymentError`` if the configuration is not that of a model: ``architectures`` must be a list of names.
    """
    _require_form(config, source)
    return Model(config=config, quantization_config=_quantization(config, quant, source), name=name, source=source)


def other_modality(model: Model) -> str | None:
    """The part of the configuration that reads more than text (``vision_config``); None for a text-only model."""
    return next((key for key in _OTHER_MODALITIES if model.config.get(key)), None)


def _quantization(
    config: Mapping[str, Any], quant: Mapping[str, Any] | None, where: str | None
) -> Mapping[str, Any] | None:
    """The quantization as one flat mapping with a ``quant_method``, wherever it stands: in ``config.json`` (of a
    multimodal model perhaps in its ``text_config``), as the ``compression_config`` of older compressed-tensors, or in
    ModelOpt's own file."""
    text = text_part(config) or {}
    found = config.get("quantization_config") or text.get("quantization_config") or config.get("compression_config")
    found = found or quant
    if not found:
        return None
    nested = found.get("quantization")
    content = dict(nested) if isinstance(nested, Mapping) else dict(found)
    if "quant_method" not in content and "quant_algo" not in content:
        return None
    for key in ("quant_method", "quant_algo"):
        if content.get(key) is not None and not isinstance(content[key], str):
            raise DeploymentError(
                f"the model's quantization says {key}: {shown(content[key])}; it takes a name",
                code="model-config",
                where=where,
                hint="give config.json and hf_quant_config.json as released",
            )
    if "exclude_modules" in content:
        content.setdefault("ignore", content["exclude_modules"])
    return {"quant_method": "modelopt", **content}


def _require_form(config: Mapping[str, Any], where: str | None) -> None:
    architectures = config.get("architectures")
    if (
        not isinstance(architectures, list)
        or not architectures
        or not all(isinstance(one, str) for one in architectures)
    ):
        raise DeploymentError(
            "the model's configuration has no list of architectures",
            code="model-config",
            where=where,
            hint='give the config.json as released, with a line such as "architectures": ["Qwen3MoeForCausalLM"]',
        )
    for key in (*TEXT_PARTS, "quantization_config", "compression_config", "vision_config"):
        _require_mapping(config, key, key, where)
    thinker = config.get("thinker_config") or {}
    _require_mapping(thinker, "text_config", "thinker_config.text_config", where)
    _require_mapping(text_part(config) or {}, "quantization_config", "text_config.quantization_config", where)


def _require_mapping(config: Mapping[str, Any], key: str, shown_key: str, where: str | None) -> None:
    if config.get(key) is not None and not isinstance(config[key], Mapping):
        raise DeploymentError(
            f"{shown_key} of the model's configuration is not a mapping",
            code="model-config",
            where=where,
            hint="give the config.json as released",
        )


def _read_json(path: Path, what: str, hint: str) -> dict[str, Any]:
    text = read_text(path, what, hint)
    try:
        content = parse_json(text)
    except json.JSONDecodeError as error:
        raise DeploymentError(
            f"{what} is not valid JSON: {error.msg}",
            code="damaged-json",
            where=f"{path}:{error.lineno}:{error.colno}",
            hint="download the file again",
        ) from None
    except ValueError as error:
        raise DeploymentError(
            f"{what} is not valid JSON: {error}", code="damaged-json", where=str(path), hint="download the file again"
        ) from None
    if not isinstance(content, dict):
        raise DeploymentError(
            f"{what} is not a JSON object", code="damaged-json", where=f"{path}:1:1", hint="download the file again"
        )
    return content
