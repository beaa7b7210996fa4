"""FlashInfer's v2 managed store: a directory for every environment, one small JSON file for every entry.

Source: FlashInfer 0.7.2, ``autotune_cache.py``: ``ManagedAutotuneCache``. Its layout is

    <root>/v2/<environment hash>/manifest.json           the environment stamp and {"cache_schema": "v2"}
    <root>/v2/<environment hash>/entries/<key hash>.json  {"key", "runner", "tactic", "profiling_policy", "key_fields"}

FlashInfer computes the hash of its own environment and never reads the manifest, so that an environment is served by
the directory's name alone. An entry that is damaged, or does not hold the key that its name is the hash of, is a miss
there and here, and never an error. An entry whose ``key_fields`` do not agree with its key is not preloaded when a
server attaches the store; it is looked up when its shape first comes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from autotune_planner.cache.files import read_regular
from autotune_planner.cache.keys import CacheKey, Opaque
from autotune_planner.cache.v1 import Entry
from autotune_planner.errors import CacheFileError, UsageError
from autotune_planner.json_text import parse_json

SCHEMA = "v2"
MANIFEST = "manifest.json"
ENTRIES = "entries"

_SCHEMA_FIELD = "cache_schema"
_DTYPE = re.compile(r"torch\.(\w+)")
_NOT_ENCODABLE = object()
_Encoded = dict[int, tuple[Any, Any]]  # extras and their form, by identity: equal extras of a store are one object
_READERS, _BATCH = 8, 256  # threads, and files that one of them reads in a row
_USUAL = 1 << 16  # bytes that an entry is smaller than


@dataclass(frozen=True)
class Miss:
    """A file among the entries that serves no lookup, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class V2Store:
    """One environment's directory, entries in the order of their file names.

    ``metadata`` is the environment stamp without the schema, None where the manifest is missing or not the one that
    the directory is named after. ``lazy`` counts the entries that are served but not preloaded.
    """

    directory: Path
    metadata: Mapping[str, Any] | None
    entries: tuple[Entry, ...]
    misses: tuple[Miss, ...]
    lazy: int


def environment_hash(metadata: Mapping[str, Any]) -> str:
    """Name of an environment's directory: 16 hex digits of the SHA-256 of its manifest."""
    manifest = {**metadata, _SCHEMA_FIELD: SCHEMA}
    return hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def environment_directory(root: Path, metadata: Mapping[str, Any]) -> Path:
    """Where FlashInfer looks below a cache root in this environment."""
    return root / SCHEMA / environment_hash(metadata)


def entry_name(key: str) -> str:
    """File name of an entry. ``UnicodeEncodeError`` for a text that no key can have (a lone surrogate)."""
    return f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def read_v2(directory: Path) -> V2Store:
    """Read one environment's directory. ``UsageError`` where it cannot be listed; all else is a miss."""
    found: dict[str, Entry] = {}
    misses: list[Miss] = []
    lazy = 0
    encoded: _Encoded = {}
    for path, content in _contents(_entry_files(directory)):
        try:
            entry, preloads = _entry_of(path, content, encoded)
        except (OSError, ValueError, CacheFileError) as error:
            misses.append(Miss(Path(path), _reason(error)))
        else:
            found[path] = entry
            lazy += not preloads
    entries = tuple(found[path] for path in sorted(found))
    misses.sort(key=lambda miss: miss.path)
    return V2Store(directory, _read_manifest(directory), entries, tuple(misses), lazy)


def render_v2(metadata: Mapping[str, Any] | None, entries: Mapping[str, Entry]) -> dict[str, bytes]:
    """Files of a store by their names below the cache root, as FlashInfer itself writes them.

    ``CacheFileError`` for a stamp or a key that no v2 lookup could ever ask for.
    """
    if not metadata or "*" in metadata.values():
        raise CacheFileError(
            "a v2 store needs the whole environment stamp, without wildcards: its directory is named after it",
            code="no-environment",
            hint="write a v1 file instead: -o NAME.json",
        )
    place = f"{SCHEMA}/{environment_hash(metadata)}"
    files = {f"{place}/{MANIFEST}": _render({**metadata, _SCHEMA_FIELD: SCHEMA})}
    for text, entry in entries.items():
        files[f"{place}/{ENTRIES}/{entry_name(text)}"] = _render(_entry_document(entry))
    return files


def key_fields(key: CacheKey) -> Any:
    """The structural form of a key in an entry, None where an extra has none (an enum, say)."""
    return _key_fields(key, _encoded(key.extras or ()))


def _key_fields(key: CacheKey, extras: Any) -> Any:
    if extras is _NOT_ENCODABLE:
        return None
    profile = _as_tuple([_as_tuple(list(shape)) for shape in key.profile])
    return _as_tuple([key.custom_op, key.runner, profile, extras])


