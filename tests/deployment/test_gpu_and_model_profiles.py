"""Profiles against the GPUs and model configurations that the reference servers were run with."""

import json
from pathlib import Path

import pytest

from autotune_planner import profiles
from autotune_planner.deployment.gpus import load_gpu
from autotune_planner.deployment.models import load_model, profile_model

TRUTH = Path(__file__).parents[1] / "data" / "truth"
RELEASED = Path(__file__).parents[1] / "data" / "models"
GPUS = json.loads((TRUTH / "gpus.json").read_text())
MODEL_FOLDERS = sorted(path.name for path in (TRUTH / "models").iterdir())
RELEASED_FOLDERS = sorted(path.parent.name for path in RELEASED.glob("*/config.json"))
NO_FIGURES = {"transformers_version", "auto_map"}  # nothing of the model's size, and no code to run


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
    assert content["l2_mib"] is None or content["l2_mib"] > 0
    fp8_from = ("8.9", "9.0", "10.0", "10.3", "12.0", None)  # None: AMD's
    assert (content["dense_fp8_tflops"] is not None) == (content["compute_capability"] in fp8_from)
    assert (content["dense_bf16_tflops"] is not None) == (content["compute_capability"] != "7.5")


@pytest.mark.parametrize(
    ("name", "driver", "mib", "capability", "units", "arch"),
    [
        ("GB200", "NVIDIA GB200", 189471, (10, 0), 152, None),  # nvidia-smi; aiconfigurator systems/gb200.yaml
        ("B300", "NVIDIA B300 SXM6 AC", 275040, (10, 3), 148, None),  # systems/b300_sxm.yaml: 275040MiB, sm_version 103
        ("GB300", "NVIDIA GB300", 284208, (10, 3), 152, None),  # systems/gb300.yaml: 284208MiB, sm_version 103
        ("MI300X", "AMD Instinct MI300X", 206141652992 >> 20, None, 304, "gfx942"),  # rocm-smi, in bytes
        ("MI355X", "AMD Instinct MI355X", 301973504 >> 10, None, 256, "gfx950"),  # rocminfo, in KiB
    ],
)
def test_gpus_that_no_reference_was_run_on(name, driver, mib, capability, units, arch):
    """Figures as their tools print them; a Grace superchip's GPU has 152 of the 160 SMs of its two dies enabled, an HGX
    board's 148."""
    gpu = load_gpu(name)
    assert (gpu.name, gpu.memory_mib, gpu.compute_capability, gpu.sm_count) == (driver, mib, capability, units)
    assert (gpu.vendor, gpu.arch) == ("nvidia" if arch is None else "amd", arch)


@pytest.mark.parametrize(
    "name",
    [
        "T4",
        "A10",
        "L40S",
        "A100-40",
        "A100-80",
        "H20",
        "H100",
        "H200",
        "B200",
        "GB200",
        "B300",
        "GB300",
        "RTX 5090",
        "MI300X",
        "MI355X",
    ],
)
def test_gpus_known_by_their_short_names(name):
    assert load_gpu(name).profile is not None


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


@pytest.mark.parametrize("folder", RELEASED_FOLDERS)
def test_model_profile_equals_the_released_configuration(folder):
    content = profiles.load("models", folder.lower())
    released = json.loads((RELEASED / folder / "config.json").read_text())
    assert content["config"] == {key: value for key, value in released.items() if key not in NO_FIGURES}
    assert content["hf_id"].split("/")[1] == folder
    assert content["source"]


def test_every_profile_loads_and_is_tested_against_a_configuration():
    tested = {folder.lower() for folder in (*MODEL_FOLDERS, *RELEASED_FOLDERS)}
    assert set(profiles.names("models")) == tested
    for name in profiles.names("models"):
        assert profile_model(profiles.load("models", name)["hf_id"]).name == name


@pytest.mark.parametrize(
    ("name", "architecture", "layers", "hidden", "experts", "top_k"),
    [
        ("deepseek-r1", "DeepseekV3ForCausalLM", 61, 7168, 256, 8),
        ("deepseek-v3.2", "DeepseekV32ForCausalLM", 61, 7168, 256, 8),
        ("kimi-k2-instruct", "DeepseekV3ForCausalLM", 61, 7168, 384, 8),
        ("qwen3.5-397b-a17b", "Qwen3_5MoeForConditionalGeneration", 60, 4096, 512, 10),
        ("glm-4.6", "Glm4MoeForCausalLM", 92, 5120, 160, 8),
        ("glm-5", "GlmMoeDsaForCausalLM", 78, 6144, 256, 8),
        ("gpt-oss-20b", "GptOssForCausalLM", 24, 2880, 32, 4),
        ("minimax-m2", "MiniMaxM2ForCausalLM", 62, 3072, 256, 8),
        ("llama-3.1-70b", "LlamaForCausalLM", 80, 8192, None, None),
    ],
)
def test_sizes_that_the_models_are_published_with(name, architecture, layers, hidden, experts, top_k):
    model = profile_model(name)
    text = model.text_config
    counts = (text.get(key) for key in ("num_experts", "n_routed_experts", "num_local_experts"))
    assert (model.architecture, text["num_hidden_layers"], text["hidden_size"]) == (architecture, layers, hidden)
    assert (next(filter(None, counts), None), text.get("num_experts_per_tok")) == (experts, top_k)


def test_hugging_face_ids_are_distinct():
    ids = [profiles.load("models", name)["hf_id"] for name in profiles.names("models")]
    assert len(ids) == len(set(ids))
