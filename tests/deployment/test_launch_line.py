"""The launch-line parser, against a small flag table and the rules of Python's ``argparse``."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.deployment.gpus import load_gpu
from autotune_planner.deployment.launch_line import deployment_of_launch_line, parse_launch_line
from autotune_planner.errors import DeploymentError, ExitCode

TABLE = {
    "model_path": {"type": "str", "aliases": ["--model"]},
    "tp_size": {"type": "int", "aliases": ["--tensor-parallel-size", "--tp"]},
    "chunked_prefill_size": {"type": "int"},
    "max_total_tokens": {"type": "size"},
    "mem_fraction_static": {"type": "float"},
    "cuda_graph_bs_decode": {"type": "ints"},
    "cuda_graph_max_bs_decode": {"type": "int"},
    "cuda_graph_max_bs_prefill": {"type": "int"},
    "cuda_graph_config": {"type": "json"},
    "enable_dp_attention": {"type": "bool"},
    "fuse": {"type": "switch"},
    "moe_runner_backend": {"type": "str", "choices": ["auto", "triton", "flashinfer_cutlass"]},
    "fp4_gemm_runner_backend": {"type": "str", "cli_name": "--fp4-gemm-backend"},
    "lora_paths": {"type": "strs", "nargs": "*"},
}


def values(line):
    return dict(parse_launch_line(line, TABLE).values)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--tp-size 8", {"tp_size": 8}),
        ("--tp-size=8", {"tp_size": 8}),
        ("--tp 8", {"tp_size": 8}),
        ("--tensor-parallel-size 2 --tp-size 4", {"tp_size": 4}),
        ("--chunked-prefill-size -1", {"chunked_prefill_size": -1}),
        ("--chunked 512", {"chunked_prefill_size": 512}),
        ("--max-total-tokens 4k", {"max_total_tokens": 4000}),
        ("--max-total-tokens 2Ki", {"max_total_tokens": 2048}),
        ("--max-total-tokens 1.5M", {"max_total_tokens": 1_500_000}),
        ("--mem-fraction-static .8", {"mem_fraction_static": 0.8}),
        ("--cuda-graph-bs-decode 1 2 4 --tp 2", {"cuda_graph_bs_decode": [1, 2, 4], "tp_size": 2}),
        ('--cuda-graph-config \'{"decode": {"max_bs": 50}}\'', {"cuda_graph_config": {"decode": {"max_bs": 50}}}),
        ("--enable-dp-attention", {"enable_dp_attention": True}),
        ("--fuse", {"fuse": True}),
        ("--fuse --no-fuse", {"fuse": False}),
        ("--moe-runner-backend triton", {"moe_runner_backend": "triton"}),
        ("--fp4-gemm-backend marlin", {"fp4_gemm_runner_backend": "marlin"}),
        ("--lora-paths", {"lora_paths": []}),
        ("--lora-paths a b", {"lora_paths": ["a", "b"]}),
        ("--model='a b'", {"model_path": "a b"}),
    ],
)
def test_values(line, expected):
    assert values(line) == expected


@pytest.mark.parametrize(
    "command",
    [
        "python -m sglang.launch_server",
        "/opt/venv/bin/python3.12 -m sglang.launch_server",
        "sglang serve",
        "A=1 B='x y' sglang serve",
        "env A=1 python3 -m sglang.launch_server \\\n ",
        "",
    ],
)
def test_the_command_before_the_flags(command):
    parsed = parse_launch_line(f"{command} --tp 2", TABLE)
    assert parsed.values == {"tp_size": 2}
    assert parsed.flags == ("--tp", "2")


def test_environment_assignments():
    parsed = parse_launch_line("A=1 B='x y' C= sglang serve --tp 2", TABLE)
    assert parsed.env == {"A": "1", "B": "x y", "C": ""}


def test_the_model_may_follow_serve():
    assert values("sglang serve /models/A --tp 2") == {"model_path": "/models/A", "tp_size": 2}


def test_a_list_of_words_is_taken_as_it_is():
    assert values(["--model-path", "/models/with space"]) == {"model_path": "/models/with space"}


@pytest.mark.parametrize(
    ("line", "code", "where", "hint"),
    [
        ("--tp-size big", "flag-type", "--tp-size", "--tp-size 8"),
        ("--tp-size 1.5", "flag-type", "--tp-size", "--tp-size 8"),
        ("--tp-size", "flag-type", "--tp-size", "--tp-size 8"),
        ("--tp-size --enable-dp-attention", "flag-type", "--tp-size", "--tp-size 8"),
        ("--max-total-tokens 1.5Ki", "flag-type", "--max-total-tokens", "--max-total-tokens 8192"),
        ("--cuda-graph-bs-decode", "flag-type", "--cuda-graph-bs-decode", "--cuda-graph-bs-decode 1 2 4"),
        ("--cuda-graph-config {", "flag-type", "--cuda-graph-config", "JSON"),
        ("--enable-dp-attention=1", "flag-type", "--enable-dp-attention", "alone"),
        ("--cuda-graph-max-bs 64", "ambiguous-flag", "--cuda-graph-max-bs", "--cuda-graph-max-bs-decode"),
        ("--moe-runner-backend nope", "flag-choice", "--moe-runner-backend", "nearest first"),
        ("--tp_size 8", "unknown-flag", "--tp_size", "--tp-size"),
        ("--chunked-prefil-sizes 8", "unknown-flag", "--chunked-prefil-sizes", "--chunked-prefill-size"),
        ("--tp 8 stray", "unknown-flag", "stray", "every word"),
        ("vllm serve --tp 8", "launch-line", "launch", "sglang"),
        ("--model 'open", "launch-line", "launch", "quote"),
    ],
)
def test_refused(line, code, where, hint):
    with pytest.raises(DeploymentError) as caught:
        values(line)
    error = caught.value
    assert (error.code, error.where) == (code, where)
    assert error.exit_code is ExitCode.INVALID_DEPLOYMENT
    assert hint in error.hint or hint in error.message


FLAG_WORDS = ("--tp-size", "--tp", "--tp=4", "--cuda-graph-bs-decode", "--cuda-graph-max-bs", "--chunked", "--mem")
SWITCH_WORDS = ("--enable-dp-attention", "--fuse", "--no-fuse", "--lora-paths", "--moe-runner-backend", "--x=1")
VALUE_WORDS = ("triton", "-1", "-.5", "8", "1.5", "4k", "a", "a b", "-x", "-")
WORDS = st.sampled_from((*FLAG_WORDS, *SWITCH_WORDS, *VALUE_WORDS))


def reference():
    """The same table as an ``argparse`` parser."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    types = {"int": int, "float": float, "str": str, "ints": int, "strs": str, "json": str, "size": str}
    for name, flag in TABLE.items():
        options = [flag.get("cli_name") or "--" + name.replace("_", "-"), *flag.get("aliases", [])]
        if flag["type"] == "bool":
            parser.add_argument(*options, dest=name, action="store_true", default=argparse.SUPPRESS)
        elif flag["type"] == "switch":
            parser.add_argument(*options, dest=name, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS)
        else:
            nargs = flag.get("nargs") or ("+" if flag["type"] == "ints" else None)
            parser.add_argument(
                *options,
                dest=name,
                type=types[flag["type"]],
                nargs=nargs,
                choices=flag.get("choices"),
                default=argparse.SUPPRESS,
            )
    return parser


