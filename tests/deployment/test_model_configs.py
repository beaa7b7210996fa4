"""Models from folders in Hugging Face form."""

import json

import pytest

from autotune_planner.deployment.models import load_model, model_from_config, other_modality, profile_model
from autotune_planner.errors import DeploymentError

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096}
MODELOPT = {
    "producer": {"name": "modelopt", "version": "0.29.0"},
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]},
}


def write_model(folder, config=CONFIG, quant=None):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if quant is not None:
        (folder / "hf_quant_config.json").write_text(quant if isinstance(quant, str) else json.dumps(quant))
    return folder


def test_folder_and_config_file_are_the_same_model(tmp_path):
    folder = write_model(tmp_path / "Llama")
    assert load_model(folder) == load_model(str(folder / "config.json"))
    assert load_model(folder).name == "Llama"
    assert load_model(folder).quantization_config is None


def test_quantization_of_modelopt_file_alone_has_the_form_of_the_config(tmp_path):
    assert load_model(write_model(tmp_path, quant=MODELOPT)).quantization_config == {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "kv_cache_quant_algo": None,
        "exclude_modules": ["lm_head"],
        "ignore": ["lm_head"],
    }


def test_quantization_in_the_config_wins(tmp_path):
    config = {**CONFIG, "quantization_config": {"quant_method": "fp8"}}
    assert load_model(write_model(tmp_path, config, MODELOPT)).quantization_config == {"quant_method": "fp8"}


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
INT4 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
}
NVFP4 = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}


@pytest.mark.parametrize(
    ("config", "quant", "expected"),
    [
        ({"quantization_config": FP8}, None, FP8),
        ({"text_config": {"hidden_size": 4096, "quantization_config": FP8}}, None, FP8),
        ({"quantization_config": INT4}, None, INT4),
        ({"text_config": {"hidden_size": 7168, "quantization_config": INT4}}, None, INT4),
        ({"compression_config": INT4}, None, INT4),
        # ModelOpt's content in config.json: flat without a method, or nested as in its own file
        ({"quantization_config": NVFP4}, None, {"quant_method": "modelopt", **NVFP4, "ignore": ["lm_head"]}),
        (
            {"quantization_config": {"producer": {"name": "modelopt"}, "quantization": NVFP4}},
            None,
            {"quant_method": "modelopt", **NVFP4, "ignore": ["lm_head"]},
        ),
        ({}, {"quantization": NVFP4}, {"quant_method": "modelopt", **NVFP4, "ignore": ["lm_head"]}),
        ({}, NVFP4, {"quant_method": "modelopt", **NVFP4, "ignore": ["lm_head"]}),
        ({}, {"producer": {"name": "modelopt"}}, None),
        ({"quantization_config": {}}, None, None),
        ({"quantization_config": None}, {"quantization": {}}, None),
    ],
)
def test_quantization_in_any_of_its_places(tmp_path, config, quant, expected):
    """The places that the server looks at: ``ModelConfig._parse_quant_hf_config``,
    ``unwrap_modelopt_quantization_config`` (SGLang 0.5.23, ``configs/model_config.py``); the text part's is hoisted."""
    folder = write_model(tmp_path, {**CONFIG, **config}, quant)
    assert load_model(folder).quantization_config == expected


def test_nested_text_configuration_is_the_language_model(tmp_path):
    text = {"hidden_size": 2048, "num_experts": 128}
    model = load_model(
        write_model(tmp_path, {"architectures": ["X"], "text_config": text, "vision_config": {"depth": 2}})
    )
    assert model.text_config == text
    assert other_modality(model) == "vision_config"


def test_code_of_a_model_is_never_run(tmp_path):
    """``auto_map`` names files beside the configuration; they are not even opened."""
    folder = write_model(tmp_path, {**CONFIG, "auto_map": {"AutoConfig": "configuration_x.XConfig"}})
    (folder / "configuration_x.py").write_text("raise SystemExit('the code of a model was run')")
    assert load_model(folder).architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ('{"a": 1,\n "b" 2}', ":2:6", "the model's config.json is not valid JSON: Expecting ':' delimiter"),
        ("", ":1:1", "the model's config.json is not valid JSON: Expecting value"),
        ("[]", ":1:1", "the model's config.json is not a JSON object"),
        ("[" * 100_000, "", "the model's config.json is not valid JSON: nested too deeply"),
        ("{}", "", "the model's configuration has no list of architectures"),
        ('{"architectures": "X"}', "", "the model's configuration has no list of architectures"),
        ('{"architectures": ["X"], "text_config": 1}', "", "text_config of the model's configuration is not a mapping"),
        (
            '{"architectures": ["X"], "text_config": {"quantization_config": "fp8"}}',
            "",
            "text_config.quantization_config of the model's configuration is not a mapping",
        ),
    ],
)
def test_damaged_config(tmp_path, text, place, message):
    folder = write_model(tmp_path, text)
    with pytest.raises(DeploymentError) as caught:
        load_model(folder)
    assert (caught.value.where, caught.value.message) == (f"{folder}/config.json{place}", message)
    assert caught.value.hint


def test_damaged_quantization_file(tmp_path):
    with pytest.raises(DeploymentError) as caught:
        load_model(write_model(tmp_path, quant="{"))
    assert caught.value.where == f"{tmp_path}/hf_quant_config.json:1:2"


def test_folder_without_config(tmp_path):
    with pytest.raises(DeploymentError) as caught:
        load_model(tmp_path)
    assert caught.value.message == "the model's config.json does not exist"
    assert caught.value.where == f"{tmp_path}/config.json"


def test_config_that_is_not_utf8(tmp_path):
    (tmp_path / "config.json").write_bytes(b'{"a":\n "\xff"}')
    with pytest.raises(DeploymentError) as caught:
        load_model(tmp_path)
    assert (caught.value.code, caught.value.where) == ("not-utf-8", f"{tmp_path}/config.json:2")


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B"])
def test_profile_by_name_or_hugging_face_id(name):
    assert profile_model(name).name == "qwen3-30b-a3b"


def test_unknown_profile_lists_the_nearest_first():
    with pytest.raises(DeploymentError) as caught:
        profile_model("gpt-oss-70b")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("one of these, nearest first: gpt-oss-20b, gpt-oss-120b, ")


def test_other_modality():
    assert other_modality(profile_model("qwen3-vl-30b-a3b")) == "vision_config"
    assert other_modality(profile_model("qwen3-30b-a3b")) is None
    audio = {"architectures": ["Qwen2AudioForConditionalGeneration"], "audio_config": {"d_model": 1280}}
    assert other_modality(model_from_config(audio)) == "audio_config"
    assert other_modality(model_from_config({"architectures": ["T5ForConditionalGeneration"]})) is None
