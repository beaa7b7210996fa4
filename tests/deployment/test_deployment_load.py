"""Deployment files that are right: every field of the contract, defaults, lookups of models."""

import json

import pytest

from autotune_planner.deployment.load import deployment_from, load_deployment
from autotune_planner.deployment.model import (
    Decode,
    Moe,
    Parallel,
    Prefill,
    Speculative,
    Traffic,
)
from autotune_planner.deployment.traffic import PromptRow
from autotune_planner.errors import DeploymentError

SMALLEST = {"gpu": "H200", "model": "qwen3-30b-a3b"}

WHOLE = """\
engine: sglang
engine_version: 0.5.23
gpu: H200
model: qwen3-30b-a3b
model_path: /models/Qwen3-30B-A3B
parallel: {tp: 8, dp: 8, dp_attention: true, ep: 8, pp: 1, moe_dense_tp: 1, dp_lm_head: false}
prefill: {chunked_prefill_size: 32768, max_prefill_tokens: 16384, dynamic_chunking: false, mixed_chunk: false}
decode: {max_running_requests: 4096, cuda_graph_max_bs_decode: 256, cuda_graph_bs_decode: null}
disaggregation: prefill
speculative: {algorithm: EAGLE, num_steps: 3, eagle_topk: 1, num_draft_tokens: 4, draft_model_path: /models/draft}
multimodal: null
moe: {runner_backend: flashinfer_cutlass, a2a_backend: none}
flags: {page_size: 64, quantization: modelopt_fp8, dtype: null}
kv_token_capacity: 1000000
autotune: {extend: false}
env: {SGLANG_CACHE_DIR: /cache, A: 1, B: true, C: false, D: "0.5", E: "", F: 010, G: yes}
traffic: {extend_lens: [8192, 1, 1, 1]}
"""


def write(tmp_path, text):
    path = tmp_path / "d.yaml"
    path.write_text(text)
    return path


def write_config(folder, **fields):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **fields}))
    return folder


def test_every_field_of_the_contract(tmp_path):
    path = write(tmp_path, WHOLE)
    found = load_deployment(path)
    assert (found.engine, found.engine_version) == ("sglang", "0.5.23")
    assert (found.gpu.name, found.gpu.profile) == ("NVIDIA H200", "H200-141G")
    assert (found.model.architecture, found.model_path) == ("Qwen3MoeForCausalLM", "/models/Qwen3-30B-A3B")
    assert found.parallel == Parallel(tp=8, dp=8, dp_attention=True, ep=8, pp=1, moe_dense_tp=1, dp_lm_head=False)
    assert found.prefill == Prefill(32768, 16384, False, False)
    assert found.decode == Decode(4096, 256, None)
    assert found.disaggregation == "prefill"
    assert found.speculative == Speculative("EAGLE", 3, 1, 4, "/models/draft")
    assert found.draft_model is None
    assert found.multimodal is False
    assert found.moe == Moe("flashinfer_cutlass", "none")
    assert found.flags == {"page_size": 64, "quantization": "modelopt_fp8"}
    assert found.kv_token_capacity == 1_000_000
    assert found.autotune_extend is False
    assert found.env == {
        "SGLANG_CACHE_DIR": "/cache", "A": "1", "B": "true", "C": "false", "D": "0.5", "E": "", "F": "010", "G": "yes",
    }  # fmt: skip
    assert found.traffic == Traffic(extend_lens=(8192, 1, 1, 1))
    assert found.where("prefill", "max_prefill_tokens") == f"{path}:7"
    assert found.where("flags", "page_size") == f"{path}:13"
    assert found.where("flags", "not_given") == f"{path}:13"


def test_what_is_not_given_is_none():
    found = deployment_from(SMALLEST)
    assert (found.engine, found.engine_version, found.disaggregation) == ("sglang", None, None)
    assert (found.parallel, found.prefill, found.decode) == (Parallel(), Prefill(), Decode())
    assert (found.speculative, found.moe, found.traffic) == (Speculative(), Moe(), Traffic())
    assert (found.flags, found.env, found.autotune_extend, found.kv_token_capacity) == ({}, {}, None, None)
    assert found.where("gpu") is None


def test_sections_whose_lines_are_all_commented_out(tmp_path):
    text = "gpu: H200\nmodel: qwen3-30b-a3b\nparallel:\n  # tp: 8\nenv:\nflags:\ntraffic:\n"
    assert load_deployment(write(tmp_path, text)) == deployment_from(SMALLEST)


def test_capture_sizes_and_sizes_that_switch_chunking_off():
    found = deployment_from(
        {**SMALLEST, "decode": {"cuda_graph_bs_decode": [4, 1]}, "prefill": {"chunked_prefill_size": -1}}
    )
    assert found.decode.cuda_graph_bs_decode == (4, 1)
    assert found.prefill.chunked_prefill_size == -1


def test_deployment_is_a_value_that_can_be_sent_to_a_worker():
    import pickle

    found = deployment_from(SMALLEST)
    assert pickle.loads(pickle.dumps(found)) == found


