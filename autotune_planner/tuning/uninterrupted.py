"""Ctrl-C and SIGTERM held back for a moment: while a process is started, which half-way nobody can join."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Handlers of SIGINT and SIGTERM run when the block is left. Threads other than the main one never run them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    handlers = {number: signal.signal(number, lambda got, _: held.append(got)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    for got in held:
        signal.raise_signal(got)
