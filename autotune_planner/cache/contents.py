"""Caches found at a path, whatever their format: a v1 file, a directory of rank files, a v2 store."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from autotune_planner.cache.files import read_cache_file, unreadable
from autotune_planner.cache.timings import Measured, Timings, read_timings
from autotune_planner.cache.v1 import Entry, V1File, read_v1
from autotune_planner.cache.v2 import ENTRIES, MANIFEST, SCHEMA, Miss, read_v2
from autotune_planner.errors import CacheFileError, UsageError

_RANK_PART = re.compile(r"(tp|pp|dp)(\d+)")


@dataclass(frozen=True)
class Place:
    """Where one content lies: v1 files of equal bytes, or one environment's directory of a v2 store."""

    format: Literal["v1", "v2"]
    files: tuple[Path, ...]

    @property
    def directory(self) -> Path:
        """Where the journal of a run lies, if there is one."""
        return self.files[0] if self.format == "v2" else self.files[0].parent


@dataclass(frozen=True)
class Content:
    """Entries, environment stamp and measured times of one place.

    ``metadata`` is None without a stamp. ``misses`` and ``lazy`` are of a v2 store, ``records`` of a v1 file: see
    ``V2Store`` and ``V1File``.
    """

    place: Place
    metadata: Mapping[str, Any] | None
    entries: tuple[Entry, ...]
    records: Mapping[str, Any] = field(default_factory=dict)
    misses: tuple[Miss, ...] = ()
    lazy: int = 0
    timings: Timings = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The file or directory that stands for the content."""
        return self.place.files[0]

    def time_us(self, entry: Entry) -> float | None:
        """Measured time of one of the entries in microseconds, None where no journal has it."""
        measured = self._measured(entry)
        return measured.time_us(entry) if measured else None

    def fallback_us(self, entry: Entry) -> float | None:
        """Measured time of the fallback tactic -1 for the entry's profile, in microseconds."""
        measured = self._measured(entry)
        return measured.fallback_us if measured else None

    def _measured(self, entry: Entry) -> Measured | None:
        return self.timings.get(entry.text)


def places_at(path: Path) -> list[Place]:
    """Every content at a path, rank files grouped by equal bytes. ``UsageError`` where there is none."""
    if not os.path.isdir(path):
        return [Place("v1", (path,))]
    stores = _stores(path)
    return [Place("v2", (store,)) for store in stores] if stores else grouped(_json_files(path))


def grouped(files: Sequence[Path]) -> list[Place]:
    """v1 files by equal bytes."""
    groups: defaultdict[bytes, list[Path]] = defaultdict(list)
    for file in files:
        groups[read_cache_file(file)].append(file)
    return [Place("v1", tuple(same)) for same in groups.values()]


def read_content(place: Place) -> Content:
    """Read one place. ``CacheFileError`` for a v1 file that FlashInfer could not read; a v2 store only has misses."""
    path = place.files[0]
    if place.format == "v2":
        store = read_v2(path)
        times = read_timings(place.directory, store.metadata)
        return Content(place, store.metadata, store.entries, {}, store.misses, store.lazy, times)
    return v1_content(place, read_v1(path))


def v1_content(place: Place, file: V1File) -> Content:
    """The content of a v1 file that is read already. ``CacheFileError`` names the file of a text that is no key."""
    for entry in file.entries:
        try:
            entry.key  # noqa: B018 - parsed here, once
        except CacheFileError as error:
            error.where = str(place.files[0])
            raise
    times = read_timings(place.directory, file.metadata)
    return Content(place, file.metadata, file.entries, file.records, timings=times)


def content_at(path: Path) -> Content:
    """The one content at a path. ``UsageError`` names the choice where there are several."""
    places = places_at(path)
    if len(places) > 1:
        kind = "v2 stores" if places[0].format == "v2" else "rank files"
        raise UsageError(
            f"{path} holds {len(places)} {kind} that differ",
            code="ranks-differ",
            where=str(path),
            hint=f"give one of them: {places[0].files[0]}",
        )
    return read_content(places[0])


def rank_of(name: str) -> dict[str, int]:
    """``tp``, ``pp`` and ``dp`` of a rank file's name, as far as the name has them."""
    return {part: int(number) for part, number in _RANK_PART.findall(name)}


def rank_order(path: Path) -> tuple[list[int], str]:
    """Sort key of rank files: by the numbers in their names."""
    return [int(number) for number in re.findall(r"\d+", path.stem)], path.name


def _stores(path: Path) -> list[Path]:
    """Environments of a v2 store whose root, schema folder or only environment ``path`` is."""
    if os.path.isdir(path / ENTRIES):
        return [path]
    if path.name == ENTRIES and os.path.isfile(path.parent / MANIFEST):
        return [path.parent]
    schema = path / SCHEMA if os.path.isdir(path / SCHEMA) else path
    return sorted(entries.parent for entries in schema.glob(f"*/{ENTRIES}") if entries.is_dir())


def _json_files(path: Path) -> list[Path]:
    try:
        names = os.listdir(path)
    except OSError as error:
        raise unreadable("directory", path, error) from None
    named = [path / name for name in names if name.endswith(".json") and name != MANIFEST]
    files = [file for file in named if os.path.exists(file) and not os.path.isdir(file)]
    if not files:
        below = next(path.rglob("rank_*.json"), None)
        raise UsageError(
            "the directory holds no *.json file",
            code="no-such-file",
            where=str(path),
            hint=f"autotune-plan show {below.parent}"
            if below
            else "give the directory of the rank files or of a v2 store, or a deployment file (.yaml)",
        )
    return sorted(files, key=rank_order)
