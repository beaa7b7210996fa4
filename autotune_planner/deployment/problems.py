"""Errors of the schema in an operator's words: where, what is wrong, what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from autotune_planner.deployment.field_flags import UNION_FIELDS
from autotune_planner.deployment.fields import FieldPath, dotted, example, known_keys, line_for, meant_field, shown
from autotune_planner.deployment.model import SourceMarks
from autotune_planner.errors import DeploymentError
from autotune_planner.values import dataclass

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_LISTED = 5  # further problems that one message names


@dataclass(frozen=True)
class _Problem:
    code: str
    message: str
    hint: str
    where: str | None = None


def raise_problems(error: ValidationError, marks: SourceMarks, within: FieldPath = ()) -> NoReturn:
    """One ``DeploymentError`` for all problems; the first in the file decides ``where``, ``code`` and ``hint``.

    ``within`` is the section that was validated on its own.
    """
    found = [_problem(details, within, marks) for details in error.errors(include_url=False)]
    found.sort(key=lambda problem: _line(problem.where))
    first, others = found[0], found[1:]
    lines = [first.message]
    lines += [f"also{_at(other.where)}: {other.message} ({other.hint})" for other in others[:_LISTED]]
    if len(others) > _LISTED:
        lines.append(f"and {len(others) - _LISTED} more")
    raise DeploymentError("\n".join(lines), code=first.code, where=first.where, hint=first.hint) from None


def mark_of(path: FieldPath, marks: SourceMarks) -> str | None:
    """``file:line`` of a field or of its nearest enclosing mapping; None when it came from no file."""
    return next((marks[path[:size]] for size in range(len(path), -1, -1) if path[:size] in marks), None)


def _problem(details: ErrorDetails, within: FieldPath, marks: SourceMarks) -> _Problem:
    path = (*within, *_place(details["loc"]))
    words = _WORDS.get(details["type"], _wrong_type)(details, path)
    return _Problem(words.code, words.message, words.hint, mark_of(path, marks))


def _place(loc: tuple[int | str, ...]) -> FieldPath:
    """The place in the file, without what pydantic puts in for a union's branch and for a mapping's key."""
    parts = tuple(map(str, loc))
    if len(parts) > 1 and parts[0] in UNION_FIELDS:
        parts = (parts[0], *parts[2:])
    if len(parts) == 3 and parts[2] == "[key]":
        parts = parts[:2]
    return parts


def _unknown_key(details: ErrorDetails, path: FieldPath) -> _Problem:
    section, key = path[:-1], path[-1]
    message = f"unknown key {shown(key)}" + (f" in {dotted(section)}" if section else "")
    meant = meant_field(key, section)
    if meant is not None:
        line = line_for(meant, details["input"])
        return _Problem("unknown-key", f"{message}: did you mean {dotted(meant)}?", f"write {line}")
    flags = "" if section else "; any other flag of the server goes under flags:"
    return _Problem("unknown-key", message, "one of " + ", ".join(known_keys(section)) + flags)


def _missing(details: ErrorDetails, path: FieldPath) -> _Problem:
    return _Problem("missing-field", f"{dotted(path)} is missing", f"add {example(path)}")


def _no_capability(details: ErrorDetails, path: FieldPath) -> _Problem:
    message = f"{dotted(path)} {details['msg']}"
    return _Problem("missing-field", message, 'add compute_capability: "9.0" (nvidia-smi shows it)')


def _no_arch(details: ErrorDetails, path: FieldPath) -> _Problem:
    return _Problem("missing-field", f"{dotted(path)} {details['msg']}", "add arch: gfx942 (rocminfo shows it)")


def _two_samples(details: ErrorDetails, path: FieldPath) -> _Problem:
    return _Problem("disagreement", f"{dotted(path)} {details['msg']}", "keep one of them")


def _flag_with_field(details: ErrorDetails, path: FieldPath) -> _Problem:
    field = line_for(details["ctx"]["field"])
    return _Problem("flag-with-field", f"{dotted(path)} has a field of its own", f"write {field}")


def _flag_name(details: ErrorDetails, path: FieldPath) -> _Problem:
    message = f"{dotted(path)} is not a server flag in snake_case"
    return _Problem("bad-value", message, f"write {details['ctx']['snake_case']}")


def _variable_name(details: ErrorDetails, path: FieldPath) -> _Problem:
    message = f"{dotted(path)} is not the name of an environment variable"
    return _Problem("bad-value", message, "write letters, digits and underscores")


def _empty(details: ErrorDetails, path: FieldPath) -> _Problem:
    return _Problem("bad-value", f"{dotted(path)} is empty", f"write {example(path)}, or leave the line out")


def _nul(details: ErrorDetails, path: FieldPath) -> _Problem:
    message = f"{dotted(path)} has a NUL character, which no path or variable can hold"
    return _Problem("bad-value", message, f"write {example(path)}")


def _out_of_range(details: ErrorDetails, path: FieldPath) -> _Problem:
    takes = _RANGES[details["type"]].format(**details["ctx"]).replace("'", "")
    return _Problem("bad-value", _it_takes(details, path, takes), f"write {example(path)}")


def _wrong_type(details: ErrorDetails, path: FieldPath) -> _Problem:
    kind = details["type"]
    message = _it_takes(details, path, _TAKES.get(kind, details["msg"]))
    meant = _INSTEAD.get(kind)
    instead = None if meant is None else meant(details["input"])
    line = example(path) if instead is None or path[-1].isdigit() else f"{path[-1]}: {instead}"
    return _Problem("wrong-type", message, f"write {line}")


def _it_takes(details: ErrorDetails, path: FieldPath, takes: str) -> str:
    return f"{dotted(path)} is {shown(details['input'])}; it takes {takes}"


_WORDS: dict[str, Callable[[ErrorDetails, FieldPath], _Problem]] = {
    "extra_forbidden": _unknown_key,
    "invalid_key": _unknown_key,
    "missing": _missing,
    "no_capability": _no_capability,
    "no_arch": _no_arch,
    "two_samples": _two_samples,
    "flag_with_field": _flag_with_field,
    "flag_name": _flag_name,
    "string_pattern_mismatch": _variable_name,
    "string_too_short": _empty,
    "nul_character": _nul,
    "greater_than_equal": _out_of_range,
    "less_than_equal": _out_of_range,
    "too_short": _out_of_range,
    "too_long": _out_of_range,
    "literal_error": _out_of_range,
}

_RANGES = {
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
    "too_short": "at least one value",
    "too_long": "at most {max_length} values",
    "literal_error": "{expected}",
}

_TAKES = {
    "int_type": "an integer",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "name_or_mapping": "a name or a mapping",
    "line_or_list": "a command line or a list of its words",
    "env_value": "text, an integer, true or false",
    "unquoted_version": "a version, and YAML reads this as a number unless quoted",
    "compute_capability": "major.minor",
}


def _meant_integer(value: object) -> str | None:
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return shown(int(value))
    return value if isinstance(value, str) and re.fullmatch(r"-?(0|[1-9][0-9]{0,9})", value) else None


def _meant_truth(value: object) -> str:
    return "false" if str(value).lower() in ("0", "no", "off", "n", "false") else "true"


def _in_quotes(value: object) -> str | None:
    return f'"{shown(value)}"' if isinstance(value, (bool, int, float)) else None


_INSTEAD: dict[str, Callable[[object], str | None]] = {
    "int_type": _meant_integer,
    "bool_type": _meant_truth,
    "string_type": _in_quotes,
    "env_value": lambda value: '""' if value is None else _in_quotes(value),
}


def _line(where: str | None) -> int:
    number = (where or "").rpartition(":")[2]
    return int(number) if number.isdigit() else 0


def _at(where: str | None) -> str:
    return f" at {where}" if where else ""
