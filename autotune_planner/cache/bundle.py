"""A bundle: a deployment's rank files with their journal, plan and quarantine, and a manifest of sums and provenance.

Its files lie as below SGLANG_CACHE_DIR, so that a server can also be started on an unpacked bundle as it is.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune_planner.cache import archive
from autotune_planner.cache.contents import rank_of
from autotune_planner.cache.publish import publish_files
from autotune_planner.cache.timings import JOURNAL, QUARANTINE, WORK_FOLDER
from autotune_planner.cache.v1 import parse_v1
from autotune_planner.json_text import json_text, parse_json

SCHEMA = "autotune-plan/bundle@1"
MANIFEST = "manifest.json"
PLAN = f"{WORK_FOLDER}/plan.json"

_DIRECTORY = r"flashinfer/autotune/\d[\w.+-]*/sm\d+/[0-9a-f]{16}"
_RANK_FILE = r"rank_tp\d+_pp\d+_dp\d+(?:_gpu[\w-]+)?\.json"
_FILE = re.compile(rf"(?:{_RANK_FILE}|{'|'.join(map(re.escape, (JOURNAL, QUARANTINE, PLAN)))})", re.ASCII)
_PATH = re.compile(rf"({_DIRECTORY})/({_FILE.pattern})", re.ASCII)


@dataclass(frozen=True)
class Bundle:
    """``directory`` is the place below SGLANG_CACHE_DIR, ``files`` are the contents by name in it."""

    directory: str
    files: Mapping[str, bytes]
    provenance: Mapping[str, Any]

    @property
    def ranks(self) -> tuple[str, ...]:
        """Names of the rank files."""
        return tuple(name for name in self.files if not name.startswith(WORK_FOLDER))

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """The environment stamp of the first rank file. ``CacheFileError`` if it cannot be read."""
        return self.stamps[0]

    @property
    def stamps(self) -> tuple[Mapping[str, Any] | None, ...]:
        """The distinct stamps of the rank files. ``CacheFileError`` for one that cannot be read."""
        distinct: dict[bytes, str] = {}
        for name in self.ranks:
            distinct.setdefault(self.files[name], name)
        found = [parse_v1(content, Path(name)).metadata for content, name in distinct.items()]
        return tuple(stamp for place, stamp in enumerate(found) if stamp not in found[:place])

    def disagreeing(self) -> tuple[str, ...]:
        """Rank files that differ from the first of their PP stage: the server would delete all of them at start.

        ``CacheFileError`` for one that FlashInfer could not read.
        """
        first: dict[int, Any] = {}
        found = []
        for name in self.ranks:
            parse_v1(self.files[name], Path(name))
            content = parse_json(self.files[name])
            if first.setdefault(rank_of(name)["pp"], content) != content:
                found.append(name)
        return tuple(found)

    def manifest(self) -> dict[str, Any]:
        """The ``autotune-plan/bundle@1`` document."""
        return {
            "schema": SCHEMA,
            "directory": self.directory,
            "metadata": self.metadata,
            "provenance": dict(self.provenance),
            "files": [
                {"path": f"{self.directory}/{name}", "bytes": len(content), "sha256": _sum(content)}
                for name, content in sorted(self.files.items())
            ],
        }


def write_bundle(bundle: Bundle, out: Path) -> None:
    """Write a bundle in the form that its name says, replacing one that is there. Errors as of ``archive.form_of`` and
    ``publish_files``; ``NotPossibleHereError`` for a ``.tar.zst`` without the ``zstd`` extra."""
    files = {f"{bundle.directory}/{name}": content for name, content in bundle.files.items()}
    files[MANIFEST] = json_text(bundle.manifest()).encode()
    hint = "write it to another place: -o OUT"
    form = archive.form_of(out)
    if form == "directory":
        publish_files(out, files, hint)
    else:
        publish_files(out.parent, {out.name: archive.pack(files, form)}, hint)


def read_bundle(path: Path) -> Bundle:
    """Read a bundle and verify every sum. ``CacheFileError`` says what is wrong with it."""
    if os.path.isdir(path):
        manifest = _manifest(path, archive.read_listed(path, {MANIFEST: archive.LARGEST}))
        listed = _listed(path, manifest)
        files = archive.read_listed(path, {name: size for name, (size, _) in listed.items()})
    else:
        files = archive.unpack(path, lambda name: name == MANIFEST or _PATH.fullmatch(name) is not None)
        manifest = _manifest(path, files)
        listed = _listed(path, manifest)
        files.pop(MANIFEST)
    _verify(path, listed, files)
    directory, provenance = manifest.get("directory"), manifest.get("provenance")
    found = sorted({_split(name)[0] for name in files})
    if found != [directory]:
        raise archive.refused(path, f"has a {MANIFEST} of {directory}, and files in {' and '.join(found)}")
    contents = {_split(name)[1]: content for name, content in files.items()}
    bundle = Bundle(found[0], contents, provenance if isinstance(provenance, dict) else {})
    if not bundle.ranks:
        raise archive.refused(path, "holds no rank file")
    return bundle


def _split(name: str) -> tuple[str, str]:
    """Directory and file of a name that is one of a bundle's."""
    directory, file = _PATH.fullmatch(name).groups()  # type: ignore[union-attr]
    return directory, file


def _manifest(path: Path, files: Mapping[str, bytes]) -> dict[str, Any]:
    if MANIFEST not in files:
        raise archive.refused(path, f"has no {MANIFEST}")
    try:
        manifest = parse_json(files[MANIFEST])
    except ValueError:
        raise archive.refused(path, f"has a {MANIFEST} that is not JSON") from None
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise archive.refused(path, f"has a {MANIFEST} that is not {SCHEMA}")
    return manifest


def _listed(path: Path, manifest: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    """Size and sum by name, as the manifest has them."""
    listed: dict[str, tuple[int, str]] = {}
    items = manifest.get("files")
    for item in items if isinstance(items, list) else ():
        name, size, sha256 = (
            item.get(field) if isinstance(item, dict) else None for field in ("path", "bytes", "sha256")
        )
        if not (isinstance(name, str) and type(size) is int and isinstance(sha256, str) and size >= 0):
            raise archive.refused(path, f"has a {MANIFEST} with a file that has no path, bytes and sha256")
        if not _PATH.fullmatch(name):
            raise archive.refused(path, f"lists {name!r}, which is no file of a bundle")
        listed[name] = (size, sha256)
    if not listed:
        raise archive.refused(path, f"has a {MANIFEST} that lists no files")
    return listed


def _verify(path: Path, listed: Mapping[str, tuple[int, str]], files: Mapping[str, bytes]) -> None:
    for name in {**listed, **files}:
        if name not in listed:
            raise archive.refused(path, f"holds {name}, which its manifest does not list")
        if name not in files:
            raise archive.refused(path, f"lacks {name}")
        if (len(files[name]), _sum(files[name])) != listed[name]:
            raise archive.refused(path, f"does not verify: {name} is not what its manifest has the SHA-256 of")


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
