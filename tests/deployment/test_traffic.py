"""Histogram files of traffic: what is read, and what is said of a row that is wrong."""

import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.deployment.load import load_deployment
from autotune_planner.deployment.model import Traffic
from autotune_planner.deployment.traffic import PromptRow, read_histogram
from autotune_planner.errors import DeploymentError, ExitCode

ROWS = (PromptRow(8192, 4096, 3), PromptRow(1, 0, 1))


def read(tmp_path, text, name="lens.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_histogram(path)


@pytest.mark.parametrize(
    "text",
    [
        "prompt_len,cached_len,count\n8192,4096,3\n1,0,1\n",
        "count,prompt_len,cached_len\n3,8192,4096\n1,1,0\n",
        "\ufeffprompt_len, cached_len, count\r\n 8192, 4096,3\r\n\r\n1,0,1",
        'prompt_len,cached_len,count\n"8192","4096","3"\n1,0,1\n7,0,0\n',
        '{"prompt_len": 8192, "cached_len": 4096, "count": 3}\n\n{"prompt_len": 1}\n',
        '\n{"prompt_len": 8192, "count": 3, "cached_len": 4096}\r\n{"prompt_len": 1, "count": 1}',
    ],
)
def test_forms(tmp_path, text):
    assert read(tmp_path, text) == ROWS


def test_cached_len_and_count_have_defaults(tmp_path):
    assert read(tmp_path, "prompt_len\n5\n") == (PromptRow(5, 0, 1),)


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("prompt_len,cached_len\n8192,0\n12x,0\n", 3, 'prompt_len is "12x"; it takes a whole number', "write 8192"),
        ("prompt_len,cached_len\n8192,\n", 2, 'cached_len is ""; it takes a whole number', "write 0"),
        ("prompt_len,cached_len\n8192,-1\n", 2, 'cached_len is "-1"; it takes a whole number', "write 0"),
        ("prompt_len,cached_len,count\n8,0,1.5\n", 2, 'count is "1.5"; it takes a whole number', "write 1"),
        ("prompt_len,cached_len\n0,0\n", 2, "prompt_len is 0; it takes 1 to 2147483647 tokens", "write 8192"),
        (
            "prompt_len,cached_len\n8,9\n",
            2,
            "cached_len is 9; it takes 0 to the prompt_len of 8",
            "write the tokens of the prompt that were found in the cache, such as 0",
        ),
        ("prompt_len,cached_len\n8,0,1\n", 2, "the row has 3 fields, the header 2", "write prompt_len,cached_len"),
        ("1,2\n3,4\n", 1, 'unknown column "1"', "the columns are prompt_len, cached_len, count"),
        ("prompt_len,cached_length\n8,0\n", 1, 'unknown column "cached_length"', "write cached_len"),
        ("cached_len\n0\n", 1, "the header has no column prompt_len", "write prompt_len,cached_len,count"),
        (
            "prompt_len,prompt_len\n1,1\n",
            1,
            "column prompt_len stands twice in the header",
            "leave prompt_len, cached_len, count",
        ),
        (
            'prompt_len\n"8\n',
            2,
            "not a row of CSV: unexpected end of data",
            "write plain numbers, separated by commas",
        ),
        (b"prompt_len\n\xff8\n", 2, 'prompt_len is "\ufffd8"; it takes a whole number', "write 8192"),
        ('{"prompt_len": 8.0}\n', 1, "prompt_len is 8.0; it takes a whole number", "write 8192"),
        ('{"prompt_len": true}\n', 1, "prompt_len is true; it takes a whole number", "write 8192"),
        ('{"prompt_len": 8}\n{"prompt_len": "8"}\n', 2, 'prompt_len is "8"; it takes a whole number', "write 8192"),
        ('{"prompt_len": 8, "count": -1}\n', 1, "count is -1; it takes 0 or more requests", "write 1"),
        ('{"prompt": 8}\n', 1, 'unknown column "prompt"', "write prompt_len"),
        ('{"cached_len": 8}\n', 1, "prompt_len is missing", 'write {"prompt_len": 8192}'),
        ('{"prompt_len": 8}\n[8]\n', 2, "the line is a list, not an object", 'write {"prompt_len": 8192}'),
        (
            '{"prompt_len": 8}\n{"prompt_len": \n',
            2,
            "not a line of JSON: Expecting value",
            'write {"prompt_len": 8192}',
        ),
    ],
)
def test_a_wrong_row(tmp_path, text, line, message, hint):
    with pytest.raises(DeploymentError) as raised:
        read(tmp_path, text)
    error = raised.value
    assert (error.where, error.message, error.hint) == (f"{tmp_path / 'lens.csv'}:{line}", message, hint)
    assert error.exit_code == ExitCode.INVALID_DEPLOYMENT


@pytest.mark.parametrize("text", ["", "\n\n", "prompt_len,cached_len\n", "prompt_len,count\n8,0\n"])
def test_a_sample_without_requests(tmp_path, text):
    with pytest.raises(DeploymentError, match=r"no requests|no column prompt_len"):
        read(tmp_path, text)


def test_a_sample_that_is_too_large(tmp_path):
    with pytest.raises(DeploymentError) as raised:
        read(tmp_path, "prompt_len,count\n8,25000000\n")
    assert raised.value.message == "traffic.histogram has 25000000 requests; it takes 10000000 or less"
    assert raised.value.hint == "divide every count by 3"


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(DeploymentError, match="cannot be read"):
        read_histogram(tmp_path)


def test_a_file_is_read_with_the_deployment_beside_it(tmp_path):
    (tmp_path / "lens.jsonl").write_text('{"prompt_len": 9}\n')
    path = tmp_path / "d.yaml"
    path.write_text("gpu: MI300X\nmodel: llama-3.1-8b\ntraffic: {histogram: lens.jsonl}\n")
    traffic = load_deployment(path).traffic
    assert traffic == Traffic(histogram=str(tmp_path / "lens.jsonl"), rows=(PromptRow(9),))


def test_a_hundred_thousand_rows_are_read_in_seconds(tmp_path):
    text = "prompt_len,cached_len\n" + "4096,1024\n" * 100_000
    start = time.perf_counter()
    assert len(read(tmp_path, text)) == 100_000
    assert time.perf_counter() - start < 5


SIZES = st.integers(1, 2**31 - 1)


@given(rows=st.lists(st.tuples(SIZES, st.floats(0, 1), st.integers(1, 1000)), min_size=1, max_size=20))
def test_both_forms_say_the_same(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("traffic")
    expected = tuple(PromptRow(prompt, int(prompt * part), count) for prompt, part, count in rows)
    csv = "prompt_len,cached_len,count\n" + "".join(f"{row[0]},{row[1]},{row[2]}\n" for row in expected)
    lines = "".join(
        json.dumps({"prompt_len": row[0], "cached_len": row[1], "count": row[2]}) + "\n" for row in expected
    )
    assert read(folder, csv) == read(folder, lines, "lens.jsonl") == expected


@given(text=st.text(max_size=60) | st.builds("prompt_len,cached_len\n{}".format, st.text(max_size=40)))
def test_any_text_is_read_or_is_an_error_of_the_deployment(tmp_path_factory, text):
    rows = ()
    with contextlib.suppress(DeploymentError):
        rows = read(tmp_path_factory.mktemp("traffic"), text.encode("utf-8", "surrogatepass"))
    assert all(0 <= row.cached_len <= row.prompt_len and row.requests > 0 for row in rows)
