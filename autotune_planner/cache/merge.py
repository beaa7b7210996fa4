"""Union of cache entries that were made apart, refused where they contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from autotune_planner.cache.v1 import Entry, V1File
from autotune_planner.errors import CacheFileError


def merge_files(files: Mapping[str, V1File]) -> V1File:
    """Union of v1 files, given by the names that errors are to show.

    ``CacheFileError`` if two stamps differ, naming the fields, or if two files contradict each other as in
    :func:`merged`. Raises ``ValueError`` for no files at all.
    """
    if not files:
        raise ValueError("nothing to merge")
    first, *others = files
    for other in others:
        _demand_equal_metadata(first, files[first], other, files[other])
        _demand_equal_records(first, files[first], other, files[other])
    names = {id(entry): name for name, file in files.items() for entry in file.entries}
    entries = _union(chain.from_iterable(file.entries for file in files.values()), names)
    return V1File(files[first].metadata, tuple(entries[text] for text in sorted(entries)), files[first].records, None)


def merged(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Entries by key text, one per (custom op, profile, extras).

    ``CacheFileError`` for one key with two values, and for one profile tuned under two runners: FlashInfer serves
    whichever runner its op lists first, so the other entry would be dead weight or a shadow.
    """
    return _union(entries, {})


def metadata_differences(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> dict[str, tuple[str | None, str | None]]:
    """Fields of two environment stamps that are not equal: field -> (first, second). None where a field is absent."""
    fields = [*first, *(field for field in second if field not in first)]
    return {field: (first.get(field), second.get(field)) for field in fields if first.get(field) != second.get(field)}


def _union(entries: Iterable[Entry], names: Mapping[int, str]) -> dict[str, Entry]:
    by_text: dict[str, Entry] = {}
    by_profile: dict[object, Entry] = {}
    for entry in entries:
        known = by_text.get(entry.text)
        if known is not None and known != entry:
            raise _conflict(known, entry, names)
        key = entry.key
        other = by_profile.setdefault((key.custom_op, key.profile), entry)
        if other.runner != entry.runner:
            raise _conflict(other, entry, names)
        by_text.setdefault(entry.text, entry)
    return by_text


def _demand_equal_metadata(first_name: str, first: V1File, second_name: str, second: V1File) -> None:
    differences = metadata_differences(first.metadata or {}, second.metadata or {})
    if differences or (first.metadata is None) != (second.metadata is None):
        fields = "; ".join(f"{field}: {a} and {b}" for field, (a, b) in differences.items()) or "one has no stamp"
        raise CacheFileError(
            f"{first_name} and {second_name} were tuned in different environments ({fields})",
            code="metadata-mismatch",
            where=second_name,
            hint="tune both in the server's own image, on the same GPU model",
        )


def _demand_equal_records(first_name: str, first: V1File, second_name: str, second: V1File) -> None:
    if first.records != second.records:
        raise CacheFileError(
            f"{first_name} and {second_name} hold different _records, which have no union",
            code="cache-conflict",
            where=second_name,
            hint="keep one of the files as the server wrote it",
        )


def _conflict(first: Entry, second: Entry, names: Mapping[int, str]) -> CacheFileError:
    return CacheFileError(
        f"two results for one profile, {_result(first, names)} and {_result(second, names)}: {second.text}",
        code="cache-conflict",
        where=names.get(id(second)),
        hint="tune again from the start: autotune-plan run --fresh",
    )


def _result(entry: Entry, names: Mapping[int, str]) -> str:
    place = f" ({names[id(entry)]})" if id(entry) in names else ""
    policy = "" if entry.policy is None else f" {' '.join(map(str, entry.policy[1::2]))}"
    return f"{entry.runner} {entry.tactic}{policy}{place}"
