"""The JSON Schema of the deployment file: valid draft 7, and of one mind with the reader."""

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft7Validator

from autotune_planner.deployment.json_schema import deployment_schema
from autotune_planner.deployment.load import deployment_from
from autotune_planner.errors import DeploymentError

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
SCHEMA = deployment_schema()
MODELINE = "# yaml-language-server: $schema=deployment.schema.json"
SINCE_DRAFT_7 = ("$defs", "prefixItems", "dependentRequired", "unevaluatedProperties", "discriminator", "nullable")


def accepted(content):
    return Draft7Validator(SCHEMA).is_valid(content)


def nodes(node):
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from nodes(value)
    if isinstance(node, list):
        for item in node:
            yield from nodes(item)


def test_draft_7():
    Draft7Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    for node in nodes(SCHEMA):
        assert not set(SINCE_DRAFT_7) & set(node)
        assert set(node) == {"$ref"} or "$ref" not in node  # draft 7 ignores what stands beside it


def test_every_field_is_described_with_a_right_example():
    fields = [(SCHEMA["properties"], field) for field in SCHEMA["properties"]]
    fields += [(form["properties"], field) for form in SCHEMA["definitions"].values() for field in form["properties"]]
    for properties, field in fields:
        assert properties[field]["description"]
        for example in properties[field].get("examples", ()):
            partial = {**properties[field], "definitions": SCHEMA["definitions"]}
            assert Draft7Validator(partial).is_valid(example), (field, example)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples(path):
    text = path.read_text()
    assert text.splitlines()[0] == MODELINE
    assert [error.message for error in Draft7Validator(SCHEMA).iter_errors(yaml.safe_load(text))] == []


def test_the_schema_beside_the_examples_is_the_command_s(cli):
    printed = cli("schema").out
    assert (ROOT / "examples" / "deployment.schema.json").read_text() == printed
    assert json.loads(printed) == SCHEMA
    assert cli("schema", "--json").out == printed


SMALLEST = {"gpu": "H200", "model": "qwen3-30b-a3b"}


@pytest.mark.parametrize(
    ("content", "right"),
    [
        (SMALLEST, True),
        ({**SMALLEST, "parallel": {"tp": 8, "dp_attention": True}}, True),
        ({**SMALLEST, "parallel": None, "engine": None}, True),
        ({**SMALLEST, "gpu": {"name": "NVIDIA X", "compute_capability": 9.0, "memory_mib": 1000}}, True),
        ({**SMALLEST, "env": {"A": 1, "B": True, "C": "x"}}, True),
        ({**SMALLEST, "launch": ["--model-path", "Qwen/Qwen3-30B-A3B"]}, True),
        ({**SMALLEST, "launch": "sglang serve Qwen/Qwen3-30B-A3B"}, True),
        ({**SMALLEST, "flags": {"page_size": 64}}, True),
        ({"model": "qwen3-30b-a3b"}, False),
        ({**SMALLEST, "modle": "x"}, False),
        ({**SMALLEST, "gpu": None}, False),
        ({**SMALLEST, "parallel": {"tp": 0}}, False),
        ({**SMALLEST, "parallel": {"tp": "8"}}, False),
        ({**SMALLEST, "disaggregation": "both"}, False),
        ({**SMALLEST, "env": {"A-B": "1"}}, False),
        ({**SMALLEST, "env": {"A": 1.5}}, False),
        ({**SMALLEST, "flags": {"--page-size": 64}}, False),
        ({**SMALLEST, "launch": 5}, False),
        ({**SMALLEST, "traffic": {"extend_lens": []}}, False),
    ],
)
def test_the_reader_and_the_schema_agree(content, right):
    assert accepted(content) is right
    if right:
        deployment_from(content)
    else:
        with pytest.raises(DeploymentError):
            deployment_from(content)
