"""Whatever is written, a deployment loads or a ``DeploymentError`` says why: never another exception."""

import json
from pathlib import Path

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune_planner.deployment.field_flags import FIELD_OF_FLAG
from autotune_planner.deployment.fields import known_keys
from autotune_planner.deployment.load import deployment_from
from autotune_planner.deployment.yaml_source import parse_yaml
from autotune_planner.errors import DeploymentError

EXAMPLES = [path.read_text() for path in sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))]
KEYS = sorted({*known_keys(()), *FIELD_OF_FLAG, "extend", "histogram", "name", "architectures"})

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["H200", "qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", "/models/x", "prefill", "EAGLE", "0.5.23", "8"])
)
keys = st.sampled_from([*KEYS, "<name>", "<mapping>", "<list>", "[key]"]) | st.text(max_size=8)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=8
)
deployments = st.dictionaries(keys, values, max_size=5).map(
    lambda content: {"gpu": "H200", "model": "qwen3-30b-a3b", **content}
)


def problem_of(content, **arguments) -> DeploymentError | None:
    """None if it loads."""
    try:
        deployment_from(content, **arguments)
    except DeploymentError as error:
        return error
    return None


def loads_or_explains(text: str) -> None:
    try:
        source = parse_yaml(text, "d.yaml")
    except DeploymentError as caught:
        error: DeploymentError | None = caught
    else:
        error = problem_of(source.content, marks=source.marks, folder="/nonexistent")
    if error is None:
        return
    assert error.code
    assert error.message
    assert error.hint
    file, _, rest = (error.where or "").partition(":")
    line = rest.partition(": launch (")[0]
    assert file == "d.yaml" or file.endswith("config.json")
    assert file != "d.yaml" or 1 <= int(line) <= len(text.splitlines()) + 1


@given(st.text())
def test_any_text(text):
    loads_or_explains(text)


@given(st.text(alphabet="ab:-[]{}&*!|>'\"#?%@,\n\t \\~0", max_size=40))
def test_any_text_of_yaml_signs(text):
    loads_or_explains(text)


@given(st.sampled_from(EXAMPLES), st.data())
def test_an_example_with_one_piece_replaced(text, data):
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 12)))
    loads_or_explains(text[:start] + data.draw(st.text(max_size=6)) + text[end:])


@given(deployments)
def test_any_mapping_as_yaml(content):
    loads_or_explains(yaml.safe_dump(content, allow_unicode=True))


@settings(max_examples=200)
@given(st.dictionaries(keys | st.integers(), values, max_size=6))
def test_any_mapping(content):
    error = problem_of(content)
    assert error is None or error.hint


printable = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), max_size=12)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | printable,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(printable, inner, max_size=3),
    max_leaves=10,
)


@given(json_values)
def test_json_is_read_as_json(value):
    text = json.dumps({"a": value}, ensure_ascii=False)
    assert parse_yaml(text, "d.yaml").content == {"a": value}
