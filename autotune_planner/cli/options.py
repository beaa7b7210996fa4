"""Options that several commands share."""

from __future__ import annotations

from enum import Enum
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


def directory(cache_dir: str | None) -> str | None:
    """The value of ``--cache-dir``. ``UsageError`` for an empty one or another option, a slip for another place."""
    if cache_dir is not None and (not cache_dir or cache_dir.startswith("-")):
        raise UsageError(f"--cache-dir takes a directory, not {cache_dir!r}", code="usage", hint="--cache-dir DIR")
    return cache_dir
