"""Errors of the schema in an operator's words: where, what is wrong, what to write instead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from autotune_planner.deployment.model import SourceMarks
from autotune_planner.deployment.schema import FIELD_OF_FLAG, UNION_TAGS, DeploymentForm
from autotune_planner.deployment.suggestions import nearest
from autotune_planner.errors import DeploymentError

Path = tuple[str, ...]

_SHOWN_COLLECTIONS = ("a mapping", "a list")
_LISTED = 5  # further problems that one message names

_EXAMPLES: dict[Path, str] = {
    ("gpu",): "gpu: H200",
    ("gpu", "name"): "name: NVIDIA H200",
    ("gpu", "vendor"): "vendor: nvidia",
    ("disaggregation",): "disaggregation: prefill, or leave the line out",
    ("model",): "model: qwen3-30b-a3b",
    ("decode", "cuda_graph_bs_decode"): "cuda_graph_bs_decode: [1, 2, 4, 8]",
    ("traffic", "extend_lens"): "extend_lens: [8192, 1, 1, 1]",
    ("launch",): "launch: sglang serve --model-path /models/Qwen3-30B-A3B",
}

_SAID_YES_OR_NO = {"yes": "true", "on": "true", "y": "true", "1": "true", "no": "false", "off": "false", "n": "false"}


@dataclass(frozen=True)
class Problem:
    code: str
    message: str
    hint: str | None
    where: str | None


def raise_problems(error: ValidationError, form: type[BaseModel], marks: SourceMarks) -> NoReturn:
    """One ``DeploymentError`` for all problems; the first in the file decides ``where``, ``code`` and ``hint``."""
    found = [_problem(details, form, marks) for details in error.errors(include_url=False)]
    found.sort(key=lambda problem: _line(problem.where))
    first, others = found[0], found[1:]
    lines = [first.message]
    lines += [f"also{_at(other.where)}: {other.message}" + _brief(other.hint) for other in others[:_LISTED]]
    if len(others) > _LISTED:
        lines.append(f"and {len(others) - _LISTED} more")
    raise DeploymentError("\n".join(lines), code=first.code, where=first.where, hint=first.hint) from None


def mark_of(path: Path, marks: SourceMarks) -> str | None:
    """``file:line`` of a field or of its nearest enclosing mapping; None when it came from no file."""
    return next((marks[path[:size]] for size in range(len(path), -1, -1) if path[:size] in marks), None)


def _problem(details: ErrorDetails, form: type[BaseModel], marks: SourceMarks) -> Problem:
    path = tuple(str(part) for part in details["loc"] if part not in UNION_TAGS and part != "[key]")
    code, message, hint = _words(details, path, form)
    return Problem(code, message, hint, mark_of(path, marks))


def _words(details: ErrorDetails, path: Path, form: type[BaseModel]) -> tuple[str, str, str | None]:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    name = _dotted(path)
    if kind == "extra_forbidden":
        return _unknown_key(path, form, value)
    if kind == "missing":
        return "missing-field", f"{name} is missing", f"add {_example(path)}"
    if kind == "flag_with_field":
        return "flag-with-field", f"{name} has a field of its own", f"write {_line_for(context['path'], '...')}"
    if kind == "flag_name":
        return "bad-value", f"{name} is not a server flag in snake_case", f"write {context['example']}"
    if kind == "no_capability":
        return "missing-field", f"{name} {details['msg']}", 'add compute_capability: "9.0" (nvidia-smi shows it)'
    if kind == "two_samples":
        return "disagreement", f"{name} {details['msg']}", "keep one of them"
    if kind == "string_pattern_mismatch":
        return (
            "bad-value",
            f"{name} is not the name of an environment variable",
            "write letters, digits and underscores",
        )
    if kind == "string_too_short":
        return "bad-value", f"{name} is empty", f"write {_example(path)}, or leave the line out"
    if kind in _CUSTOM:
        return (
            "wrong-type",
            f"{name} is {shown(value)}{details['msg']}",
            _CUSTOM[kind].format(key=path[-1], value=value),
        )
    if kind in _RANGES:
        return "bad-value", f"{name} is {shown(value)}; it takes {_range(kind, context)}", f"write {_example(path)}"
    wanted = _WANTED.get(kind, details["msg"])
    return "wrong-type", f"{name} is {shown(value)}; it takes {wanted}", _instead(kind, path, value)


_RANGES = {
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
    "too_short": "at least one value",
    "too_long": "at most {max_length} values",
    "literal_error": "{expected}",
}

_CUSTOM = {
    "env_value": 'put it in quotes: {key}: "{value}"',
    "unquoted_version": 'put the whole version in quotes: {key}: "0.5.23"',
    "compute_capability": 'write {key}: "9.0"',
    "nul_character": "leave the NUL out",
}


def _range(kind: str, context: dict[str, Any]) -> str:
    return _RANGES[kind].format(**context).replace("'", "")


_WANTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "name_or_mapping": "a name or a mapping",
    "line_or_list": "a command line or a list of its words",
}


def _instead(kind: str, path: Path, value: object) -> str:
    key = path[-1] if path else ""
    if kind == "int_type" and (number := _meant_integer(value)) is not None:
        return f"write {key}: {number}"
    if kind == "bool_type":
        meant = _SAID_YES_OR_NO.get(str(value).lower()) or str(value).lower()
        return f"write {key}: {meant if meant in ('true', 'false') else 'true'}"
    if kind == "string_type" and isinstance(value, (bool, int, float)):
        return f"put it in quotes: {key}: {json.dumps(str(shown(value)))}"
    return f"write {_example(path)}"


def _meant_integer(value: object) -> int | None:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.isascii() and value.lstrip("-").isdigit() and len(value) < 12:
        return int(value)
    return None


def _example(path: Path) -> str:
    if path in _EXAMPLES:
        return _EXAMPLES[path]
    if path and path[-1].isdigit():
        return _example(path[:-1])
    if not path:
        return "key: value lines, such as gpu: H200"
    section = DeploymentForm.model_fields.get(path[0])
    if len(path) == 1 and section is not None and _form_in(section.annotation):
        first_key = next(iter(known_keys(DeploymentForm, path)))
        return f"{path[0]}: {{{first_key}: ...}}"
    return f"{path[-1]}: {_KEY_EXAMPLES.get(path[-1], '8')}"


_KEY_EXAMPLES = {
    "engine": "sglang",
    "engine_version": '"0.5.23"',
    "model_path": "/models/Qwen3-30B-A3B",
    "algorithm": "EAGLE",
    "draft_model_path": "/models/draft",
    "runner_backend": "flashinfer_cutlass",
    "a2a_backend": "none",
    "histogram": "lens.csv",
    "flags": "{page_size: 64}",
    "env": "{SGLANG_CACHE_DIR: /cache}",
    "arch": "gfx942",
    "compute_capability": '"9.0"',
    "memory_mib": "143771",
    "chunked_prefill_size": "8192",
    "max_prefill_tokens": "16384",
    "max_running_requests": "256",
    "cuda_graph_max_bs_decode": "256",
    "kv_token_capacity": "1000000",
    "num_steps": "3",
    "eagle_topk": "1",
    "num_draft_tokens": "4",
    "sm_count": "132",
}


def _unknown_key(path: Path, form: type[BaseModel], value: object) -> tuple[str, str, str]:
    section, key = path[:-1], path[-1]
    message = f"unknown key {shown(key)}" + (f" in {'.'.join(section)}" if section else "")
    known = known_keys(form, section)
    meant = _meant_field(key, known, form)
    if meant is not None:
        field = tuple(meant.split(".")) if meant not in known else (meant,)
        return "unknown-key", f"{message}: did you mean {meant}?", f"write {_line_for(field, shown(value))}"
    flags = "; any other flag of the server goes under flags:" if form is DeploymentForm and not section else ""
    return "unknown-key", message, "one of " + ", ".join(known) + flags


def _line_for(field: Path, value: str) -> str:
    """How a field is written from the top of the file, or within its section if it is given alone."""
    text = "..." if value in _SHOWN_COLLECTIONS else value
    return f"{field[0]}: {{{field[1]}: {text}}}" if len(field) == 2 else f"{field[0]}: {text}"


def _dotted(path: Path) -> str:
    """``traffic.extend_lens[1]``."""
    text = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path)
    return text.lstrip(".") or "the deployment"


def _meant_field(key: str, known: tuple[str, ...], form: type[BaseModel]) -> str | None:
    """The field a misspelt key means: an exact name in any section, else the nearest here, else the nearest."""
    elsewhere = dict(_fields_by_key()) if form is DeploymentForm else {}
    if key in elsewhere:
        return elsewhere[key]
    here = nearest(key, known)
    if here is not None:
        return here
    other = nearest(key, elsewhere)
    return None if other is None else elsewhere[other]


def known_keys(form: type[BaseModel], section: Path) -> tuple[str, ...]:
    """Keys that a section of the file may have."""
    current: type[BaseModel] | None = form
    for part in section:
        current = _form_in(current.model_fields[part].annotation) if current and part in current.model_fields else None
    return tuple(current.model_fields) if current else ()


def _fields_by_key() -> Iterator[tuple[str, str]]:
    """Each server flag, and each key inside a section, with the dotted field that it means."""
    for name, field in DeploymentForm.model_fields.items():
        form = _form_in(field.annotation)
        if form is not None and name != "gpu":
            yield from ((key, f"{name}.{key}") for key in form.model_fields)
    yield from (
        (flag, ".".join(path)) for flag, path in FIELD_OF_FLAG.items() if flag not in DeploymentForm.model_fields
    )


def _form_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((form for part in get_args(annotation) if (form := _form_in(part)) is not None), None)


def shown(value: object) -> str:
    """A value as YAML would show it, shortened."""
    if isinstance(value, dict):
        return _SHOWN_COLLECTIONS[0]
    if isinstance(value, (list, tuple)):
        return _SHOWN_COLLECTIONS[1]
    if isinstance(value, int) and value.bit_length() > 256:
        return "a huge integer"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, (str, int, float, type(None))) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _line(where: str | None) -> int:
    number = (where or "").rpartition(":")[2]
    return int(number) if number.isdigit() else 0


def _at(where: str | None) -> str:
    return f" at {where}" if where else ""


def _brief(hint: str | None) -> str:
    return f" ({hint})" if hint else ""
