"""Reading a file of a cache: a regular one, since a pipe would be waited for and a device may never end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from autotune_planner.errors import CacheFileError, UsageError


def read_regular(path: str | Path) -> bytes:
    """The bytes of a regular file; links to one are followed. ``OSError`` for anything else, before it is opened."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with open(path, "rb", buffering=0) as file:  # read at once: a buffer would cost more than reading a small file
        return file.readall()


def read_cache_file(path: Path) -> bytes:
    """The bytes of a cache file. ``UsageError`` where there is none, ``CacheFileError`` where it cannot be read."""
    try:
        return read_regular(path)
    except FileNotFoundError:
        hint = "give a cache file, a directory of rank files, a v2 store, or a deployment file (.yaml)"
        raise no_such_file(path, hint) from None
    except IsADirectoryError:
        raise UsageError(
            f"{path} is a directory",
            code="is-a-directory",
            where=str(path),
            hint="give one of its files",
        ) from None
    except OSError as error:
        raise unreadable("cache file", path, error) from None


def no_such_file(path: Path, hint: str) -> UsageError:
    return UsageError(f"{path} does not exist", code="no-such-file", where=str(path), hint=hint)


def unreadable(what: str, path: Path, error: OSError, *, code: str = "cache-file") -> CacheFileError:
    """``what`` is there and cannot be read."""
    return CacheFileError(
        f"the {what} cannot be read: {error.strerror or error}",
        code=code,
        where=str(path),
        hint=readable_hint(path, error),
    )


def is_there(path: Path) -> bool:
    """Whether anything is at a path; also where this user may not look."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def readable_hint(path: str | Path, error: OSError) -> str:
    """What to do about a file that cannot be read."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"make it readable: chmod a+r {path}, and a+x for the directories above it"
    return "put the cache file itself there, or a link to it"
