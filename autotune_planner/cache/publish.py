"""Publish one cache content under several names: all of them or none, each replaced atomically.

The server compares the files of its ranks at start and deletes all of them if any differs, so a half-published set is
worth nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from autotune_planner.errors import NotPossibleHereError

_PREFIX = ".autotune-plan-publish-"
_MODE = 0o644


def check_writable(directory: Path) -> None:
    """``NotPossibleHereError`` unless files can be made in ``directory``, which is created if need be.

    Folders that were made for a check that failed are removed again.
    """
    made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    try:
        with _explained(directory):
            directory.mkdir(parents=True, exist_ok=True)
            probe = directory / f"{_PREFIX}{os.getpid()}-probe"
            _write(probe, b"")
            probe.unlink()
    except NotPossibleHereError:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def publish(directory: Path, names: Sequence[str], content: bytes) -> list[Path]:
    """Write ``content`` to every name in ``directory``; on any failure the folder is as it was.

    Temporary files left by a killed publish are swept first. Returns the paths written.
    """
    with _explained(directory):
        directory.mkdir(parents=True, exist_ok=True)
        _sweep(directory)
        temps = [directory / f"{_PREFIX}{os.getpid()}-{index}" for index in range(len(names))]
        backups: list[tuple[Path, Path | None]] = []
        try:
            for temp in temps:
                _write(temp, content)
            for index, (name, temp) in enumerate(zip(names, temps, strict=True)):
                target = directory / name
                backups.append((target, _backup(target, index)))
                os.replace(temp, target)
            _sync_folder(directory)
        except BaseException:
            _restore(backups)
            raise
        finally:
            _sweep(directory)
    return [directory / name for name in names]


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _backup(target: Path, index: int) -> Path | None:
    """The present content of ``target`` under another name; None where there is no file yet."""
    if not target.exists():
        return None
    backup = target.with_name(f"{_PREFIX}{os.getpid()}-backup-{index}")
    _write(backup, target.read_bytes())
    return backup


def _restore(backups: Sequence[tuple[Path, Path | None]]) -> None:
    for target, backup in reversed(backups):
        with contextlib.suppress(OSError):
            if backup is None:
                target.unlink(missing_ok=True)
            else:
                os.replace(backup, target)


def _sweep(directory: Path) -> None:
    for left in directory.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            left.unlink()


def _sync_folder(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _explained(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "error")
        raise NotPossibleHereError(
            f"cannot write the cache: {error.strerror or error} ({name})",
            code="cache-directory",
            where=str(directory),
            hint="publish elsewhere with --cache-dir DIR, and start the server with SGLANG_CACHE_DIR=DIR",
        ) from error
