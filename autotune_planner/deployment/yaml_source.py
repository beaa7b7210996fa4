"""A YAML file as plain values, each with the ``file:line`` it came from.

Scalars follow the JSON-like core of YAML 1.2, so ``no``, ``010``, ``1:30`` and dates stay text instead of becoming
booleans, octal, base-60 numbers and dates. Anchors, tags and duplicate keys are refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from autotune_planner.deployment.text_files import read_text
from autotune_planner.errors import DeploymentError

MAX_DEPTH = 32
_SMALLEST = "write at least the two lines gpu: H200 and model: qwen3-30b-a3b"

_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,99})")
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")

_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


@dataclass(frozen=True)
class Source:
    """Content of a deployment file: plain dicts, lists and scalars, and the ``file:line`` of each value."""

    content: dict[str, Any]
    marks: Mapping[tuple[str, ...], str]


def read_yaml(path: str | Path) -> Source:
    """Read a deployment file. ``DeploymentError`` with ``file:line`` for anything that is not one plain mapping."""
    return parse_yaml(read_text(path, "the deployment file", "give the path of a YAML file"), os.fspath(path))


def parse_yaml(text: str, name: str) -> Source:
    """As :func:`read_yaml`, for text; ``name`` stands for the file in messages."""
    builder = _Builder(name)
    try:
        for event in yaml.parse(text, Loader=_Loader):
            builder.add(event)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, name) from None
    except yaml.reader.ReaderError as error:
        raise DeploymentError(
            f"the file has a character that YAML does not allow: U+{_code_point(error):04X}",
            code="yaml-syntax",
            where=_where(name, _line_of_control_character(text)),
            hint="remove it; in a quoted string write an escape",
        ) from None
    if not isinstance(builder.root, dict):
        raise _not_a_mapping(builder, name)
    return Source(builder.root, builder.marks)


@dataclass
class _Open:
    """A collection that is being read. ``key`` is the mapping key whose value comes next."""

    value: dict[str, Any] | list[Any]
    path: tuple[str, ...]
    key: str | None = None


@dataclass
class _Builder:
    """Puts values together from parser events, without recursion."""

    name: str
    root: object = None
    documents: int = 0
    marks: dict[tuple[str, ...], str] = field(default_factory=dict)
    open: list[_Open] = field(default_factory=list)

    def add(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark is not None else 1
        if isinstance(event, yaml.DocumentStartEvent):
            self._start_document(line)
        elif isinstance(event, yaml.AliasEvent):
            raise self._error("this value refers to an anchor (*)", line, "write the value out")
        elif isinstance(event, yaml.NodeEvent):
            self._refuse_anchor_and_tag(event, line)
            self._add_node(event, line)
        elif isinstance(event, yaml.CollectionEndEvent):
            self.open.pop()

    def _start_document(self, line: int) -> None:
        self.documents += 1
        if self.documents > 1:
            raise self._error("a second document starts here (---)", line, "one file describes one deployment")

    def _refuse_anchor_and_tag(self, event: Any, line: int) -> None:
        if event.anchor is not None:
            raise self._error(
                f"this value has an anchor (&{event.anchor})", line, "leave it out; anchors are not followed"
            )
        if event.tag is not None:
            raise self._error(f"this value has a tag ({event.tag})", line, "leave it out; for text use quotes")

    def _add_node(self, event: yaml.NodeEvent, line: int) -> None:
        parent = self.open[-1] if self.open else None
        if parent is not None and isinstance(parent.value, dict) and parent.key is None:
            self._add_key(parent, event, line)
            return
        value, path = self._value(event), self._place(parent)
        self.marks.setdefault(path, _where(self.name, line))
        self._attach(parent, value)
        if isinstance(value, (dict, list)):
            self._open_collection(value, path, line)

    def _add_key(self, parent: _Open, event: yaml.NodeEvent, line: int) -> None:
        if not isinstance(event, yaml.ScalarEvent):
            raise self._error("a key is a list or a mapping", line, 'write "key: value"; keys are names')
        key, path = event.value, (*parent.path, event.value)
        if path in self.marks:
            raise self._error(
                f"duplicate key {json.dumps(key, ensure_ascii=False)}, first at {self.marks[path]}",
                line,
                "keep one of the two",
            )
        parent.key = key
        self.marks[path] = _where(self.name, line)

    def _value(self, event: yaml.NodeEvent) -> Any:
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        return {} if isinstance(event, yaml.MappingStartEvent) else []

    def _place(self, parent: _Open | None) -> tuple[str, ...]:
        if parent is None:
            return ()
        last = str(len(parent.value)) if isinstance(parent.value, list) else str(parent.key)
        return (*parent.path, last)

    def _attach(self, parent: _Open | None, value: Any) -> None:
        if parent is None:
            self.root = value
        elif isinstance(parent.value, list):
            parent.value.append(value)
        else:
            parent.value[str(parent.key)] = value
            parent.key = None

    def _open_collection(self, value: dict[str, Any] | list[Any], path: tuple[str, ...], line: int) -> None:
        if len(self.open) >= MAX_DEPTH:
            raise self._error(
                f"this value is nested more than {MAX_DEPTH} levels deep", line, "a deployment has two levels"
            )
        self.open.append(_Open(value, path))

    def _error(self, message: str, line: int, hint: str) -> DeploymentError:
        return DeploymentError(message, code="yaml-form", where=_where(self.name, line), hint=hint)


def _scalar(event: yaml.ScalarEvent) -> Any:
    text = event.value
    if not event.implicit[0]:
        return text
    if text.lower() in _WORDS and text in (text.lower(), text.upper(), text.capitalize()):
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _syntax_error(error: yaml.MarkedYAMLError, text: str, name: str) -> DeploymentError:
    lines = text.splitlines()
    marks = [mark for mark in (error.problem_mark, error.context_mark) if mark is not None]
    line = next((mark.line + 1 for mark in marks if mark.line < len(lines)), len(lines))
    written = lines[line - 1]
    if "\t" in written[: len(written) - len(written.lstrip())]:
        return DeploymentError(
            "a tab in the indentation", code="yaml-syntax", where=_where(name, line), hint="indent with spaces"
        )
    return DeploymentError(
        f"not valid YAML: {error.problem or error.context}",
        code="yaml-syntax",
        where=_where(name, line),
        hint="look for a missing space after a colon, a bracket or a quote left open, or uneven indentation",
    )


def _not_a_mapping(builder: _Builder, name: str) -> DeploymentError:
    if builder.root is None:
        return DeploymentError("the deployment file is empty", code="empty-file", where=_where(name, 1), hint=_SMALLEST)
    what = "a list" if isinstance(builder.root, list) else "a single value"
    return DeploymentError(
        f"the deployment file is {what}, not key: value lines",
        code="yaml-form",
        where=builder.marks.get((), _where(name, 1)),
        hint=_SMALLEST,
    )


def _code_point(error: yaml.reader.ReaderError) -> int:
    character = error.character
    return character if isinstance(character, int) else ord(character)


def _line_of_control_character(text: str) -> int:
    found = re.search(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufeff\uff00-\ufffd\U00010000-\U0010ffff]", text)
    return text.count("\n", 0, found.start()) + 1 if found else 1


def _where(name: str, line: int) -> str:
    return f"{name}:{line}"
