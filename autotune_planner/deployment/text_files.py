"""Reading a small text file whose every failure is an error of the deployment."""

from __future__ import annotations

import os
from pathlib import Path

from autotune_planner.errors import DeploymentError

MAX_BYTES = 16 * 1024 * 1024


def read_text(path: str | Path, what: str, hint: str) -> str:
    """Text of ``path`` (UTF-8, a byte-order mark is dropped). ``what`` names the file's role in a message.

    ``DeploymentError`` if it is missing, a directory, unreadable, larger than 16 MiB or not UTF-8.
    """
    where = os.fspath(path)
    try:
        with open(path, "rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise DeploymentError(f"{what} does not exist", code="file-not-found", where=where, hint=hint) from None
    except IsADirectoryError:
        raise DeploymentError(f"{what} is a directory", code="unreadable-file", where=where, hint=hint) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DeploymentError(
            f"{what} cannot be read: {reason}", code="unreadable-file", where=where, hint=hint
        ) from None
    if len(raw) > MAX_BYTES:
        raise DeploymentError(f"{what} is larger than 16 MiB", code="unreadable-file", where=where, hint=hint)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DeploymentError(
            f"{what} is not UTF-8: byte 0x{raw[error.start]:02x}",
            code="not-utf-8",
            where=f"{where}:{line}",
            hint="save it as UTF-8",
        ) from None
