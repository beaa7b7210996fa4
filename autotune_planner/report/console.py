"""Consoles: data to stdout, talk to stderr; plain text of a fixed width where there is no terminal."""

from __future__ import annotations

import sys

from rich.console import Console

_PLAIN_WIDTH = 120


def data_console() -> Console:
    """stdout. Rich honours NO_COLOR and COLUMNS; without a terminal lines are 120 wide and never shortened."""
    return _console(stderr=False)


def talk_console() -> Console:
    """stderr: progress, warnings, errors."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    if hasattr(stream, "reconfigure"):  # a character that the stream's encoding lacks is escaped
        stream.reconfigure(errors="backslashreplace")
    width = None if stream.isatty() else _PLAIN_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=not stream.isatty())
