"""Union of cache entries that were made apart, refused where they contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    entries = _union((name, entry) for name, file in files.items() for entry in file.entries)
    return V1File(files[first].metadata, tuple(entries[text] for text in sorted(entries)), files[first].records, None)


def merged(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Entries by key text, one per (custom op, profile, extras).

    ``CacheFileError`` for one key with two values, and for one profile tuned under two runners: FlashInfer serves
    whichever runner its op lists first, so the other entry would be dead weight or a shadow.
    """
    return _union((None, entry) for entry in entries)


def metadata_differences(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> dict[str, tuple[str | None, str | None]]:
    """Fields of two environment stamps that are not equal: field -> (first, second). None where a field is absent."""
    fields = [*first, *(field for field in second if field not in first)]
    return {field: (first.get(field), second.get(field)) for field in fields if first.get(field) != second.get(field)}


_Named = tuple[str | None, Entry]  # an entry and the file that holds it


def _union(entries: Iterable[_Named]) -> dict[str, Entry]:
    by_text: dict[str, _Named] = {}
    by_profile: dict[object, _Named] = {}
    for name, entry in entries:
        same_key = by_text.setdefault(entry.text, (name, entry))
        if same_key[1] != entry:
            raise _conflict(same_key, (name, entry))
        key = entry.key
        same_profile = by_profile.setdefault((key.custom_op, key.profile), (name, entry))
        if same_profile[1].runner != entry.runner:
            raise _conflict(same_profile, (name, entry))
    return {text: entry for text, (_, entry) in by_text.items()}


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


def _conflict(first: _Named, second: _Named) -> CacheFileError:
    return CacheFileError(
        f"two results for one profile, {_result(first)} and {_result(second)}: {second[1].text}",
        code="cache-conflict",
        where=second[0],
        hint="tune again from the start: autotune-plan run --fresh",
    )


def _result(named: _Named) -> str:
    name, entry = named
    policy = "" if entry.policy is None else f", {' '.join(map(str, entry.policy[1::2]))}"
    return f"{entry.runner} {entry.tactic}{policy}" + (f" in {name}" if name else "")
