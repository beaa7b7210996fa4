"""``show`` for people: a table for every op and layer shape."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import ConsoleRenderable, Group
from rich.text import Text

from autotune_planner.cache.contents import Content
from autotune_planner.cache.v1 import Entry
from autotune_planner.report.cache_layers import layers_of
from autotune_planner.report.entry_text import gain_of, gain_text, policy_text, printable, tactic_text, time_text
from autotune_planner.report.rows import Rows

_HEADER = ("bucket", "runner", "tactic", "policy")
_TIMED_HEADER = (*_HEADER, "time", "gain")
_LISTED_MISSES = 10


def cache_view(content: Content) -> Group:
    """Tables with buckets ascending, with times where a journal has them. Lines are never shortened or wrapped."""
    parts: list[ConsoleRenderable] = [Text(f"{content.path}", style="bold")]
    names = [file.name for file in content.place.files]
    if len(names) > 1:
        parts.append(Text(f"  {len(names)} identical rank files: {' '.join(names)}"))
    parts.append(_stamp(content))
    parts += _store_notes(content)
    for layer in layers_of(content.entries):
        title = f"{layer.title}  ({layer.buckets} bucket{'s' if layer.buckets > 1 else ''})"
        parts += [Text(), Text(title, style="bold"), Rows(_table(content, layer.entries), right=(0,))]
    if not content.entries:
        parts.append(Text("  no entries: the server would tune everything at start"))
    return Group(*parts)


def _table(content: Content, entries: Iterable[Entry]) -> list[tuple[str, ...]]:
    """Header and rows; without the two columns of times where no entry has one."""
    if not content.timings:
        return [_HEADER, *map(_row, entries)]
    rows = [(*_row(entry), *_times(content, entry)) for entry in entries]
    return [_TIMED_HEADER, *rows] if any(row[-2:] != ("-", "-") for row in rows) else [_HEADER, *(r[:4] for r in rows)]


def _row(entry: Entry) -> tuple[str, ...]:
    return str(entry.key.bucket), printable(entry.runner), tactic_text(entry.tactic), policy_text(entry.policy)


def _times(content: Content, entry: Entry) -> tuple[str, str]:
    time = content.time_us(entry)
    return time_text(time), gain_text(gain_of(time, content.fallback_us(entry)))


def _stamp(content: Content) -> Text:
    if content.metadata is None:
        if content.place.format == "v2":
            return Text("  no manifest of this environment; FlashInfer goes by the directory's name alone")
        return Text("  no environment stamp: FlashInfer loads it unchecked")
    if not content.metadata:
        return Text("  an environment stamp without fields: FlashInfer ignores the file and replaces it")
    return Text("\n".join(printable(f"  {field}: {value}") for field, value in content.metadata.items()))


def _store_notes(content: Content) -> list[ConsoleRenderable]:
    notes: list[ConsoleRenderable] = []
    if content.lazy:
        count = "1 entry is" if content.lazy == 1 else f"{content.lazy} entries are"
        notes.append(Text(f"  {count} not preloaded, but read when the shape first comes"))
    if content.misses:
        count = "1 file serves" if len(content.misses) == 1 else f"{len(content.misses)} files serve"
        notes.append(Text(f"  {count} nothing; FlashInfer passes over:"))
        listed = content.misses[:_LISTED_MISSES]
        notes += [Text(printable(f"    {miss.path.name}: {miss.reason}")) for miss in listed]
        if len(content.misses) > len(listed):
            notes.append(Text(f"    and {len(content.misses) - len(listed)} more"))
    return notes
