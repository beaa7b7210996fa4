"""Union of cache entries that were made apart, refused where they contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autotune_planner.cache.v1 import Entry
from autotune_planner.errors import CacheFileError


def merged(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Entries by key text, one per (custom op, profile, extras).

    ``CacheFileError`` for one key with two values, and for one profile tuned under two runners: FlashInfer serves
    whichever runner its op lists first, so the other entry would be dead weight or a shadow.
    """
    by_text: dict[str, Entry] = {}
    by_profile: dict[object, Entry] = {}
    for entry in entries:
        known = by_text.get(entry.text)
        if known is not None and known != entry:
            raise _conflict(known, entry)
        key = entry.key
        other = by_profile.setdefault((key.custom_op, key.profile), entry)
        if other.runner != entry.runner:
            raise _conflict(other, entry)
        by_text[entry.text] = entry
    return by_text


def metadata_differences(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Fields of two environment stamps that are not equal: field -> (first, second). None where a field is absent."""
    fields = [*first, *(field for field in second if field not in first)]
    return {
        field: (first.get(field), second.get(field)) for field in fields if first.get(field) != second.get(field)
    }


def _conflict(first: Entry, second: Entry) -> CacheFileError:
    return CacheFileError(
        f"two results for one profile, {first.runner} {first.tactic} and {second.runner} {second.tactic}: {second.text}",
        code="cache-conflict",
        hint="tune again from the start: autotune-plan run --fresh",
    )
