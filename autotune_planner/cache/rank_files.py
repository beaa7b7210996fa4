"""The files that the ranks of a server open, read once each and never changed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune_planner.cache import sglang_layout
from autotune_planner.cache.files import read_regular, readable_hint
from autotune_planner.cache.tactics import Doubt, doubts_of
from autotune_planner.cache.timings import read_candidates
from autotune_planner.cache.v1 import V1File, parse_v1
from autotune_planner.engines.resolved import CachePlace, Rank
from autotune_planner.errors import CacheFileError
from autotune_planner.json_text import parse_json

_NAMES = ("_metadata", "_records", "_generation")
_NEIGHBOURS = 5


@dataclass(frozen=True)
class FileContent:
    """A file that FlashInfer can read. ``intact`` compares its ``_generation`` with the rest; None without one.

    ``notes`` are names such as ``_last_updated_by``, of older writers, that FlashInfer 0.7.2 takes for entries: it
    raises for them, but only if the stamp lets it come so far. ``doubts`` are entries whose tactic no tuner chose.
    """

    file: V1File
    intact: bool | None
    notes: tuple[str, ...]
    doubts: tuple[Doubt, ...] = ()


@dataclass(frozen=True)
class RankFile:
    """What is at one rank's path: ``content``, or ``problem`` where it cannot be loaded, or neither where it is absent.

    ``remedy`` is what to do about a file that could not be read here, which says nothing of what it holds.
    ``digest`` tells whether the server takes two ranks' files for the same: the SHA-256 of the JSON content, empty
    where there is no JSON object. Source: SGLang 0.5.23, ``flashinfer_autotune._autotune_cache_digest``, which adds
    each rank's environment.
    """

    rank: Rank
    path: Path
    digest: str = ""
    content: FileContent | None = None
    problem: str | None = None
    remedy: str | None = None

    @property
    def absent(self) -> bool:
        return self.content is None and self.problem is None


def read_rank_files(place: CachePlace) -> tuple[RankFile, ...]:
    """The file of every rank of a place, in the order of its ranks. Equal files are parsed once."""
    read: dict[bytes, RankFile] = {}
    found = []
    for rank in place.ranks:
        path = sglang_layout.rank_file(place, rank)
        try:
            raw = read_regular(path)
        except (FileNotFoundError, NotADirectoryError):
            found.append(RankFile(rank, path))
            continue
        except OSError as error:
            problem = f"cannot be read: {error.strerror or error}"
            found.append(RankFile(rank, path, problem=problem, remedy=readable_hint(path, error)))
            continue
        same = read.get(raw) or _read(rank, path, raw)
        read[raw] = same
        found.append(RankFile(rank, path, same.digest, same.content, same.problem))
    return tuple(found)


def neighbours(place: CachePlace) -> tuple[Path, ...]:
    """Other directories below the same root that hold rank files: of another model path, flags or FlashInfer."""
    own = sglang_layout.cache_directory(place)
    others = {path.parent for path in own.parents[2].glob("*/*/*/rank_*.json")} - {own}
    return tuple(sorted(others)[:_NEIGHBOURS])


def _read(rank: Rank, path: Path, raw: bytes) -> RankFile:
    content = _json_object(raw)
    digest = "" if content is None else _sha256(json.dumps(content, sort_keys=True))
    try:
        file = parse_v1(raw, path)
    except CacheFileError as error:
        return RankFile(rank, path, digest, problem=error.message.removeprefix("the cache file "))
    assert content is not None  # or it would not have been read
    notes = tuple(name for name, value in content.items() if name.startswith("_") and not _is_taken(name, value))
    doubts = doubts_of(file.entries, read_candidates(path.parent, file.metadata))
    return RankFile(rank, path, digest, FileContent(file, _is_intact(content), notes, doubts))


def _json_object(raw: bytes) -> dict[str, Any] | None:
    """What the server takes a file for when it compares ranks; None counts as no file."""
    try:
        content = parse_json(raw)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _is_intact(content: dict[str, Any]) -> bool | None:
    """Source: FlashInfer 0.7.2, ``AutoTuner.save_configs``, which writes this digest and compares it nowhere."""
    generation = content.get("_generation")
    if not isinstance(generation, str):
        return None
    rest = {name: value for name, value in content.items() if name != "_generation"}
    return _sha256(json.dumps(rest, sort_keys=True, separators=(",", ":"))) == generation


def _is_taken(name: str, value: Any) -> bool:
    """Whether ``load_configs`` gets past a name that is no key: it takes the first two items of the value."""
    return name in _NAMES or (isinstance(value, list | str) and len(value) > 1 and isinstance(value[0], str))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
