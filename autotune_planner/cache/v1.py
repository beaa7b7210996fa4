"""FlashInfer's v1 cache file: one flat JSON object, key text -> [runner, tactic, policy].

Source: FlashInfer 0.7.2, ``autotuner/autotuner.py``: ``AutoTuner.save_configs`` and ``load_configs``. Names that begin
with an underscore are not entries: ``_metadata`` (the environment stamp), ``_records`` (of other FlashInfer products),
``_generation`` (a digest of all the rest), and notes such as ``_last_updated_by`` of older writers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune_planner.cache.files import read_cache_file
from autotune_planner.cache.keys import CacheKey, parse_key
from autotune_planner.errors import CacheFileError
from autotune_planner.json_text import parse_json
from autotune_planner.values import lazy

TUNE_AGAIN = "delete it and tune again: autotune-plan run FILE"

_METADATA, _RECORDS, _GENERATION = "_metadata", "_records", "_generation"


@dataclass(frozen=True)
class Entry:
    """One tuned profile. ``policy`` is how it was measured, None in files from before 0.7."""

    text: str
    runner: str
    tactic: Any
    policy: tuple[Any, ...] | None

    @lazy
    def key(self) -> CacheKey:
        """The parsed key. ``CacheFileError`` if the text is no key."""
        return parse_key(self.text)

    def value(self) -> list[Any]:
        """The JSON value of the entry in a file."""
        return [self.runner, self.tactic] if self.policy is None else [self.runner, self.tactic, list(self.policy)]


@dataclass(frozen=True)
class V1File:
    """Content of one v1 file, entries in the file's order.

    ``metadata`` is None in a file without a stamp, which FlashInfer loads unchecked, and empty where the stamp is no
    object, which FlashInfer takes as one whose fields are all missing.
    """

    metadata: Mapping[str, Any] | None
    entries: tuple[Entry, ...]
    records: Mapping[str, Any]
    generation: str | None


def read_v1(path: Path) -> V1File:
    """Read a v1 file. ``UsageError`` where there is no file, ``CacheFileError`` where FlashInfer could not read it."""
    return parse_v1(read_cache_file(path), path)


def parse_v1(data: bytes, path: Path) -> V1File:
    """The content of a v1 file; ``path`` is what errors are to show. ``CacheFileError`` as of :func:`read_v1`."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _damaged(path, f"cannot be read: {error}") from None
    if not text.strip():
        raise _damaged(path, "is empty")
    try:
        content = parse_json(text)
    except json.JSONDecodeError as error:
        raise _damaged(path, f"is not JSON: {error.msg}", f"{error.lineno}:{error.colno}") from None
    except ValueError as error:  # nested too deeply, or an integer of more digits than Python reads
        raise _damaged(path, f"is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise _damaged(path, f"holds {_json_type(content)}, not an object of cache entries")
    metadata, records, generation = (content.pop(name, None) for name in (_METADATA, _RECORDS, _GENERATION))
    if not isinstance(records, dict | None):
        raise _damaged(path, f"holds {_json_type(records)} under {_RECORDS}, not an object")
    return V1File(
        metadata=metadata if isinstance(metadata, dict | None) else {},
        entries=tuple(entry_of(key, value, path) for key, value in content.items() if not key.startswith("_")),
        records=records or {},
        generation=generation if isinstance(generation, str) else None,
    )


def entry_of(text: str, value: Any, path: Path | None = None) -> Entry:
    """One entry from its JSON form: 2 elements before 0.7, 3 with the policy, 4 from 0.7.4 on."""
    if not (isinstance(value, list) and len(value) >= 2 and isinstance(value[0], str)):
        raise _damaged(path, f"holds a value that is not [runner, tactic, policy], under {text[:160]}")
    policy = value[2] if len(value) > 2 else None
    return Entry(text, value[0], value[1], tuple(policy) if isinstance(policy, list) else None)


def render_v1(
    metadata: Mapping[str, Any] | None, entries: Mapping[str, Entry], records: Mapping[str, Any] | None = None
) -> bytes:
    """Bytes of a v1 file as FlashInfer itself saves it: metadata first, keys sorted, ``_generation`` last."""
    ordered: dict[str, Any] = {} if metadata is None else {_METADATA: dict(metadata)}
    if records:
        ordered[_RECORDS] = dict(records)
    for key in sorted(entries):
        ordered[key] = entries[key].value()
    canonical = json.dumps(ordered, sort_keys=True, separators=(",", ":")).encode()
    ordered[_GENERATION] = hashlib.sha256(canonical).hexdigest()
    return json.dumps(ordered, indent=2).encode()


def _damaged(path: Path | None, what: str, position: str | None = None) -> CacheFileError:
    where = str(path) if path else None
    return CacheFileError(
        f"the cache file {what}",
        code="cache-file",
        where=f"{where}:{position}" if position else where,
        hint=TUNE_AGAIN,
    )


def _json_type(value: Any) -> str:
    names = {list: "a list", str: "a string", type(None): "null", bool: "a boolean"}
    return names.get(type(value), "a number")
