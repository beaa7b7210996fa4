"""Errors for people and scripts: what, where, and what to type next."""

from __future__ import annotations

import re
from typing import Any

from rich.text import Text

from autotune_planner.errors import PlannerError

SCHEMA = "autotune-plan/error@1"


def error_document(error: PlannerError) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "code": error.code,
        "exit_code": int(error.exit_code),
        "message": error.message,
        "where": error.where,
        "hint": error.hint,
    }


def error_view(error: PlannerError) -> Text:
    where = "" if error.where is None or _names(error.message, error.where) else f"{error.where}: "
    text = Text.assemble(("error: ", "bold red"), where, error.message)
    if error.hint:
        text.append(f"\n  try: {error.hint}", style="cyan")
    return text


def _names(message: str, where: str) -> bool:
    """Whether a message says itself where it is of: a path or a flag anywhere, a word as its first."""
    anywhere = rf"(?<![\w./-]){re.escape(where)}(?![\w/-])"
    return message.startswith(f"{where} ") or (not where.isidentifier() and re.search(anywhere, message) is not None)
