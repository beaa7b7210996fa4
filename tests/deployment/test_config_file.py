"""``--config FILE`` as the server's ``ConfigArgumentMerger`` reads it: into words before those of the line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.deployment.config_file import with_config_file
from autotune_planner.deployment.flag_table import flag_table
from autotune_planner.deployment.launch_line import parse_launch_line
from autotune_planner.deployment.load import deployment_from
from autotune_planner.engines import resolve
from autotune_planner.errors import DeploymentError, ExitCode

TABLE = flag_table("sglang", "0.5.23")


def written(folder, text, name="server.yaml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def values(folder, text, *line):
    return dict(parse_launch_line(["--config", written(folder, text), *line], TABLE).values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tp-size: 4", {"tp_size": 4}),
        ("tp: 4", {"tp_size": 4}),
        ("model: /models/M", {"model_path": "/models/M"}),
        ("cuda-graph-bs-decode: [1, 2, 4]", {"cuda_graph_bs_decode": [1, 2, 4]}),
        ("cuda-graph-bs-decode: []", {}),
        ("cuda-graph-config: {prefill: {max_bs: 512}}", {"cuda_graph_config": {"prefill": {"max_bs": 512}}}),
        ("disable-radix-cache: true", {"disable_radix_cache": True}),
        ("disable-radix-cache: no", {}),  # YAML 1.1
        ("fp4-gemm-backend: marlin", {"fp4_gemm_runner_backend": "marlin"}),
        ("", {}),
    ],
)
def test_values_become_flags(tmp_path, text, expected):
    assert values(tmp_path, text) == expected


def test_the_line_wins_wherever_the_file_stands(tmp_path):
    path = written(tmp_path, "tp-size: 4\nep-size: 2\n")
    for line in (["--tp-size", "8", "--config", path], ["--config", path, "--tp-size", "8"]):
        assert dict(parse_launch_line(line, TABLE).values) == {"tp_size": 8, "ep_size": 2}


@given(numbers=st.dictionaries(st.sampled_from(["tp-size", "pp-size", "chunked-prefill-size"]), st.integers(-9, 99999)))
def test_numbers_come_back(tmp_path_factory, numbers):
    folder = tmp_path_factory.mktemp("config")
    expected = {name.replace("-", "_"): value for name, value in numbers.items()}
    assert values(folder, json.dumps(numbers)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- tp-size", "not a mapping"),
        ("tp-size: [", "not valid YAML"),
        ("1: 2", "does not take 1"),
        ("enable-dp-attention: true", 'does not take "enable-dp-attention"'),  # DeprecatedStoreTrueAction
        ("lora-paths: [a]", 'does not take "lora-paths"'),  # LoRAPathAction
        ("mm-enable-dp-encoder: true", 'does not take "mm-enable-dp-encoder"'),  # BooleanOptionalAction
        ("tp-size: &a 4\nep-size: *a", "has aliases"),
        ("tp_size: 4", "no flag --tp_size"),  # the words keep the key's spelling
    ],
)
def test_what_the_server_refuses(tmp_path, text, message):
    with pytest.raises(DeploymentError) as caught:
        values(tmp_path, text)
    assert caught.value.exit_code is ExitCode.INVALID_DEPLOYMENT
    assert message in caught.value.message
    assert caught.value.where.startswith("--")
    assert caught.value.hint


@pytest.mark.parametrize("words", [["--config"], ["--config", "a.yaml", "--config", "b.yaml"], ["--config", "a.json"]])
def test_one_yaml_file(words):
    with pytest.raises(DeploymentError) as caught:
        with_config_file(words, TABLE)
    assert caught.value.where == "--config"


def test_a_file_that_is_not_here(tmp_path):
    with pytest.raises(DeploymentError, match="does not exist") as caught:
        with_config_file(["--config", str(tmp_path / "none.yaml")], TABLE)
    assert "give the flags of that file on the line itself" in caught.value.hint


def test_an_equals_sign_hides_the_file_from_the_server():
    assert with_config_file(["--config=none.yaml", "--tp", "8"], TABLE) == ["--config=none.yaml", "--tp", "8"]


def test_a_deployment_file_holds_its_flags_itself():
    content = {"gpu": "H200", "model": "qwen3-30b-a3b", "flags": {"config": "server.yaml"}}
    with pytest.raises(DeploymentError, match="in another file") as caught:
        resolve(deployment_from(content))
    assert "--config FILE" in caught.value.hint


def test_a_launch_line_of_a_deployment_file_reads_it(tmp_path):
    path = written(tmp_path, "tp-size: 4\nep-size: 2\n")
    content = {"gpu": "H200", "model": "qwen3-30b-a3b", "launch": f"sglang serve M --config {path} --tp-size 8"}
    arguments = resolve(deployment_from(content)).arguments
    assert (arguments.tp_size, arguments.ep_size) == (8, 2)
