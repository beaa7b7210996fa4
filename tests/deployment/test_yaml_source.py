"""YAML text as plain values with the line of each."""

import pytest

from autotune_planner.deployment.yaml_source import parse_yaml, read_yaml
from autotune_planner.errors import DeploymentError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("-1", -1),
        ("0", 0),
        ("'8'", "8"),
        ("010", "010"),
        ("+8", "+8"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("1:30", "1:30"),
        ("0.5", 0.5),
        ("1e3", 1000.0),
        ("0.5.23", "0.5.23"),
        (".inf", ".inf"),
        ("true", True),
        ("False", False),
        ("tRue", "tRue"),
        ("yes", "yes"),
        ("off", "off"),
        ("null", None),
        ("~", None),
        ("", None),
        ("''", ""),
        ("2026-01-01", "2026-01-01"),
        ("[1, a, [true]]", [1, "a", [True]]),
        ("{b: {c: 1}}", {"b": {"c": 1}}),
        ("|\n  two\n  lines\n", "two\nlines\n"),
        ("<<", "<<"),
    ],
)
def test_values(text, value):
    found = parse_yaml(f"a: {text}", "d.yaml").content["a"]
    assert found == value
    assert type(found) is type(value)


def test_lines():
    text = "# comment\ngpu: H200\n\nprefill:\n  chunked_prefill_size: 8192\ntraffic: {extend_lens: [1,\n  2]}\n"
    assert parse_yaml(text, "d.yaml").marks == {
        (): "d.yaml:2",
        ("gpu",): "d.yaml:2",
        ("prefill",): "d.yaml:4",
        ("prefill", "chunked_prefill_size"): "d.yaml:5",
        ("traffic",): "d.yaml:6",
        ("traffic", "extend_lens"): "d.yaml:6",
        ("traffic", "extend_lens", "0"): "d.yaml:6",
        ("traffic", "extend_lens", "1"): "d.yaml:7",
    }


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "the deployment file is empty"),
        ("# only a comment\n", 1, "the deployment file is empty"),
        ("- a\n- b\n", 1, "the deployment file is a list, not key: value lines"),
        ("\nhello\n", 2, "the deployment file is a single value, not key: value lines"),
        ("a: 1\nb: 2\na: 3\n", 3, 'duplicate key "a", first at d.yaml:1'),
        ("a: {b: 1,\n  b: 2}\n", 2, 'duplicate key "b", first at d.yaml:1'),
        ("a: 1\n\tb: 2\n", 2, "a tab in the indentation"),
        ("a:\n\tb: 2\n", 2, "a tab in the indentation"),
        ("a: [1,\n", 1, None),
        ("a: 'x\n", 1, None),
        ("a: b: c\n", 1, None),
        ("a: 1\n b: 2\n", 2, None),
        ("a: &x 1\n", 1, "this value has an anchor (&x)"),
        ("b: 1\na: *x\n", 2, "this value refers to an anchor (*)"),
        ("a: !!python/name:os.system x\n", 1, "this value has a tag (tag:yaml.org,2002:python/name:os.system)"),
        ("a: !!str 8\n", 1, "this value has a tag (tag:yaml.org,2002:str)"),
        ("a: 1\n---\nb: 2\n", 2, "a second document starts here (---)"),
        ("? [a]\n: 1\n", 1, "a key is a list or a mapping"),
        ("a: 1\nb: \x07\n", 2, "the file has a character that YAML does not allow: U+0007"),
        ("a: " + "[" * 33 + "]" * 33, 1, "this value is nested more than 32 levels deep"),
    ],
)
def test_refused(text, line, message):
    with pytest.raises(DeploymentError) as caught:
        parse_yaml(text, "d.yaml")
    assert caught.value.where == f"d.yaml:{line}"
    assert caught.value.hint
    if message is None:
        assert (caught.value.code, caught.value.message[:16]) == ("yaml-syntax", "not valid YAML: ")
    else:
        assert caught.value.message == message


def test_bottomless_nesting_is_refused_and_does_not_overflow():
    with pytest.raises(DeploymentError) as caught:
        parse_yaml("a: " + "[" * 100_000, "d.yaml")
    assert caught.value.where == "d.yaml:1"


def test_byte_order_mark_and_windows_line_ends(tmp_path):
    path = tmp_path / "d.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert read_yaml(path).content == {"a": 1, "b": 2}
    assert read_yaml(path).marks[("b",)] == f"{path}:2"


def test_files_that_cannot_be_read(tmp_path):
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("a: 1\nb: é\n".encode("latin-1"))
    for path, where, code, message in [
        (tmp_path, tmp_path, "unreadable-file", "the deployment file is a directory"),
        (tmp_path / "none.yaml", tmp_path / "none.yaml", "file-not-found", "the deployment file does not exist"),
        (latin, f"{latin}:2", "not-utf-8", "the deployment file is not UTF-8: byte 0xe9"),
        ("a\0b", "a\0b", "unreadable-file", "the deployment file cannot be read: embedded null byte"),
    ]:
        with pytest.raises(DeploymentError) as caught:
            read_yaml(path)
        assert (caught.value.where, caught.value.code, caught.value.message) == (str(where), code, message)
        assert caught.value.hint
