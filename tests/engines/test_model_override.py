"""``--json-model-override-args`` on the model's configuration. Source: ``utils/hf_transformers/config.get_config``."""

import json
from dataclasses import replace

import pytest

from autotune_planner.deployment.models import model_from_config
from autotune_planner.engines import resolve
from autotune_planner.engines.sglang_0_5_23.model_override import overridden
from autotune_planner.errors import DeploymentError
from tests.engines.test_rules import BASE

VISION = {"architectures": ["A"], "text_config": {"hidden_size": 8, "vocab_size": 4}, "vision_config": {"depth": 27}}


def changed(config, values, quant=None):
    deployment = replace(
        BASE, model=model_from_config(config, quant), flags={"json_model_override_args": json.dumps(values)}
    )
    return overridden(deployment).model


def test_keys_are_replaced():
    model = changed({"architectures": ["A"], "hidden_size": 8}, {"hidden_size": 16, "extra": [1]})
    assert model.config == {"architectures": ["A"], "hidden_size": 16, "extra": [1]}


def test_parts_are_merged():
    model = changed(VISION, {"text_config": {"hidden_size": 16}, "vision_config": {"hidden_size": 2}})
    assert model.text_config == {"hidden_size": 16, "vocab_size": 4}
    assert model.config["vision_config"] == {"depth": 27, "hidden_size": 2}


def test_rope_settings_are_merged():
    config = {"architectures": ["A"], "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}
    assert changed(config, {"rope_scaling": {"factor": 4.0}}).config["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
    }


def test_a_quantization_is_replaced_whole():
    config = {"architectures": ["A"], "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    assert changed(config, {"quantization_config": {"quant_method": "fp8"}}).quantization_config == {
        "quant_method": "fp8"
    }
    assert changed(config, {"quantization_config": None}).quantization_config is None


def test_a_quantization_in_a_file_of_its_own_stays():
    quant = {"quantization": {"quant_algo": "NVFP4"}}
    model = changed({"architectures": ["A"]}, {"hidden_size": 16}, quant)
    assert model.quantization_config["quant_algo"] == "NVFP4"


def test_a_part_that_the_model_lacks_is_not_read():
    assert "vision_config" not in changed({"architectures": ["A"]}, {"vision_config": {"depth": 2}}).config


def test_a_longer_context():
    """40960 tokens by config.json; 100000 are refused without the override, and 8 x 131072 are assumed with it."""
    flags = {"context_length": 100_000}
    with pytest.raises(DeploymentError, match="more than the model's 40960"):
        resolve(replace(BASE, flags=flags))
    longer = {**flags, "json_model_override_args": '{"max_position_embeddings": 131072}'}
    assert resolve(replace(BASE, flags=longer)).model.config["max_position_embeddings"] == 131072
    allowed = replace(BASE, flags=flags, env={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"})
    assert resolve(allowed).arguments.tp_size == 1


@pytest.mark.parametrize("text", ["{bad", "", "[1]", "5", '"x"', '{"text_config": {"hidden_size": 1}}', "[" * 100_000])
def test_what_the_server_dies_of(text):
    with pytest.raises(DeploymentError) as caught:
        resolve(replace(BASE, flags={"json_model_override_args": text}))
    assert caught.value.where == "--json-model-override-args"
    assert caught.value.hint


@pytest.mark.parametrize("text", ["{}", "null", "[]", "0"])
def test_nothing_to_override(text):
    assert overridden(replace(BASE, flags={"json_model_override_args": text})).model == BASE.model