class RefusedError(Exception):
    pass


def refuse(message):
    raise RefusedError(message)


@given(st.lists(WORDS, max_size=6))
def test_like_argparse(words):
    parser = reference()
    parser.error = refuse
    try:
        expected = vars(parser.parse_args(words))
    except (RefusedError, argparse.ArgumentError):
        expected = None
    try:
        ours = values(words)
    except DeploymentError:
        ours = None
    assert ours == expected


def test_deployment(tmp_path):
    folder = tmp_path / "Tiny"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    deployment = deployment_of_launch_line(
        "A=1 sglang serve --model-path /models/Tiny/ --tp 2",
        gpu=load_gpu("H200"),
        model_dir=str(tmp_path),
    )
    assert deployment.model_path == "/models/Tiny/"
    assert deployment.model.name == "Tiny"
    assert deployment.flags == {"tp_size": 2}
    assert deployment.launch == ("--model-path", "/models/Tiny/", "--tp", "2")
    assert deployment.env == {"A": "1"}


@pytest.mark.parametrize("line", ["--tp 2", "--model-path /nowhere/Tiny"])
def test_a_model_is_needed(line):
    with pytest.raises(DeploymentError) as caught:
        deployment_of_launch_line(line, gpu=load_gpu("H200"))
    assert caught.value.where == "--model-path"


@pytest.mark.parametrize(
    "line",
    [
        "A=1 python -m sglang.launch_server --tp 2",
        "/usr/bin/python3.12 -u -m sglang.launch_server --tp 2",
        "env A=1 numactl --membind=0 python3 -m sglang.launch_server --tp 2",
        "nohup env A=1 /opt/bin/sglang serve --tp 2",
        "A=1 --tp 2",
        "--tp 2",
    ],
)
def test_whatever_starts_the_command(line):
    parsed = parse_launch_line(line, TABLE)
    assert parsed.values == {"tp_size": 2}
    assert parsed.env == ({"A": "1"} if "A=1" in line else {})


def test_another_module_is_no_command():
    with pytest.raises(DeploymentError):
        parse_launch_line("python -m sglang_router.launch_server --tp 2", TABLE)
