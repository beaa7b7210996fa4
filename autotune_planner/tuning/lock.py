"""One tuner per target directory."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from autotune_planner.errors import LockedError
from autotune_planner.tuning.durable import read_text, written


@contextlib.contextmanager
def tuning_lock(work_dir: Path) -> Iterator[None]:
    """Hold the target while tuning. ``LockedError`` names the holder. A dead holder's lock is free: the kernel's.

    On network file systems the lock may not reach other hosts; publishing stays atomic all the same.
    """
    holder = work_dir / "holder"
    lock = FileLock(work_dir / "lock", timeout=0)
    with written(work_dir / "lock"):
        work_dir.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            by = (read_text(holder) or "another process").strip()
            raise LockedError(
                f"another run holds {work_dir.parent} ({by})",
                code="locked",
                where=str(work_dir / "lock"),
                hint="wait for it, or publish elsewhere: --cache-dir DIR",
            ) from None
    try:
        with written(holder):
            holder.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()
