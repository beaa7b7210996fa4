"""Profiles against the GPUs and model configurations that the reference servers were run with."""

import json
from pathlib import Path

import pytest

from autotune_planner import profiles
from autotune_planner.deployment.gpus import load_gpu
from autotune_planner.deployment.models import load_model, profile_model

TRUTH = Path(__file__).parents[1] / "data" / "truth"
GPUS = json.loads((TRUTH / "gpus.json").read_text())
MODEL_FOLDERS = sorted(path.name for path in (TRUTH / "models").iterdir())


def test_every_reference_gpu_and_model_has_a_profile():
    assert set(GPUS) <= set(profiles.names("gpus"))
    assert {name.lower() for name in MODEL_FOLDERS} <= set(profiles.names("models"))


@pytest.mark.parametrize("name", GPUS)
def test_gpu_profile_equals_the_reference(name):
    gpu, expected = load_gpu(name), GPUS[name]
    major, minor = expected["compute_capability"].split(".")
    assert (gpu.name, gpu.memory_mib, gpu.sm_count) == (expected["name"], expected["memory_mib"], expected["sm_count"])
    assert gpu.compute_capability == (int(major), int(minor))
    assert (gpu.vendor, gpu.arch, gpu.profile) == ("nvidia", None, name)


@pytest.mark.parametrize("name", profiles.names("gpus"))
def test_gpu_profile_has_what_a_forecast_needs(name):
    content = profiles.load("gpus", name)
    assert content["source"]
    assert content["memory_bandwidth_gbps"] > 0
    assert content["l2_mib"] > 0
    fp8_from = ("8.9", "9.0", "10.0", "12.0")
    assert (content["dense_fp8_tflops"] is not None) == (content["compute_capability"] in fp8_from)
    assert (content["dense_bf16_tflops"] is not None) == (content["compute_capability"] != "7.5")


def test_gpu_aliases_mean_one_gpu_each():
    owners: dict[str, str] = {}
    for name in profiles.names("gpus"):
        content = profiles.load("gpus", name)
        for other in {name, content["name"], *content["aliases"]}:
            assert owners.setdefault(other.lower(), name) == name


@pytest.mark.parametrize("folder", MODEL_FOLDERS)
def test_model_profile_equals_the_reference(folder):
    content = profiles.load("models", folder.lower())
    source = TRUTH / "models" / folder
    quant = source / "hf_quant_config.json"
    assert content["config"] == json.loads((source / "config.json").read_text())
    assert content.get("hf_quant_config") == (json.loads(quant.read_text()) if quant.exists() else None)
    assert content["hf_id"].count("/") == 1
    assert content["source"]


@pytest.mark.parametrize("folder", MODEL_FOLDERS)
def test_model_profile_and_folder_give_the_same_model(folder):
    by_name, by_folder = profile_model(folder), load_model(TRUTH / "models" / folder)
    assert by_name.config == by_folder.config
    assert by_name.quantization_config == by_folder.quantization_config
    assert (by_name.name, by_name.source) == (folder.lower(), "profile")
    assert (by_folder.name, by_folder.source) == (folder, str(TRUTH / "models" / folder / "config.json"))


def test_hugging_face_ids_are_distinct():
    ids = [profiles.load("models", name)["hf_id"] for name in profiles.names("models")]
    assert len(ids) == len(set(ids))
