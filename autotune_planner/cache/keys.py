"""Texts of FlashInfer's v1 cache keys: ``str((custom op, runner class, profile, extras))``, read without ``eval``.

A large cache repeats few extras and few shapes many times, so each distinct text of either is parsed once.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from autotune_planner.errors import CacheFileError
from autotune_planner.values import lazy

Profile = tuple[tuple[int, ...], ...]

_ESCAPE = r"\\(?:[\\'nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"
_STRING = rf"'[^'\\]*(?:{_ESCAPE}[^'\\]*)*'|\"[^\"\\]*(?:{_ESCAPE}[^\"\\]*)*\""
_SHAPE = r"\([-0-9, ]*\)"
_KEY = re.compile(
    rf"\(({_STRING}), ({_STRING}), (\((?:{_SHAPE},|{_SHAPE}(?:, {_SHAPE})+)?\))(?:, (\(.*\)))?\)", re.DOTALL
)
_DIMS = re.compile(r"\(([-0-9, ]*)\)")
_STRING_VALUE = re.compile(_STRING)
_NUMBER = re.compile(r"-?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|inf)|nan")
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_CONSTANTS = {"None": None, "True": True, "False": False}
_OPENING, _CLOSING = "([{<", ")]}>"


@dataclass(frozen=True)
class Opaque:
    """A value of a key that is no number, text or tuple: ``torch.bfloat16``, ``<Enum.NAME: 3>``. Prints as it was."""

    text: str

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class CacheKey:
    """One parsed key. ``profile`` is one shape per input, -1 for a derived dimension.

    ``extras`` is None in a key of three elements, the form of before FlashInfer 0.6.13. ``str(key)`` is the text that
    the key was parsed from.
    """

    custom_op: str
    runner: str
    profile: Profile
    extras: tuple[Any, ...] | None

    def __str__(self) -> str:
        parts: tuple[Any, ...] = (self.custom_op, self.runner, self.profile)
        return str(parts if self.extras is None else (*parts, self.extras))

    @property
    def token_dim(self) -> int:
        """Which dimension of the first input counts tokens: the rows, behind the batch of a batched GEMM."""
        return 1 if self.custom_op.endswith("gemm") and len(self.profile[0]) == 3 else 0

    @lazy
    def bucket(self) -> int:
        """The tokens M of the first input; 0 if it has no dimension."""
        return self.profile[0][self.token_dim] if self.profile and self.profile[0] else 0


def parse_key(text: str) -> CacheKey:
    """Parse one key. ``CacheFileError`` names a text that is not a FlashInfer key."""
    match = _KEY.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        op, runner, profile, extras = match.groups()
        return CacheKey(_string(op), _string(runner), _profile(profile), None if extras is None else _extras(extras))
    except (ValueError, SyntaxError, IndexError, RecursionError):
        raise CacheFileError(
            f"not a key that FlashInfer writes: {text[:160]}",
            code="cache-key",
            hint="delete the entry, or tune again: autotune-plan run FILE",
        ) from None


@lru_cache(maxsize=4096)
def _string(text: str) -> str:
    value = ast.literal_eval(text)
    if repr(value) != text:
        raise ValueError(text)
    return str(value)


def _profile(text: str) -> Profile:
    first, _, others = text[1:].partition(")")
    return (_shape(first[1:]), *_shapes(others)) if first else ()


@lru_cache(maxsize=65536)
def _shapes(text: str) -> Profile:
    return tuple(map(_shape, _DIMS.findall(text)))


@lru_cache(maxsize=65536)
def _shape(dims: str) -> tuple[int, ...]:
    shape = tuple(int(dim) for dim in dims.split(",") if dim)
    if repr(shape) != f"({dims})":
        raise ValueError(dims)
    return shape


@lru_cache(maxsize=65536)
def _extras(text: str) -> tuple[Any, ...]:
    value, end = _value(text, 0)
    if end != len(text) or not isinstance(value, tuple) or repr(value) != text:
        raise ValueError(text)
    return value


def _value(text: str, at: int) -> tuple[Any, int]:
    """The value that begins at ``at``, and where it ends."""
    if text[at] == "(":
        return _tuple(text, at)
    if match := _STRING_VALUE.match(text, at):
        return _string(match.group()), match.end()
    if match := _NUMBER.match(text, at):
        number = match.group()
        return (int(number) if number.lstrip("-").isdigit() else float(number)), match.end()
    name = _NAME.match(text, at)
    end = name.end() if name else at
    if name and name.group() in _CONSTANTS:
        return _CONSTANTS[name.group()], end
    if text[end] in _OPENING:
        end = _balanced(text, end)
    if end == at:
        raise ValueError(text)
    return Opaque(text[at:end]), end


def _tuple(text: str, at: int) -> tuple[tuple[Any, ...], int]:
    """Separators are taken loosely: the caller compares the printed value with the text."""
    items: list[Any] = []
    position = at + 1
    while text[position] != ")":
        item, position = _value(text, position)
        items.append(item)
        while text[position] in ", ":
            position += 1
    return tuple(items), position + 1


def _balanced(text: str, at: int) -> int:
    """End of the bracketed text that begins at ``at``: a call's arguments or the ``<...>`` of an object."""
    open_brackets: list[str] = []
    while True:
        string = _STRING_VALUE.match(text, at)
        if string:
            at = string.end()
            continue
        if text[at] in _OPENING:
            open_brackets.append(_CLOSING[_OPENING.index(text[at])])
        elif text[at] in _CLOSING and open_brackets.pop() != text[at]:
            raise ValueError(text)
        at += 1
        if not open_brackets:
            return at
