"""Wrong deployment files and the whole of what is said about each."""

from typing import NamedTuple

import pytest

from autotune_planner.deployment.load import deployment_from, load_deployment
from autotune_planner.deployment.yaml_source import parse_yaml
from autotune_planner.errors import DeploymentError, ExitCode


class Case(NamedTuple):
    name: str
    text: str
    code: str
    where: str
    message: str
    hint: str


CASES = [
    Case(
        "misspelt key",
        "gpu: H200\nmodle: qwen3-30b-a3b\nmodel: qwen3-30b-a3b\n",
        "unknown-key",
        "d.yaml:2",
        'unknown key "modle": did you mean model?',
        "write model: qwen3-30b-a3b",
    ),
    Case(
        "misspelt key in a section",
        "gpu: H200\nmodel: qwen3-30b-a3b\nprefill:\n  max_prefill_tokens: 8192\n  chunked_prefil_size: 8192\n",
        "unknown-key",
        "d.yaml:5",
        'unknown key "chunked_prefil_size" in prefill: did you mean chunked_prefill_size?',
        "write chunked_prefill_size: 8192",
    ),
    Case(
        "misspelt key in gpu",
        'gpu: {name: X, compute_capabilty: "9.0", vendor: amd}\nmodel: qwen3-30b-a3b\n',
        "unknown-key",
        "d.yaml:1",
        'unknown key "compute_capabilty" in gpu: did you mean compute_capability?',
        'write compute_capability: "9.0"',
    ),
    Case(
        "server flag at the top",
        "gpu: H200\nmodel: qwen3-30b-a3b\ntp_size: 8\n",
        "unknown-key",
        "d.yaml:3",
        'unknown key "tp_size": did you mean parallel.tp?',
        "write parallel: {tp: 8}",
    ),
    Case(
        "key of another section",
        "gpu: H200\nmodel: qwen3-30b-a3b\nprefill: {max_running_requests: 8}\n",
        "unknown-key",
        "d.yaml:3",
        'unknown key "max_running_requests" in prefill: did you mean decode.max_running_requests?',
        "write decode: {max_running_requests: 8}",
    ),
    Case(
        "key that means nothing",
        "gpu: H200\nmodel: qwen3-30b-a3b\nmoe: {wibble: 1}\n",
        "unknown-key",
        "d.yaml:3",
        'unknown key "wibble" in moe',
        "one of runner_backend, a2a_backend",
    ),
    Case(
        "old name of a server flag",
        "gpu: H200\nmodel: qwen3-30b-a3b\ndecode: {cuda_graph_max_bs: 64}\n",
        "unknown-key",
        "d.yaml:3",
        'unknown key "cuda_graph_max_bs" in decode: did you mean cuda_graph_max_bs_decode?',
        "write cuda_graph_max_bs_decode: 64",
    ),
    Case(
        "flag with a field",
        "gpu: H200\nmodel: qwen3-30b-a3b\nflags:\n  page_size: 64\n  tp_size: 8\n",
        "flag-with-field",
        "d.yaml:5",
        "flags.tp_size has a field of its own",
        "write parallel: {tp: ...}",
    ),
    Case(
        "flag in dashes",
        "gpu: H200\nmodel: qwen3-30b-a3b\nflags: {--page-size: 64}\n",
        "bad-value",
        "d.yaml:3",
        "flags.--page-size is not a server flag in snake_case",
        "write page_size",
    ),
    Case(
        "flag with a field in dashes",
        "gpu: H200\nmodel: qwen3-30b-a3b\nflags: {--chunked-prefill-size: 64}\n",
        "flag-with-field",
        "d.yaml:3",
        "flags.--chunked-prefill-size has a field of its own",
        "write prefill: {chunked_prefill_size: ...}",
    ),
    Case(
        "text for an integer",
        'gpu: H200\nmodel: qwen3-30b-a3b\nparallel: {tp: "8"}\n',
        "wrong-type",
        "d.yaml:3",
        'parallel.tp is "8"; it takes an integer',
        "write tp: 8",
    ),
    Case(
        "true for an integer",
        "gpu: H200\nmodel: qwen3-30b-a3b\nparallel: {tp: true}\n",
        "wrong-type",
        "d.yaml:3",
        "parallel.tp is true; it takes an integer",
        "write tp: 1",
    ),
    Case(
        "float for an integer",
        "gpu: H200\nmodel: qwen3-30b-a3b\nparallel: {tp: 8.0}\n",
        "wrong-type",
        "d.yaml:3",
        "parallel.tp is 8.0; it takes an integer",
        "write tp: 8",
    ),
    Case(
        "words for an integer",
        "gpu: H200\nmodel: qwen3-30b-a3b\nprefill: {chunked_prefill_size: big}\n",
        "wrong-type",
        "d.yaml:3",
        'prefill.chunked_prefill_size is "big"; it takes an integer',
        "write chunked_prefill_size: 8192",
    ),
    Case(
        "integer for a boolean",
        "gpu: H200\nmodel: qwen3-30b-a3b\nparallel: {dp_attention: 1}\n",
        "wrong-type",
        "d.yaml:3",
        "parallel.dp_attention is 1; it takes true or false",
        "write dp_attention: true",
    ),
    Case(
        "yes for a boolean",
        "gpu: H200\nmodel: qwen3-30b-a3b\nparallel: {dp_attention: yes}\n",
        "wrong-type",
        "d.yaml:3",
        'parallel.dp_attention is "yes"; it takes true or false',
        "write dp_attention: true",
    ),
    Case(
        "no in quotes for a boolean",
        'gpu: H200\nmodel: qwen3-30b-a3b\nautotune: {extend: "no"}\n',
        "wrong-type",
        "d.yaml:3",
        'autotune.extend is "no"; it takes true or false',
        "write extend: false",
    ),
    Case(
        "number for text",
        "gpu: H200\nmodel: qwen3-30b-a3b\nmoe: {runner_backend: 5}\n",
        "wrong-type",
        "d.yaml:3",
        "moe.runner_backend is 5; it takes text",
        'write runner_backend: "5"',
    ),
    Case(
        "ranks below one",
        "gpu: H200\nmodel: qwen3-30b-a3b\nparallel: {tp: 0}\n",
        "bad-value",
        "d.yaml:3",
        "parallel.tp is 0; it takes 1 or more",
        "write tp: 8",
    ),
    Case(
        "too large for any server",
        "gpu: H200\nmodel: qwen3-30b-a3b\ndecode: {max_running_requests: 4294967296}\n",
        "bad-value",
        "d.yaml:3",
        "decode.max_running_requests is 4294967296; it takes 2147483647 or less",
        "write max_running_requests: 256",
    ),
    Case(
        "no capture sizes",
        "gpu: H200\nmodel: qwen3-30b-a3b\ndecode: {cuda_graph_bs_decode: []}\n",
        "bad-value",
        "d.yaml:3",
        "decode.cuda_graph_bs_decode is an empty list; it takes at least one value",
        "write cuda_graph_bs_decode: [1, 2, 4, 8]",
    ),
    Case(
        "text among capture sizes",
        "gpu: H200\nmodel: qwen3-30b-a3b\ndecode:\n  cuda_graph_bs_decode:\n    - 1\n    - two\n",
        "wrong-type",
        "d.yaml:6",
        'decode.cuda_graph_bs_decode[1] is "two"; it takes an integer',
        "write cuda_graph_bs_decode: [1, 2, 4, 8]",
    ),
    Case(
        "version that is a float",
        "gpu: H200\nmodel: qwen3-30b-a3b\nengine_version: 0.5\n",
        "wrong-type",
        "d.yaml:3",
        "engine_version is 0.5; it takes a version, and YAML reads this as a number unless quoted",
        'write engine_version: "0.5.23"',
    ),
    Case(
        "unknown role",
        "gpu: H200\nmodel: qwen3-30b-a3b\ndisaggregation: both\n",
        "bad-value",
        "d.yaml:3",
        'disaggregation is "both"; it takes prefill or decode',
        "write disaggregation: prefill, or leave the line out",
    ),
    Case(
        "section that is a value",
        "gpu: H200\nmodel: qwen3-30b-a3b\nprefill: 8192\n",
        "wrong-type",
        "d.yaml:3",
        "prefill is 8192; it takes a mapping",
        "write prefill: {chunked_prefill_size: 8192}",
    ),
    Case(
        "section that is a list",
        "gpu: H200\nmodel: qwen3-30b-a3b\nflags: [page_size]\n",
        "wrong-type",
        "d.yaml:3",
        "flags is a list; it takes a mapping",
        "write flags: {page_size: 64}",
    ),
    Case(
        "float in env",
        "gpu: H200\nmodel: qwen3-30b-a3b\nenv: {A: 1.5}\n",
        "wrong-type",
        "d.yaml:3",
        "env.A is 1.5; it takes text, an integer, true or false",
        'write A: "1.5"',
    ),
    Case(
        "null in env",
        "gpu: H200\nmodel: qwen3-30b-a3b\nenv: {A: null}\n",
        "wrong-type",
        "d.yaml:3",
        "env.A is null; it takes text, an integer, true or false",
        'write A: ""',
    ),
    Case(
        "name of a variable",
        "gpu: H200\nmodel: qwen3-30b-a3b\nenv: {A-B: 1}\n",
        "bad-value",
        "d.yaml:3",
        "env.A-B is not the name of an environment variable",
        "write letters, digits and underscores",
    ),
    Case(
        "no gpu",
        "model: qwen3-30b-a3b\n",
        "missing-field",
        "d.yaml:1",
        "gpu is missing",
        "add gpu: H200",
    ),
    Case(
        "null gpu",
        "gpu:\nmodel: qwen3-30b-a3b\n",
        "missing-field",
        "d.yaml:1",
        "gpu is missing",
        "add gpu: H200",
    ),
    Case(
        "no model",
        "gpu: H200\n",
        "missing-field",
        "d.yaml:1",
        "model is missing",
        "add model: qwen3-30b-a3b",
    ),
    Case(
        "empty model",
        "gpu: H200\nmodel: ''\n",
        "bad-value",
        "d.yaml:2",
        "model is empty",
        "write model: qwen3-30b-a3b, or leave the line out",
    ),
    Case(
        "gpu list",
        "gpu: [H200]\nmodel: qwen3-30b-a3b\n",
        "wrong-type",
        "d.yaml:1",
        "gpu is a list; it takes a name or a mapping",
        "write gpu: H200",
    ),
    Case(
        "gpu without capability",
        "gpu:\n  name: NVIDIA X\nmodel: qwen3-30b-a3b\n",
        "missing-field",
        "d.yaml:1",
        "gpu has no compute_capability, which is part of the cache path",
        'add compute_capability: "9.0" (nvidia-smi shows it)',
    ),
    Case(
        "gpu of another vendor",
        "gpu: {name: X, vendor: intel}\nmodel: qwen3-30b-a3b\n",
        "bad-value",
        "d.yaml:1",
        'gpu.vendor is "intel"; it takes nvidia or amd',
        "write vendor: nvidia",
    ),
    Case(
        "unknown gpu",
        "gpu: H300\nmodel: qwen3-30b-a3b\n",
        "unknown-gpu",
        "d.yaml:1",
        'gpu "H300" is not known',
        (
            "one of these, nearest first: H100-80G, B300-269G, H200-141G, GB300-278G, MI300X-192G, H20-96G, A100-40G, "
            "A100-80G, B200-180G, GB200-186G, A10-24G, L40S-48G, MI355X-288G, RTX5090-32G, T4-16G; or a mapping that "
            "describes it"
        ),
    ),
    Case(
        "unknown model",
        "gpu: H200\nmodel: qwen3-30b\n",
        "unknown-model",
        "d.yaml:2",
        'model "qwen3-30b" is neither a known model nor a folder or config.json here',
        (
            "one of these, nearest first: qwen3-30b-a3b, qwen3-vl-30b-a3b, qwen3-30b-a3b-fp8, qwen3-235b-a22b, "
            "qwen3-30b-a3b-nvfp4, qwen3.5-397b-a17b, qwen3-30b-a3b-fp8-modelopt, llama-3.1-70b, eagle3-llama-3.1-8b, "
            "deepseek-v3-bf16, gpt-oss-20b, gpt-oss-120b, llama-3.1-8b, llama-3.1-8b-fp8, deepseek-v3-nvfp4, "
            "llama-3.1-8b-nvfp4, llama-3.2-1b-draft, minimax-m2, deepseek-r1, deepseek-v3, minimax-m2.5, "
            "deepseek-v3.2, glm-5, glm-4.6, kimi-k2-instruct"
        ),
    ),
    Case(
        "model path alone",
        "gpu: H200\nmodel_path: /models/Qwen3-30B\n",
        "unknown-model",
        "d.yaml:2",
        'model_path "/models/Qwen3-30B" is not on this machine, and there is no model: to describe it',
        "add model: qwen3-30b-a3b, or model: DIR, a folder with its config.json",
    ),
    Case(
        "mapping that is no model",
        "gpu: H200\nmodel: {hidden_size: 8}\nmodel_path: /m\n",
        "model-config",
        "d.yaml:2",
        "the model's configuration has no list of architectures",
        'give the config.json as released, with a line such as "architectures": ["Qwen3MoeForCausalLM"]',
    ),
    Case(
        "mapping without path",
        "gpu: H200\nmodel: {architectures: [LlamaForCausalLM]}\n",
        "missing-field",
        "d.yaml:2",
        "model_path is missing; it is part of the server's cache key",
        "add model_path: as the server is given it, such as /models/Qwen3-30B-A3B",
    ),
    Case(
        "nul in a path",
        'gpu: H200\nmodel: qwen3-30b-a3b\nmodel_path: "a\\0b"\n',
        "bad-value",
        "d.yaml:3",
        "model_path has a NUL character, which no path or variable can hold",
        "write model_path: /models/Qwen3-30B-A3B",
    ),
    Case(
        "text model said multimodal",
        "gpu: H200\nmodel: qwen3-30b-a3b\nmultimodal: true\n",
        "contradiction",
        "d.yaml:3",
        "multimodal is true, but the model's configuration has neither an image nor an audio nor a video part",
        "leave the line out, or name the other model",
    ),
    Case(
        "multimodal model said text",
        "gpu: H200\nmodel: qwen3-vl-30b-a3b\nmultimodal: false\n",
        "contradiction",
        "d.yaml:3",
        "multimodal is false, but the model's configuration has vision_config",
        "leave the line out, or name the other model",
    ),
    Case(
        "extend against the variable",
        ("gpu: H200\nmodel: qwen3-30b-a3b\nautotune:\n  extend: false\nenv:\n  SGLANG_FLASHINFER_AUTOTUNE_EXTEND: 1\n"),
        "disagreement",
        "d.yaml:4",
        'autotune.extend is false, but SGLANG_FLASHINFER_AUTOTUNE_EXTEND is "1" at d.yaml:6',
        "keep one of the two lines",
    ),
    Case(
        "sample and histogram",
        "gpu: H200\nmodel: qwen3-30b-a3b\ntraffic: {extend_lens: [1], histogram: lens.csv}\n",
        "disagreement",
        "d.yaml:3",
        "traffic has both extend_lens and histogram",
        "keep one of them",
    ),
    Case(
        "histogram that is not there",
        "gpu: H200\nmodel: qwen3-30b-a3b\ntraffic: {histogram: lens.csv}\n",
        "file-not-found",
        "d.yaml:3",
        'traffic.histogram "lens.csv" is not a file',
        "a path relative to /deployments, or an absolute one",
    ),
    Case(
        "negative length",
        "gpu: H200\nmodel: qwen3-30b-a3b\ntraffic: {extend_lens: [1, -2]}\n",
        "bad-value",
        "d.yaml:3",
        "traffic.extend_lens[1] is -2; it takes 0 or more",
        "write extend_lens: [8192, 1, 1, 1]",
    ),
    Case(
        "launch that is a number",
        "gpu: H200\nmodel: qwen3-30b-a3b\nlaunch: 5\n",
        "wrong-type",
        "d.yaml:3",
        "launch is 5; it takes a command line or a list of its words",
        "write launch: sglang serve --model-path /models/Qwen3-30B-A3B",
    ),
    Case(
        "launch line that is no command of the server",
        "gpu: H200\nmodel: qwen3-30b-a3b\nlaunch: vllm serve /models/Qwen3-30B-A3B\n",
        "launch-line",
        "d.yaml:3",
        "the launch line starts with 'vllm', which is no way to start the server",
        "python -m sglang.launch_server --model-path ..., or sglang serve --model-path ...",
    ),
    Case(
        "flag of a launch line",
        "gpu: H200\nmodel: qwen3-30b-a3b\nlaunch: |\n  sglang serve /models/Q --tp-sizes 8\n",
        "unknown-flag",
        "d.yaml:3: launch (--tp-sizes)",
        "the server has no flag --tp-sizes",
        "did you mean --tp-size?",
    ),
    Case(
        "field and flag disagree",
        "gpu: H200\nmodel: qwen3-30b-a3b\nparallel:\n  tp: 4\nlaunch: sglang serve /models/Q --tp 8\n",
        "disagreement",
        "d.yaml:4",
        "parallel.tp is 4, but the launch line gives --tp-size 8 at d.yaml:5",
        "keep one of the two, or write both alike",
    ),
    Case(
        "switch and flag disagree",
        "gpu: H200\nmodel: qwen3-30b-a3b\nparallel: {dp_attention: false}\n"
        "launch: [--model-path, /models/Q, --enable-dp-attention]\n",
        "disagreement",
        "d.yaml:3",
        "parallel.dp_attention is false, but the launch line gives --enable-dp-attention true at d.yaml:4",
        "keep one of the two, or write both alike",
    ),
    Case(
        "other flags disagree",
        "gpu: H200\nmodel: qwen3-30b-a3b\nflags: {page_size: 64}\nlaunch: sglang serve /models/Q --page-size 1\n",
        "disagreement",
        "d.yaml:3",
        "flags.page_size is 64, but the launch line gives --page-size 1 at d.yaml:4",
        "keep one of the two, or write both alike",
    ),
    Case(
        "environments disagree",
        "gpu: H200\nmodel: qwen3-30b-a3b\nenv: {SGLANG_CACHE_DIR: /a}\nlaunch: SGLANG_CACHE_DIR=/b sglang serve /m/Q\n",
        "disagreement",
        "d.yaml:3",
        'env.SGLANG_CACHE_DIR is "/a", but the launch line sets SGLANG_CACHE_DIR=/b at d.yaml:4',
        "keep one of the two, or write both alike",
    ),
    Case(
        "autotune and the environment of the launch line disagree",
        "gpu: H200\nmodel: qwen3-30b-a3b\nautotune: {extend: false}\n"
        "launch: SGLANG_FLASHINFER_AUTOTUNE_EXTEND=1 sglang serve /m/Q\n",
        "disagreement",
        "d.yaml:3",
        'autotune.extend is false, but SGLANG_FLASHINFER_AUTOTUNE_EXTEND is "1" at d.yaml:4',
        "keep one of the two lines",
    ),
    Case(
        "launch line for a server without rules",
        "engine: vllm\ngpu: H200\nmodel: qwen3-30b-a3b\nlaunch: vllm serve /m/Q\n",
        "unknown-engine",
        "d.yaml:1",
        "no rules for the server vllm",
        "known: sglang",
    ),
    Case(
        "three at once",
        "gpu: H200\nmodel: qwen3-30b-a3b\nprefill:\n  mixed_chunk: 1\nparallel:\n  tp: x\nwibble: 1\n",
        "wrong-type",
        "d.yaml:4",
        (
            'prefill.mixed_chunk is 1; it takes true or false\nalso at d.yaml:6: parallel.tp is "x"; it takes an '
            'integer (write tp: 8)\nalso at d.yaml:7: unknown key "wibble" (one of engine, engine_version, gpu, '
            "model, model_path, parallel, prefill, decode, disaggregation, speculative, multimodal, moe, flags, "
            "kv_token_capacity, autotune, env, traffic, launch; any other flag of the server goes under flags:)"
        ),
        "write mixed_chunk: true",
    ),
    Case(
        "more than are listed",
        (
            "gpu: H200\nmodel: qwen3-30b-a3b\nparallel: {tp: a, dp: a, ep: a, pp: a, moe_dense_tp: a, dp_attention: "
            "0, dp_lm_head: 0}\n"
        ),
        "wrong-type",
        "d.yaml:3",
        (
            'parallel.tp is "a"; it takes an integer\nalso at d.yaml:3: parallel.dp is "a"; it takes an integer '
            "(write dp: 8)\nalso at d.yaml:3: parallel.dp_attention is 0; it takes true or false (write "
            'dp_attention: false)\nalso at d.yaml:3: parallel.ep is "a"; it takes an integer (write ep: 8)\nalso at '
            'd.yaml:3: parallel.pp is "a"; it takes an integer (write pp: 8)\nalso at d.yaml:3: '
            'parallel.moe_dense_tp is "a"; it takes an integer (write moe_dense_tp: 8)\nand 1 more'
        ),
        "write tp: 8",
    ),
    Case(
        "empty key",
        'gpu: H200\nmodel: qwen3-30b-a3b\n"": 1\n',
        "unknown-key",
        "d.yaml:3",
        'unknown key ""',
        (
            "one of engine, engine_version, gpu, model, model_path, parallel, prefill, decode, disaggregation, "
            "speculative, multimodal, moe, flags, kv_token_capacity, autotune, env, traffic, launch; any other flag "
            "of the server goes under flags:"
        ),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_wrong_file(case):
    source = parse_yaml(case.text, "d.yaml")
    with pytest.raises(DeploymentError) as caught:
        deployment_from(source.content, marks=source.marks, folder="/deployments")
    found = caught.value
    assert (found.code, found.where, found.message, found.hint) == (case.code, case.where, case.message, case.hint)
    assert found.exit_code == ExitCode.INVALID_DEPLOYMENT == 3


def test_error_of_a_config_names_the_config(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": [,]}')
    path = tmp_path / "d.yaml"
    path.write_text(f"gpu: H200\nmodel: {tmp_path}\n")
    with pytest.raises(DeploymentError) as caught:
        load_deployment(path)
    assert caught.value.where == f"{tmp_path}/config.json:1:20"


def test_error_of_a_damaged_draft_model_names_its_config(tmp_path):
    (tmp_path / "draft").mkdir()
    speculative = {"algorithm": "EAGLE", "draft_model_path": "draft"}
    with pytest.raises(DeploymentError) as caught:
        deployment_from({"gpu": "H200", "model": "llama-3.1-8b", "speculative": speculative}, folder=tmp_path)
    assert caught.value.where == f"{tmp_path}/draft/config.json"


def test_errors_without_a_file_have_no_place():
    with pytest.raises(DeploymentError) as caught:
        deployment_from({"gpu": "H200", "modle": "x"})
    assert caught.value.where is None
    assert caught.value.message.splitlines()[0] == 'unknown key "modle": did you mean model?'
