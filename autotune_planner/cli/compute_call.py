"""One call of ``compute``: what was typed, as values, and what it prints.

Typer reads the command line of every command. It takes as long to import as all that a plan needs, and half as long
again to convert a first value, so that a plain call of ``compute`` is read here; whatever is not plain is Typer's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune_planner import planning
from autotune_planner.cli.source import LaunchOptions, deployment_of
from autotune_planner.values import dataclass

_SWITCHES = {"--explain": "explain", "--json": "json"}
_VALUES = {
    "--gpu": "gpu",
    "--engine": "engine",
    "--model-dir": "model_dir",
    "--kv-token-capacity": "kv_token_capacity",
    "--assume-rules": "assume_rules",
}
_COUNT = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class ComputeCall:
    """``flags`` are the server's own behind ``--``; None without a ``--``."""

    flags: Sequence[str] | None
    file: Path | None = None
    keys: bool = False
    explain: bool = False
    json: bool = False
    assume_rules: str | None = None
    gpu: str | None = None
    engine: str | None = None
    model_dir: Path | None = None
    kv_token_capacity: int | None = None


def plain_call(arguments: Sequence[str], flags: Sequence[str] | None) -> ComputeCall | None:
    """A call of at most one file, and of options in full, each once, with its value as a word of its own.

    None for anything else, help and mistakes included.
    """
    if not arguments or arguments[0] != "compute":
        return None
    given: dict[str, Any] = {}
    words = iter(arguments[1:])
    value: Any
    for word in words:
        if word in _SWITCHES:
            name, value = _SWITCHES[word], True
        elif word in _VALUES:
            name, value = _VALUES[word], _value(word, next(words, ""))
        else:
            name, value = "file", _path(word)
        if value is None or name in given:
            return None
        given[name] = value
    return ComputeCall(flags, **given)


def _value(option: str, word: str) -> Any:
    """None where Typer should judge the word."""
    if not word or word.startswith("-"):
        return None
    if option == "--kv-token-capacity":
        return int(word) if _COUNT.fullmatch(word) else None
    return Path(word) if option == "--model-dir" else word


def _path(word: str) -> Path | None:
    return Path(word) if word and not word.startswith("-") else None


def carry_out(call: ComputeCall) -> None:
    """Plan the deployment of a call and print the plan. ``DeploymentError`` and ``UsageError`` as everywhere."""
    options = LaunchOptions(call.gpu, call.engine, call.model_dir, call.kv_token_capacity)
    plan = planning.plan(deployment_of(call.file, call.flags, options), os.environ, call.assume_rules)
    place = plan.resolved.cache_place
    keys = None
    if call.keys:
        from autotune_planner.pipeline import require_startable
        from autotune_planner.tuning.keys import exact_keys

        require_startable(plan)
        keys = exact_keys(plan)
    if call.json:
        from autotune_planner.json_text import json_text
        from autotune_planner.report.plan_document import plan_document

        print(json_text(plan_document(plan, place, keys=keys, explain=call.explain)))
        return
    from autotune_planner.report.console import data_console, talk_console
    from autotune_planner.report.plan_view import plan_view, print_notices

    data_console().print(plan_view(plan, place, keys=keys, explain=call.explain))
    print_notices(talk_console(), plan.resolved.notices)
