"""One way to read JSON and one to write it: damage is a ``ValueError``, and any reader takes what is written."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.json_text import DEEPEST, json_line, json_text, parse_json


def refuse(token: str) -> Any:
    raise AssertionError(f"{token} is no JSON of RFC 8259")


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=12,
)


def finite(value: Any) -> Any:
    """What is to be read back: the names of JavaScript for numbers that are not finite."""
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return {math.inf: "Infinity", -math.inf: "-Infinity"}[value] if value in (math.inf, -math.inf) else value


@given(values)
def test_what_is_written_is_strict_and_read_back(value: Any) -> None:
    for text in (json_text(value), json_line(value)):
        assert json.loads(text, parse_constant=refuse) == finite(value)
    assert "\n" not in json_line(value)


@given(values)
def test_what_python_writes_is_read(value: Any) -> None:
    assert repr(parse_json(json.dumps(value))) == repr(value)
    assert repr(parse_json(json.dumps(value, indent=2).encode())) == repr(value)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 100_000,
        "[" * 500 + "]" * 500,
        '{"a":[' * 60 + "1" + "]}" * 60,
    ],
    ids=["cut off", "too deep for Python", "objects", "deep for the encoder", "mixed"],
)
def test_deep_nesting_is_damage(text: str) -> None:
    for data in (text, text.encode()):
        with pytest.raises(ValueError, match=r"nested too deeply|Expecting"):
            parse_json(data)


def test_the_deepest_nesting_is_read_and_written() -> None:
    text = "[" * DEEPEST + "]" * DEEPEST
    assert json_line(parse_json(text)) == text
    assert parse_json(json_text(parse_json(text))) == json.loads(text)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(f"[{text}]")


def test_many_brackets_side_by_side_are_not_deep() -> None:
    value = {str(i): [[i], {"a": []}] for i in range(1000)}
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff", "can't decode byte 0xff"),
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        (b"\xef\xbb\xbf{}", "BOM"),
        ("1" * 5000, "4300 digits"),
    ],
)
def test_damage_is_a_value_error(data: str | bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_json(data)
