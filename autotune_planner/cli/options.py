"""Options that several commands share."""

from __future__ import annotations

import shlex
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune_planner.errors import UsageError

if TYPE_CHECKING:
    from autotune_planner.tuning.devices import DeviceKind


class Device(str, Enum):
    """Where the timings come from."""

    CUDA = "cuda"
    SIMULATED = "simulated"

    @property
    def kind(self) -> DeviceKind:
        return "simulated" if self is Device.SIMULATED else "cuda"


AssumeRules = Annotated[
    str | None,
    typer.Option("--assume-rules", help="Rules of this release for a server that has none here.", metavar="VERSION"),
]


def run_command(file: Path, cache_dir: str | None, assume_rules: str | None = None, *options: str) -> str:
    """What tunes the cache that a command was given: its file, and what of its options goes for ``run`` too."""
    if cache_dir:
        options = ("--cache-dir", cache_dir, *options)
    if assume_rules:
        options = (*options, "--assume-rules", assume_rules)
    return shlex.join(["autotune-plan", "run", str(file), *options])


def directory(cache_dir: str | None) -> str | None:
    """The value of ``--cache-dir``. ``UsageError`` for an empty one or another option, a slip for another place."""
    if cache_dir is not None and (not cache_dir or cache_dir.startswith("-")):
        raise UsageError(f"--cache-dir takes a directory, not {cache_dir!r}", code="usage", hint="--cache-dir DIR")
    return cache_dir
