"""Union of cache entries that were made apart, refused where they contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune_planner.cache.conflicts import Conflict, Contender, union
from autotune_planner.cache.contents import Content
from autotune_planner.cache.v1 import Entry, V1File
from autotune_planner.errors import CacheFileError


@dataclass(frozen=True)
class Merged:
    """``file`` is the union, keys sorted; ``resolved`` are the conflicts that measured times decided."""

    file: V1File
    resolved: tuple[Conflict, ...]


def merge(contents: Mapping[str, Content]) -> Merged:
    """Union of caches of one environment and one form of keys, given by the names that errors are to show.

    There is one entry for each key, and the runners of an (op, profile) are those that every cache has for it. Of
    results that contradict each other the measured fastest stands, if all were measured. ``CacheFileError`` otherwise,
    with a table of the conflicts; also if two stamps differ, naming the fields, or keys of three elements meet keys of
    four. ``ValueError`` for nothing at all.
    """
    if not contents:
        raise ValueError("nothing to merge")
    (first_name, first), *others = contents.items()
    for name, other in others:
        _demand_equal_metadata(first_name, first, name, other)
        _demand_equal_records(first_name, first, name, other)
    _demand_one_form(contents)
    entries, resolved = union(
        Contender(name, entry, content.time_us(entry))
        for name, content in contents.items()
        for entry in content.entries
    )
    file = V1File(first.metadata, tuple(entries[text] for text in sorted(entries)), first.records, None)
    return Merged(file, resolved)


def merged(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Entries by key text as they are published for servers, one per (custom op, profile, extras).

    ``CacheFileError`` for one key with two values, and for one profile tuned under two runners: FlashInfer serves
    whichever runner its op lists first, so the other entry would be dead weight or a shadow.
    """
    return union((Contender(None, entry, None) for entry in entries), one_runner=True)[0]


def metadata_differences(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> dict[str, tuple[str | None, str | None]]:
    """Fields of two environment stamps that are not equal: field -> (first, second). None where a field is absent."""
    fields = [*first, *(field for field in second if field not in first)]
    return {field: (first.get(field), second.get(field)) for field in fields if first.get(field) != second.get(field)}


def _demand_equal_metadata(first_name: str, first: Content, second_name: str, second: Content) -> None:
    differences = metadata_differences(first.metadata or {}, second.metadata or {})
    if differences or (first.metadata is None) != (second.metadata is None):
        fields = "; ".join(f"{field}: {a} and {b}" for field, (a, b) in differences.items()) or "one has no stamp"
        raise CacheFileError(
            f"{first_name} and {second_name} were tuned in different environments ({fields})",
            code="metadata-mismatch",
            where=second_name,
            hint="tune both in the server's own image, on the same GPU model",
        )


def _demand_equal_records(first_name: str, first: Content, second_name: str, second: Content) -> None:
    if first.records != second.records:
        raise CacheFileError(
            f"{first_name} and {second_name} hold different _records, which have no union",
            code="cache-conflict",
            where=second_name,
            hint="keep one of the files as the server wrote it",
        )


def _demand_one_form(contents: Mapping[str, Content]) -> None:
    """Keys of three elements leave out what a choice depends on; no FlashInfer asks for both forms."""
    found = {
        entry.key.extras is None: (name, entry.text) for name, content in contents.items() for entry in content.entries
    }
    if len(found) > 1:
        (old, key), (new, _) = found[True], found[False]
        raise CacheFileError(
            f"{old} has keys of before FlashInfer 0.6.13, without extras, and {new} has keys with them: {key[:160]}",
            code="formats-mixed",
            where=old,
            hint="tune again with the server's FlashInfer: autotune-plan run FILE",
        )
