"""Texts of FlashInfer's v1 cache keys: ``str((custom op, runner class, profile, extras))``, read without ``eval``.

A file of a long-lived cache repeats the same few extras and static shapes thousands of times, so both parts are parsed
once per distinct text.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from autotune_planner.errors import CacheFileError

Profile = tuple[tuple[int, ...], ...]

_STRING = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_HEAD = re.compile(rf"\(({_STRING}), ({_STRING}), (\(.*?\)\)|\(.*?\),\)|\(\))(?:, (.*))?\)", re.DOTALL)
_DIMS = re.compile(r"\(([-0-9, ]*)\)")
_OPAQUE = re.compile(rf"{_STRING}|torch\.[A-Za-z0-9_]+|<[A-Za-z_][^<>]*>")
_MARK = "\0"


@dataclass(frozen=True)
class Opaque:
    """A value of a key that only FlashInfer's process has: ``torch.bfloat16``, ``<Enum.NAME: 3>``. Prints as it was."""

    text: str

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class CacheKey:
    """One parsed key. ``profile`` is one shape per input, -1 for a derived dimension; ``extras`` None before 0.6.13.

    ``str(key)`` is the text that it was parsed from.
    """

    custom_op: str
    runner: str
    profile: Profile
    extras: tuple[Any, ...] | None

    def __str__(self) -> str:
        parts: tuple[Any, ...] = (self.custom_op, self.runner, self.profile)
        return str(parts if self.extras is None else (*parts, self.extras))

    @property
    def bucket(self) -> int:
        """First dynamic token dimension, M: the rows of the first input, behind the batch of a batched GEMM."""
        first = self.profile[0] if self.profile else (0,)
        return first[1] if self.custom_op == "fp8_gemm" and len(first) == 3 else first[0]

    @property
    def static_shapes(self) -> Profile:
        """The profile without M: equal for all buckets of one layer."""
        first = list(self.profile[0]) if self.profile else []
        index = 1 if self.custom_op == "fp8_gemm" and len(first) == 3 else 0
        del first[index : index + 1]
        return (tuple(first), *self.profile[1:])


def parse_key(text: str) -> CacheKey:
    """Parse one key. ``CacheFileError`` if it is not the text of a FlashInfer key."""
    match = _HEAD.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        op, runner, profile, extras = match.groups()
        return CacheKey(_string(op), _string(runner), _profile(profile), None if extras is None else _extras(extras))
    except (ValueError, SyntaxError, IndexError, MemoryError, RecursionError):
        raise CacheFileError(
            f"not a key that FlashInfer writes: {text[:160]}",
            code="cache-key",
            hint="delete the entry, or tune again: autotune-plan run",
        ) from None


@lru_cache(maxsize=4096)
def _string(text: str) -> str:
    value = ast.literal_eval(text)
    assert isinstance(value, str)
    return value


def _profile(text: str) -> Profile:
    shapes = tuple(_shape(dims) for dims in _DIMS.findall(text))
    if repr(shapes) != text:
        raise ValueError(text)
    return shapes


@lru_cache(maxsize=65536)
def _shape(dims: str) -> tuple[int, ...]:
    return tuple(int(dim) for dim in dims.split(",") if dim.strip())


@lru_cache(maxsize=4096)
def _extras(text: str) -> tuple[Any, ...]:
    """Values of the extras: Python literals, and opaque texts outside string literals."""
    opaque: list[str] = []

    def hide(match: re.Match[str]) -> str:
        found = match.group(0)
        if found[0] in "'\"":
            return found
        opaque.append(found)
        return repr(f"{_MARK}{len(opaque) - 1}")

    def restore(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(restore, value))
        if isinstance(value, list):
            return list(map(restore, value))
        if isinstance(value, str) and value.startswith(_MARK):
            return Opaque(opaque[int(value[1:])])
        return value

    value = restore(ast.literal_eval(_OPAQUE.sub(hide, text)))
    if not isinstance(value, tuple) or repr(value) != text:
        raise ValueError(text)
    return value
