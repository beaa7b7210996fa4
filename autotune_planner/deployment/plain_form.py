"""A deployment file that is plainly right, read without pydantic.

Building pydantic's models takes as long as the whole plan of such a file. What is not plain, every mistake included, is
for :mod:`autotune_planner.deployment.schema` to judge, which alone says what a file may hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, TypeVar

from autotune_planner.deployment.field_flags import FIELD_OF_FLAG, LARGEST
from autotune_planner.deployment.model import Decode, Moe, Parallel, Prefill, Speculative
from autotune_planner.values import dataclass

_FLAG = re.compile(r"[a-z][a-z0-9_]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST = 65536  # values of a list

Section = TypeVar("Section")


@dataclass(frozen=True)
class PlainAutotune:
    extend: bool | None = None


@dataclass(frozen=True)
class PlainTraffic:
    extend_lens: tuple[int, ...] | None = None
    histogram: str | None = None


@dataclass(frozen=True)
class PlainForm:
    """The fields of ``DeploymentForm``, of the same names and values; lists are tuples."""

    gpu: str
    engine: str = "sglang"
    engine_version: str | None = None
    model: str | None = None
    model_path: str | None = None
    parallel: Parallel = field(default_factory=Parallel)
    prefill: Prefill = field(default_factory=Prefill)
    decode: Decode = field(default_factory=Decode)
    disaggregation: Any = None
    speculative: Speculative = field(default_factory=Speculative)
    multimodal: bool | None = None
    moe: Moe = field(default_factory=Moe)
    flags: Mapping[str, Any] = field(default_factory=dict)
    kv_token_capacity: int | None = None
    autotune: PlainAutotune = field(default_factory=PlainAutotune)
    env: Mapping[str, str] = field(default_factory=dict)
    traffic: PlainTraffic = field(default_factory=PlainTraffic)
    launch: str | None = None


class _NotPlainError(Exception):
    """A value that pydantic has to judge."""


def plain_form(content: Mapping[str, Any]) -> PlainForm | None:
    """The form of a file's content; None if anything in it is wrong or unusual."""
    if content.get("gpu") is None:
        return None
    try:
        readers = {name: _FIELDS[name] for name in content}
        return PlainForm(**{name: readers[name](value) for name, value in content.items() if value is not None})
    except (_NotPlainError, KeyError):
        return None


def _plain(right: bool, value: Any) -> Any:
    if not right:
        raise _NotPlainError
    return value


def _text(value: Any) -> Any:
    return _plain(type(value) is str and value != "" and "\0" not in value, value)


def _truth(value: Any) -> Any:
    return _plain(type(value) is bool, value)


def _count(value: Any) -> Any:
    """Every field of the file takes 1 and more."""
    return _plain(type(value) is int and 1 <= value <= LARGEST, value)


def _counts(value: Any) -> tuple[int, ...]:
    _plain(type(value) is list and 1 <= len(value) <= _LONGEST, value)
    return tuple(map(_count, value))


_BY_ANNOTATION: dict[str, Callable[[Any], Any]] = {
    "int | None": _count,
    "bool | None": _truth,
    "str | None": _text,
    "tuple[int, ...] | None": _counts,
}


def _section(kind: type[Section]) -> Callable[[Any], Section]:
    readers = {name: _BY_ANNOTATION[annotation] for name, annotation in kind.__annotations__.items()}

    def read(value: Any) -> Section:
        _plain(type(value) is dict, value)
        return kind(**{name: _given(readers[name], one) for name, one in value.items()})

    return read


def _given(read: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else read(value)


def _role(value: Any) -> Any:
    return _plain(value in ("prefill", "decode"), value)


def _flags(value: Any) -> dict[str, Any]:
    _plain(type(value) is dict, value)
    for name in value:
        _plain(type(name) is str and _FLAG.fullmatch(name) is not None and name not in FIELD_OF_FLAG, name)
    return dict(value)


def _env(value: Any) -> dict[str, str]:
    _plain(type(value) is dict, value)
    return {_variable(name): str(_count(one)) if type(one) is int else _setting(one) for name, one in value.items()}


def _variable(name: Any) -> Any:
    return _plain(type(name) is str and _VARIABLE.fullmatch(name) is not None, name)


def _setting(value: Any) -> Any:
    return _plain(type(value) is str and "\0" not in value, value)


def _traffic(value: Any) -> PlainTraffic:
    traffic = _section(PlainTraffic)(value)
    return _plain(traffic.extend_lens is None or traffic.histogram is None, traffic)  # type: ignore[no-any-return]


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "gpu": _text,
    "engine": _text,
    "engine_version": _text,
    "model": _text,
    "model_path": _text,
    "parallel": _section(Parallel),
    "prefill": _section(Prefill),
    "decode": _section(Decode),
    "disaggregation": _role,
    "speculative": _section(Speculative),
    "multimodal": _truth,
    "moe": _section(Moe),
    "flags": _flags,
    "kv_token_capacity": _count,
    "autotune": _section(PlainAutotune),
    "env": _env,
    "traffic": _traffic,
    "launch": _text,
}
