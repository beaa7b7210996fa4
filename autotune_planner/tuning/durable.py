"""Files of a run's own in the work folder: what goes wrong with them is said with the path and what to do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune_planner.errors import NotPossibleHereError
from autotune_planner.json_text import parse_json


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """``NotPossibleHereError`` where ``path`` cannot be written: disk full, over quota, read-only, stale."""
    try:
        yield
    except OSError as error:
        raise NotPossibleHereError(
            f"cannot write {path.name}: {_cause(error)}",
            code="work-folder",
            where=str(path),
            hint="make room or make the folder writable: the same command continues with all that is finished; "
            "or tune elsewhere with --cache-dir DIR",
        ) from error


def read_text(path: Path) -> str | None:
    """The file's text, None where there is no file. ``NotPossibleHereError`` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NotPossibleHereError(
            f"cannot read {path.name} of an earlier run: {_cause(error)}",
            code="work-folder",
            where=str(path),
            hint="make it readable for this user, or tune elsewhere with --cache-dir DIR",
        ) from error


def parsed(text: str) -> Any:
    """JSON as a value, None where it is none."""
    try:
        return parse_json(text)
    except ValueError:
        return None


def _cause(error: OSError) -> str:
    return f"{error.strerror or error} ({errno.errorcode.get(error.errno or 0, 'error')})"
