"""``show`` for scripts: the ``autotune-plan/cache@1`` document, and the same entries as CSV."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from typing import Any

from autotune_planner.cache.contents import Content
from autotune_planner.cache.keys import Opaque
from autotune_planner.json_text import json_line, json_text
from autotune_planner.report.entry_text import gain_of, policy_document, policy_text, printable

SCHEMA = "autotune-plan/cache@1"

_CSV_HEADER = (
    "path", "custom_op", "bucket", "runner", "tactic", "policy", "time_us", "fallback_us", "gain", "key",
)  # fmt: skip


def cache_document(content: Content) -> dict[str, Any]:
    """One content. Times are null where no journal beside it has them; ``misses`` are those of a v2 store."""
    return {**_head(content), "entries": list(_entry_documents(content))}


def cache_json(content: Content) -> Iterator[str]:
    """The document as lines of JSON, one entry per line: a cache can hold a hundred thousand."""
    yield f'{json_text(_head(content))[:-2]},\n  "entries": ['
    last = len(content.entries) - 1
    for index, document in enumerate(_entry_documents(content)):
        yield f"    {json_line(document)}{',' if index < last else ''}"
    yield "  ]\n}"


def cache_csv(contents: Iterable[Content]) -> Iterator[str]:
    """A header, then a line for every entry. ``gain`` is the fallback's time over the entry's own."""
    line = csv.writer(_Lines(), lineterminator="").writerow
    yield line(_CSV_HEADER)
    for content in contents:
        path = str(content.path)
        for entry in content.entries:
            time, fallback = content.time_us(entry), content.fallback_us(entry)
            gain = gain_of(time, fallback)
            yield line(
                (
                    path,
                    entry.key.custom_op,
                    entry.key.bucket,
                    printable(entry.runner),
                    json_line(entry.tactic),
                    policy_text(entry.policy),
                    time,
                    fallback,
                    None if gain is None else round(gain, 4),
                    entry.text,
                )
            )


def _head(content: Content) -> dict[str, Any]:
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "format": content.place.format,
        "path": str(content.path),
        "metadata": dict(content.metadata or {}),
    }
    if content.place.format == "v2":
        head["misses"] = [{"path": str(miss.path), "reason": miss.reason} for miss in content.misses]
    return head


def _entry_documents(content: Content) -> Iterator[dict[str, Any]]:
    plain: dict[int, Any] = {}  # by identity: equal extras of a cache are one object, and few
    for entry in content.entries:
        key = entry.key
        if id(key.extras) not in plain:
            plain[id(key.extras)] = _plain(key.extras)
        yield {
            "key": entry.text,
            "custom_op": key.custom_op,
            "runner": entry.runner,
            "profile": list(map(list, key.profile)),
            "bucket": key.bucket,
            "extras": plain[id(key.extras)],
            "tactic": entry.tactic,
            "policy": policy_document(entry.policy),
            "time_us": content.time_us(entry),
            "fallback_us": content.fallback_us(entry),
        }


def _plain(value: Any) -> Any:
    """A JSON value of an extra: FlashInfer's own objects as their text."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.text if isinstance(value, Opaque) else value


class _Lines:
    """A file whose ``write`` gives the line back, and so does ``writerow``."""

    def write(self, line: str) -> str:
        return line