def _entry_files(directory: Path) -> list[os.DirEntry[str]]:
    """In the order in which they lie on the disk, as far as their numbers tell."""
    try:
        with os.scandir(directory / ENTRIES) as found:
            return sorted((item for item in found if item.name.endswith(".json")), key=os.DirEntry.inode)
    except OSError as error:
        raise UsageError(
            f"not an environment of a v2 store: {error.strerror}",
            code="no-such-store",
            where=str(directory),
            hint="give the store's root, or one of its environments",
        ) from None


def _contents(files: Sequence[os.DirEntry[str]]) -> Iterator[tuple[str, bytes | OSError]]:
    """Each path with its bytes, or why it has none.

    Read ahead by threads: a hundred thousand small files that are not in memory wait for the disk one by one.
    """
    with ThreadPoolExecutor(_READERS) as readers:
        batches = (files[start : start + _BATCH] for start in range(0, len(files), _BATCH))
        ahead = deque(readers.submit(_read_batch, batch) for batch in islice(batches, 2 * _READERS))
        while ahead:
            yield from ahead.popleft().result()
            ahead.extend(readers.submit(_read_batch, batch) for batch in islice(batches, 1))


def _read_batch(files: Iterable[os.DirEntry[str]]) -> list[tuple[str, bytes | OSError]]:
    return [(file.path, _bytes_of(file)) for file in files]


def _bytes_of(file: os.DirEntry[str]) -> bytes | OSError:
    try:
        if not file.is_file():  # known from the directory: no call for each file
            return OSError(errno.EINVAL, "not a regular file")
        descriptor = os.open(file.path, os.O_RDONLY)
        try:  # in one call as a rule: a file object would make three
            start = os.read(descriptor, _USUAL)
            return start if len(start) < _USUAL else start + b"".join(iter(partial(os.read, descriptor, _USUAL), b""))
        finally:
            os.close(descriptor)
    except OSError as error:
        return error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return getattr(error, "message", None) or str(error) or type(error).__name__


def _entry_of(path: str, raw: bytes | OSError, encoded: _Encoded) -> tuple[Entry, bool]:
    """An entry, and whether FlashInfer preloads it. ``ValueError`` or ``OSError`` says why it is a miss."""
    if isinstance(raw, OSError):
        raise raw
    content = parse_json(raw)
    if not isinstance(content, dict):
        raise ValueError("holds no object")
    text, runner = content.get("key"), content.get("runner")
    if not isinstance(text, str) or not isinstance(runner, str) or "tactic" not in content:
        raise ValueError("holds no key, runner and tactic")
    if entry_name(text) != os.path.basename(path):
        raise ValueError("does not hold the key that its name is the hash of")
    policy = content.get("profiling_policy")
    entry = Entry(text, runner, content["tactic"], tuple(policy) if isinstance(policy, list) else None)
    extras = entry.key.extras
    if extras is None:
        raise ValueError("holds a key of three elements, which is never looked up")
    if id(extras) not in encoded:
        encoded[id(extras)] = extras, _encoded(extras)
    fields = _key_fields(entry.key, encoded[id(extras)][1])
    return entry, fields is not None and content.get("key_fields") == fields


def _read_manifest(directory: Path) -> Mapping[str, Any] | None:
    try:
        manifest = parse_json(read_regular(directory / MANIFEST))
    except (OSError, ValueError):
        return None
    if not isinstance(manifest, dict) or manifest.pop(_SCHEMA_FIELD, None) != SCHEMA:
        return None
    return manifest if environment_hash(manifest) == directory.resolve().name else None


def _entry_document(entry: Entry) -> dict[str, Any]:
    key = entry.key
    if key.extras is None:
        raise CacheFileError(
            f"a v2 store never serves a key of three elements, the form of before 0.6.13: {entry.text[:160]}",
            code="cache-key",
            hint="tune again with the server's FlashInfer: autotune-plan run FILE",
        )
    document: dict[str, Any] = {"key": entry.text, "runner": entry.runner, "tactic": entry.tactic}
    if entry.policy is not None:
        document["profiling_policy"] = list(entry.policy)
    fields = key_fields(key)
    if fields is not None:
        document["key_fields"] = fields
    return document


def _render(value: Any) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode()


def _as_tuple(items: list[Any]) -> dict[str, Any]:
    return {"__tuple__": items}


def _encoded(value: Any) -> Any:
    if isinstance(value, tuple):
        items = [_encoded(item) for item in value]
        return _NOT_ENCODABLE if any(item is _NOT_ENCODABLE for item in items) else _as_tuple(items)
    if isinstance(value, Opaque):
        dtype = _DTYPE.fullmatch(value.text)
        return {"__dtype__": dtype.group(1)} if dtype else _NOT_ENCODABLE
    return value