class TestModelPath:
    """``model_path`` is part of the server's cache key: kept to the letter."""

    def test_of_a_profile_is_its_hugging_face_id(self):
        assert deployment_from(SMALLEST).model_path == "Qwen/Qwen3-30B-A3B"

    def test_is_kept_as_written(self):
        assert deployment_from({**SMALLEST, "model_path": "/models//Qwen3/"}).model_path == "/models//Qwen3/"

    def test_of_a_folder_is_the_folder_as_written(self, tmp_path):
        folder = write_config(tmp_path / "llama")
        for written in (str(folder), f"{folder}/", "./llama"):
            found = deployment_from({"gpu": "H200", "model": written}, folder=tmp_path)
            assert (found.model_path, found.model.name) == (written, "llama")

    def test_of_a_config_file_is_its_folder(self, tmp_path):
        folder = write_config(tmp_path / "llama")
        assert deployment_from({"gpu": "H200", "model": f"{folder}/config.json"}).model_path == str(folder)

    def test_of_another_file_is_needed(self, tmp_path):
        (tmp_path / "llama.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        written = {"gpu": "H200", "model": "llama.json"}
        with pytest.raises(DeploymentError, match=r"^model_path is missing"):
            deployment_from(written, folder=tmp_path)
        assert (
            deployment_from({**written, "model_path": "/m"}, folder=tmp_path).model.architecture == "LlamaForCausalLM"
        )

    def test_of_a_mapping_is_needed(self):
        config = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096}
        with pytest.raises(DeploymentError, match=r"^model_path is missing"):
            deployment_from({"gpu": "H200", "model": config})
        found = deployment_from({"gpu": "H200", "model": config, "model_path": "/m"})
        assert (found.model.config, found.model.source) == (config, None)


class TestModelFromPathAlone:
    def test_folder_on_this_machine(self, tmp_path):
        folder = write_config(tmp_path / "llama")
        found = deployment_from({"gpu": "H200", "model_path": str(folder)})
        assert (found.model.name, found.model_path) == ("llama", str(folder))

    def test_folder_of_the_same_name_in_model_dir(self, tmp_path):
        write_config(tmp_path / "dir" / "Llama", hidden_size=1)
        found = deployment_from({"gpu": "H200", "model_path": "/models/Llama/"}, model_dir=str(tmp_path / "dir"))
        assert (found.model.config["hidden_size"], found.model_path) == (1, "/models/Llama/")

    def test_model_dir_comes_before_the_path_itself(self, tmp_path):
        here = write_config(tmp_path / "Llama", hidden_size=1)
        write_config(tmp_path / "dir" / "Llama", hidden_size=2)
        found = deployment_from({"gpu": "H200", "model_path": str(here)}, model_dir=str(tmp_path / "dir"))
        assert found.model.config["hidden_size"] == 2

    def test_hugging_face_id_of_a_profile(self):
        found = deployment_from({"gpu": "H200", "model_path": "openai/gpt-oss-120b"})
        assert (found.model.name, found.model_path) == ("gpt-oss-120b", "openai/gpt-oss-120b")

    def test_name_of_a_profile_is_no_server_path(self):
        with pytest.raises(DeploymentError, match="is not on this machine"):
            deployment_from({"gpu": "H200", "model_path": "qwen3-30b-a3b"})

    def test_folder_without_config(self, tmp_path):
        with pytest.raises(DeploymentError, match=r"config\.json does not exist"):
            deployment_from({"gpu": "H200", "model_path": str(tmp_path)})


class TestDraftModel:
    def draft(self, path, **arguments):
        speculative = {"algorithm": "EAGLE3", "draft_model_path": path}
        return deployment_from({**SMALLEST, "speculative": speculative}, **arguments).draft_model

    def test_folder_here(self, tmp_path):
        assert self.draft(str(write_config(tmp_path / "draft"))).name == "draft"

    def test_folder_of_the_same_name_in_model_dir(self, tmp_path):
        write_config(tmp_path / "draft")
        assert self.draft("/models/draft", model_dir=str(tmp_path)).name == "draft"

    def test_hugging_face_id_of_a_profile(self):
        assert self.draft("meta-llama/Llama-3.2-1B").name == "llama-3.2-1b-draft"

    def test_absent(self):
        assert self.draft("/models/draft") is None


def test_multimodal_follows_the_configuration():
    for model, expected in (("qwen3-vl-30b-a3b", True), ("qwen3-30b-a3b", False)):
        written = {"gpu": "H200", "model": model}
        assert deployment_from(written).multimodal is expected
        assert deployment_from({**written, "multimodal": expected}).multimodal is expected


@pytest.mark.parametrize(("extend", "variable"), [(True, 1), (True, "yes"), (False, "0"), (False, False)])
def test_autotune_extend_that_agrees_with_the_variable(extend, variable):
    env = {"SGLANG_FLASHINFER_AUTOTUNE_EXTEND": variable}
    assert deployment_from({**SMALLEST, "autotune": {"extend": extend}, "env": env}).autotune_extend is extend


def test_histogram_is_looked_up_beside_the_file(tmp_path):
    (tmp_path / "lens.csv").write_text("prompt_len\n5\n")
    text = "gpu: H200\nmodel: qwen3-30b-a3b\ntraffic: {histogram: lens.csv}\n"
    expected = Traffic(histogram=str(tmp_path / "lens.csv"), rows=(PromptRow(5),))
    assert load_deployment(write(tmp_path, text)).traffic == expected
