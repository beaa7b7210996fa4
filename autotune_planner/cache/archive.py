"""Containers of a bundle: a directory, a ``.tar.gz``, or a ``.tar.zst`` where the ``zstd`` extra is installed.

Nothing is ever unpacked onto a disk: files are read into memory, by names that the caller has to allow, and links,
devices and sizes beyond any cache are refused.
"""

from __future__ import annotations

import gzip
import importlib
import io
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Literal

from autotune_planner.cache.files import no_such_file, read_regular
from autotune_planner.errors import CacheFileError, NotPossibleHereError, UsageError

Form = Literal["gz", "zst", "directory"]

LARGEST = 1 << 30  # bytes of a bundle's files together; a rank file of a hundred thousand entries has 40 MB

_SUFFIXES: dict[str, Form] = {".tar.gz": "gz", ".tgz": "gz", ".tar.zst": "zst", ".tzst": "zst"}
_OTHER_ARCHIVES = (".zip", ".tar", ".tar.xz", ".tar.bz2", ".gz", ".zst", ".7z")
_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def form_of(path: Path) -> Form:
    """What a bundle of this name is written as. ``UsageError`` for an archive of another kind."""
    for suffix, form in _SUFFIXES.items():
        if path.name.endswith(suffix):
            return form
    if path.name.endswith(_OTHER_ARCHIVES):
        raise UsageError(
            f"{path.name} is no kind of bundle",
            code="usage",
            where="-o",
            hint="NAME.tar.zst, NAME.tar.gz, or a directory",
        )
    return "directory"


def pack(files: Mapping[str, bytes], form: Literal["gz", "zst"]) -> bytes:
    """A compressed tar of the files: names sorted, no owner, no times, so that equal files give equal bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size = len(files[name])
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(files[name]))
    if form == "gz":
        return gzip.compress(buffer.getvalue(), mtime=0)
    return bytes(_zstandard().ZstdCompressor(level=19).compress(buffer.getvalue()))


def unpack(path: Path, allowed: Callable[[str], bool]) -> dict[str, bytes]:
    """The files of an archive by name. ``CacheFileError`` for one that is damaged, too large, or holds anything else
    than regular files with allowed names, each once; ``UsageError`` where there is none."""
    content = _read(path)
    try:
        with tarfile.open(fileobj=io.BytesIO(_decompressed(content, path)), mode="r:") as tar:
            files: dict[str, bytes] = {}
            for member in tar:
                if member.isdir():
                    continue
                name = member.name.removeprefix("./")
                _check(path, member, name, files, allowed)
                files[name] = _member(tar, member)
            return files
    except (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, OverflowError) as error:
        raise refused(path, f"is damaged: {error}") from None


def read_listed(root: Path, names: Mapping[str, int]) -> dict[str, bytes]:
    """Files of a directory by name, each of at most its size in bytes and one more; those that are not there are left
    out. A link that leads out of the directory is refused."""
    inside = root.resolve()
    files: dict[str, bytes] = {}
    for name, size in names.items():
        path = root / name
        try:
            if not path.resolve().is_relative_to(inside):
                raise refused(root, f"holds {name} as a link that leads elsewhere")
            if not path.exists():
                continue
            if not path.is_file():
                raise refused(root, f"holds {name}, which is no regular file")
            with open(path, "rb") as file:
                files[name] = file.read(min(size, LARGEST) + 1)
        except OSError as error:
            raise refused(root, f"holds {name}, which cannot be read: {error.strerror}") from None
    return files


def refused(path: Path, what: str) -> CacheFileError:
    return CacheFileError(
        f"the bundle {what}",
        code="bundle",
        where=str(path),
        hint="make it again where the cache was tuned: autotune-plan bundle FILE -o bundle.tar.gz",
    )


def _check(
    path: Path, member: tarfile.TarInfo, name: str, files: Mapping[str, bytes], allowed: Callable[[str], bool]
) -> None:
    if not member.isreg() or member.issparse():
        raise refused(path, f"holds {name!r}, which is no regular file")
    if not allowed(name):
        raise refused(path, f"holds {name!r}, which is no file of a bundle")
    if name in files:
        raise refused(path, f"holds {name} twice")
    if member.size + sum(map(len, files.values())) > LARGEST:
        raise refused(path, "is larger than any cache")


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return file.read() if file else b""


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except FileNotFoundError:
        hint = "make it where the cache was tuned: autotune-plan bundle FILE -o bundle.tar.gz"
        raise no_such_file(path, hint) from None
    except OSError as error:
        raise refused(path, f"cannot be read: {error.strerror}") from None


def _decompressed(content: bytes, path: Path) -> bytes:
    if content.startswith(_GZIP_MAGIC):
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            tar = file.read(LARGEST + 1)
    elif content.startswith(_ZSTD_MAGIC):
        zstandard = _zstandard()
        try:
            tar = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content)).read(LARGEST + 1)
        except zstandard.ZstdError as error:
            raise refused(path, f"is damaged: {error}") from None
    else:
        raise refused(path, "is neither a .tar.gz nor a .tar.zst")
    if len(tar) > LARGEST:
        raise refused(path, "is larger than any cache")
    return tar


def _zstandard() -> ModuleType:
    try:
        return importlib.import_module("zstandard")
    except ImportError:
        raise NotPossibleHereError(
            "a .tar.zst needs the zstandard package",
            code="zstandard-missing",
            hint="pip install 'autotune-planner[zstd]', or use a .tar.gz or a directory",
        ) from None
