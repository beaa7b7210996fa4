"""A histogram file of production prompts: CSV with a header, or one JSON object a line.

Columns are ``prompt_len`` (tokens), ``cached_len`` (tokens of it in the prefix cache, default 0) and ``count``
(requests of this shape, default 1).
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from autotune_planner.deployment.fields import shown
from autotune_planner.deployment.suggestions import nearest
from autotune_planner.errors import DeploymentError
from autotune_planner.json_text import parse_json

COLUMNS = ("prompt_len", "cached_len", "count")
LARGEST_LEN = 2**31 - 1  # servers count tokens in 32-bit integers
LARGEST_SAMPLE = 10_000_000  # requests

_NUMBER = re.compile(r"\s*[0-9]{1,10}\s*", re.ASCII)
_DEFAULTS = {"cached_len": 0, "count": 1}
_EXAMPLES = {"prompt_len": 8192, "cached_len": 0, "count": 1}
_HINT = 'a CSV file with the header prompt_len,cached_len,count, or lines such as {"prompt_len": 8192}'


class PromptRow(NamedTuple):
    """Equal requests of ``prompt_len`` tokens, of which ``cached_len`` are in the prefix cache."""

    prompt_len: int
    cached_len: int = 0
    requests: int = 1


def read_histogram(path: str | Path) -> tuple[PromptRow, ...]:
    """Rows of a histogram file, in its order; rows with a count of 0 are left out.

    ``DeploymentError`` with ``file:line`` for the first row that is wrong: its column, and what to write instead.
    """
    where = os.fspath(path)
    try:
        # A byte that is not UTF-8 becomes a character that no number and no column has.
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as stream:
            first = next((line for line in iter(stream.readline, "") if line.strip()), "")
            stream.seek(0)
            found = _json_rows(stream, where) if first.lstrip().startswith("{") else _csv_rows(stream, where)
            rows = tuple([row for row in found if row.requests])
    except OSError as error:
        raise _problem(f"traffic.histogram cannot be read: {error.strerror}", where, _HINT, "unreadable-file") from None
    requests = sum(row.requests for row in rows)
    if requests == 0:
        raise _problem("traffic.histogram has no requests", where, _HINT)
    if requests > LARGEST_SAMPLE:
        hint = (
            f"divide every count by {-(-requests // LARGEST_SAMPLE)}" if requests > len(rows) else "a part of the file"
        )
        raise _problem(f"traffic.histogram has {requests} requests; it takes {LARGEST_SAMPLE} or less", where, hint)
    return rows


def _csv_rows(lines: Iterable[str], where: str) -> Iterator[PromptRow]:
    reader = csv.reader(lines, strict=True)
    try:
        header = next((row for row in reader if row), [])
        places = _places([name.strip() for name in header], f"{where}:{reader.line_num}")
        width, expected = len(header), [places.get(column) for column in COLUMNS]
        prompt_at, cached_at, count_at = expected
        assert prompt_at is not None
        for row in reader:
            if not row:
                continue
            at = f"{where}:{reader.line_num}"
            if len(row) != width:
                raise _problem(f"the row has {len(row)} fields, the header {width}", at, f"write {','.join(header)}")
            yield _row(
                _csv_number(row[prompt_at], "prompt_len", at),
                0 if cached_at is None else _csv_number(row[cached_at], "cached_len", at),
                1 if count_at is None else _csv_number(row[count_at], "count", at),
                at,
            )
    except csv.Error as error:
        hint = "write plain numbers, separated by commas"
        raise _problem(f"not a row of CSV: {error}", f"{where}:{reader.line_num}", hint, "damaged-csv") from None


def _places(header: list[str], at: str) -> dict[str, int]:
    """Where each column stands."""
    places: dict[str, int] = {}
    for place, name in enumerate(header):
        if name not in COLUMNS:
            raise _unknown_column(name, at)
        if name in places:
            raise _problem(f"column {name} stands twice in the header", at, f"leave {', '.join(COLUMNS)}")
        places[name] = place
    if "prompt_len" not in places:
        raise _problem("the header has no column prompt_len", at, f"write {','.join(COLUMNS)}")
    return places


def _csv_number(text: str, column: str, at: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise _not_a_number(text, column, at)
    return int(text)


def _json_rows(lines: Iterable[str], where: str) -> Iterator[PromptRow]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        at = f"{where}:{number}"
        try:
            content = parse_json(line)
        except ValueError as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise _problem(f"not a line of JSON: {reason}", at, 'write {"prompt_len": 8192}', "damaged-json") from None
        if not isinstance(content, dict):
            raise _problem(f"the line is {shown(content)}, not an object", at, 'write {"prompt_len": 8192}')
        unknown = next((name for name in content if name not in COLUMNS), None)
        if unknown is not None:
            raise _unknown_column(unknown, at)
        if "prompt_len" not in content:
            raise _problem("prompt_len is missing", at, 'write {"prompt_len": 8192}')
        prompt_len, cached_len, count = (_json_number(content, column, at) for column in COLUMNS)
        yield _row(prompt_len, cached_len, count, at)


def _json_number(content: Mapping[str, Any], column: str, at: str) -> int:
    value = content.get(column, _DEFAULTS.get(column))
    if type(value) is not int:
        raise _not_a_number(value, column, at)
    return value


def _row(prompt_len: int, cached_len: int, count: int, at: str) -> PromptRow:
    if not 1 <= prompt_len <= LARGEST_LEN:
        raise _problem(f"prompt_len is {shown(prompt_len)}; it takes 1 to {LARGEST_LEN} tokens", at, "write 8192")
    if not 0 <= cached_len <= prompt_len:
        message = f"cached_len is {shown(cached_len)}; it takes 0 to the prompt_len of {prompt_len}"
        raise _problem(message, at, "write the tokens of the prompt that were found in the cache, such as 0")
    if count < 0:
        raise _problem(f"count is {shown(count)}; it takes 0 or more requests", at, "write 1")
    return PromptRow(prompt_len, cached_len, count)


def _not_a_number(value: object, column: str, at: str) -> DeploymentError:
    return _problem(f"{column} is {shown(value)}; it takes a whole number", at, f"write {_EXAMPLES[column]}")


def _unknown_column(name: str, at: str) -> DeploymentError:
    meant = nearest(name, COLUMNS)
    hint = f"write {meant}" if meant else f"the columns are {', '.join(COLUMNS)}"
    return _problem(f"unknown column {shown(name)}", at, hint)


def _problem(message: str, where: str, hint: str, code: str = "bad-histogram") -> DeploymentError:
    return DeploymentError(message, code=code, where=where, hint=hint)
