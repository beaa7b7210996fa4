"""``run --events FILE``: what happens, as it happens, one JSON object a line (NDJSON)."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from autotune_planner.errors import NotPossibleHereError
from autotune_planner.json_text import json_line
from autotune_planner.plan.plan import WorkUnit
from autotune_planner.tuning.messages import Event, UnitFinished, UnitResult
from autotune_planner.tuning.pool import Observer


def event_object(event: Event, at: float) -> dict[str, Any]:
    """One event as an object: its kind in snake_case, ``at`` in seconds since the epoch, and its fields."""
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    values = {field.name: _plain(getattr(event, field.name)) for field in fields(event)}
    if isinstance(event, UnitFinished):
        values = {"worker": event.worker, **_result(event.result)}
    return {"event": kind, "at": round(at, 3), **values}


@contextlib.contextmanager
def events_observer(path: str | None, then: Observer) -> Iterator[Observer]:
    """An observer that writes to ``path`` before it tells ``then``; only the latter without a path.

    ``NotPossibleHereError`` where the file cannot be opened or written.
    """
    if path is None:
        yield then
        return
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    except OSError as error:
        raise _unwritten(path, error, "--events FILE, in a folder that is") from None

    def observe(event: Event) -> None:
        try:
            os.write(file, (json_line(event_object(event, time.time())) + "\n").encode())
        except OSError as error:
            hint = "make room, or give another --events FILE: the same command continues with all that is finished"
            raise _unwritten(path, error, hint) from None
        then(event)

    try:
        yield observe
    finally:
        os.close(file)


def _unwritten(path: str, error: OSError, hint: str) -> NotPossibleHereError:
    return NotPossibleHereError(f"cannot write events: {error.strerror}", code="events", where=path, hint=hint)


def _result(result: UnitResult) -> dict[str, Any]:
    search = result.search
    return {
        "unit": _plain(result.unit),
        "failure": result.failure,
        "seconds": round(result.seconds, 4),
        "skipped": list(result.skipped),
        "quarantined": [str(item) for item in result.quarantined],
        "pick": search.pick if search else None,
        "pick_us": search.us_of(search.pick) if search else None,
        "fallback_us": search.us_of(-1) if search else None,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, WorkUnit):
        return {"custom_op": value.custom_op, "shape": value.call.label, "bucket": value.bucket}
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return list(value) if isinstance(value, tuple) else value
