"""Publish files of a cache: all of them or none, each replaced atomically.

The server compares the files of its ranks at start and deletes all of them if any differs, so a half-published set is
worth nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from autotune_planner.errors import NotPossibleHereError

_PREFIX = ".autotune-plan-publish-"
_MODE = 0o644
_HINT = "publish elsewhere with --cache-dir DIR, and start the server with SGLANG_CACHE_DIR=DIR"
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)  # network file systems that cannot sync a folder


def check_writable(directory: Path) -> None:
    """``NotPossibleHereError`` unless files can be made in ``directory``, which is created if need be.

    Folders that were made for a check that failed are removed again.
    """
    with _explained(directory), _folder(directory):
        probe = directory / f"{_PREFIX}{os.getpid()}-probe"
        try:
            _write(probe, b"\0")  # one byte, for quotas that let empty files pass
        finally:
            _discard(probe)


def publish(directory: Path, names: Sequence[str], content: bytes) -> list[Path]:
    """Write one content to every name in ``directory``, as :func:`publish_files` does."""
    return publish_files(directory, dict.fromkeys(names, content))


def publish_files(directory: Path, contents: Mapping[str, bytes], hint: str = _HINT) -> list[Path]:
    """Write every file in ``directory``, or below it where a name has folders; on any failure all is as it was.

    Temporary files left by a killed publish are swept first. Returns the paths written. ``NotPossibleHereError`` where
    the place cannot be written, naming the cause (EROFS, EACCES, ENOSPC ...); ``hint`` says what to do about it.
    """
    targets = [directory / name for name in contents]
    folders = list(dict.fromkeys([directory, *(target.parent for target in targets)]))
    with _explained(directory, hint), contextlib.ExitStack() as made:
        for folder in folders:
            made.enter_context(_folder(folder))
            _sweep(folder)
        replacements = [_Replacement(target, index) for index, target in enumerate(targets)]
        try:
            for replacement, content in zip(replacements, contents.values(), strict=True):
                replacement.prepare(content)
            for replacement in replacements:
                replacement.perform()
            for folder in folders:
                _sync_folder(folder)
        except BaseException:
            for replacement in replacements:
                replacement.undo()
                replacement.clean(published=False)
            raise
        for replacement in replacements:
            replacement.clean(published=True)
    return [replacement.target for replacement in replacements]


class _Replacement:
    """One file on its way: new content beside it under a temporary name, and the old one under another."""

    def __init__(self, target: Path, index: int) -> None:
        self.target = target
        self._new = target.with_name(f"{_PREFIX}{os.getpid()}-{index}-new")
        self._old = target.with_name(f"{_PREFIX}{os.getpid()}-{index}-old")
        self._replaces = False
        self._begun = False

    def prepare(self, content: bytes) -> None:
        _write(self._new, content)
        self._replaces = os.path.lexists(self.target)
        if self._replaces:
            try:
                os.link(self.target, self._old, follow_symlinks=False)
            except OSError:  # a file system without hard links
                shutil.copy2(self.target, self._old)

    def perform(self) -> None:
        self._begun = True
        os.replace(self._new, self.target)

    def undo(self) -> None:
        """Put the old file back. If even that fails, it stays under its temporary name."""
        if not self._begun:
            return
        with contextlib.suppress(OSError):
            if self._replaces:
                os.replace(self._old, self.target)
            else:
                self.target.unlink(missing_ok=True)
            self._begun = False

    def clean(self, *, published: bool) -> None:
        """Remove temporary files, but not an old file that could not be put back."""
        _discard(self._new)
        if published or not self._begun:
            _discard(self._old)


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _sweep(directory: Path) -> None:
    for left in directory.glob(f"{_PREFIX}*"):
        _discard(left)


def _sync_folder(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _folder(directory: Path) -> Iterator[None]:
    """The folder, made if need be; what was made is removed again if the work inside fails."""
    missing = list(takewhile(lambda folder: not os.path.exists(folder), (directory, *directory.parents)))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


@contextlib.contextmanager
def _explained(directory: Path, hint: str = _HINT) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "error")
        raise NotPossibleHereError(
            f"cannot write the cache: {error.strerror or error} ({name})",
            code="cache-directory",
            where=str(directory),
            hint=hint,
        ) from error
