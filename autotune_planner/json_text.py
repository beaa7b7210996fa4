"""JSON texts, read and written in one way: what is damaged is a ``ValueError``, what is written any reader takes."""

from __future__ import annotations

import json
import math
from typing import Any

DEEPEST = 100  # levels of nesting; the deepest value of any of these files, a tactic of CuTe DSL, has 5

_LINES, _LINE = json.JSONEncoder(indent=2, allow_nan=False), json.JSONEncoder(allow_nan=False)
_NESTING = (dict, list)  # a tuple: isinstance takes twice as long for a union


def parse_json(data: str | bytes) -> Any:
    """The value of a JSON text (UTF-8). Reads NaN and Infinity, as FlashInfer does.

    ``ValueError`` for anything else, and for nesting that a later step could not follow: ``json.JSONDecodeError`` where
    the place is known.
    """
    text = data if isinstance(data, str) else data.decode()
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if text.count("[") + text.count("{") > DEEPEST and _is_deep(value):
        raise ValueError("nested too deeply")
    return value


def json_text(value: Any) -> str:
    """``value`` as JSON of RFC 8259 over several lines. That has no numbers that are not finite: those are the texts
    ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``."""
    return _encoded(_LINES, value)


def json_line(value: Any) -> str:
    """:func:`json_text` on one line."""
    return _encoded(_LINE, value)


def _encoded(encoder: json.JSONEncoder, value: Any) -> str:
    try:
        return encoder.encode(value)
    except ValueError:
        return encoder.encode(_finite(value))


def _is_deep(value: Any) -> bool:
    """Level by level: a large cache is wide, and its hundred thousand entries are looked at once."""
    level = [value] if isinstance(value, _NESTING) else []
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, _NESTING)
        ]
        if not level:
            return False
    return True


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
