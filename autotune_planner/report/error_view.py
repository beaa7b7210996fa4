"""Errors for people and scripts: what, where, and what to type next."""

from __future__ import annotations

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
    text = Text.assemble(("error: ", "bold red"), f"{error.where}: " if error.where else "", error.message)
    if error.hint:
        text.append(f"\n  try: {error.hint}", style="cyan")
    return text
