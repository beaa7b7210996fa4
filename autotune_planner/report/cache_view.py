"""``show`` for people and scripts: the ``autotune-plan/cache@1`` document and its tables."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import ConsoleRenderable, Group
from rich.table import Table
from rich.text import Text

from autotune_planner.cache.v1 import Entry, V1File

SCHEMA = "autotune-plan/cache@1"


def cache_document(path: Path, file: V1File) -> dict[str, Any]:
    """One v1 file. Values that a v1 file does not hold (times) are null."""
    return {
        "schema": SCHEMA,
        "format": "v1",
        "path": str(path),
        "metadata": dict(file.metadata or {}),
        "entries": [_entry_document(entry) for entry in file.entries],
    }


def cache_view(path: Path, file: V1File, ranks: Iterable[Path] = ()) -> Group:
    """A table for every op and layer shape, buckets ascending."""
    names = [rank.name for rank in ranks]
    parts: list[ConsoleRenderable] = [Text(f"{path}", style="bold")]
    if names:
        parts.append(Text(f"  {len(names)} identical rank files: {' '.join(names)}"))
    parts.append(_stamp(file))
    for (op, shapes), entries in groupby(sorted(file.entries, key=_order), key=_table_key):
        parts += [Text(), _table(op, shapes, list(entries))]
    if not file.entries:
        parts.append(Text("  no entries: the server would tune everything at start"))
    return Group(*parts)


def _entry_document(entry: Entry) -> dict[str, Any]:
    key = entry.key
    return {
        "key": entry.text,
        "custom_op": key.custom_op,
        "runner": entry.runner,
        "profile": [list(shape) for shape in key.profile],
        "bucket": key.bucket,
        "extras": None if key.extras is None else [_plain(extra) for extra in key.extras],
        "tactic": entry.tactic,
        "policy": _policy_document(entry.policy),
        "time_us": None,
        "fallback_us": None,
    }


def _plain(value: Any) -> Any:
    """A JSON value of an extra: FlashInfer's own objects as their text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value)


def _policy_document(policy: tuple[Any, ...] | None) -> dict[str, Any] | None:
    return None if policy is None else dict(zip(policy[::2], policy[1::2], strict=False))


def _stamp(file: V1File) -> Text:
    if file.metadata is None:
        return Text("  no environment stamp: FlashInfer loads it unchecked")
    return Text("".join(f"  {field}: {value}\n" for field, value in file.metadata.items()).rstrip("\n"))


def _table_key(entry: Entry) -> tuple[str, str]:
    key = entry.key
    return key.custom_op, " ".join("x".join(map(str, shape)) for shape in key.static_shapes if shape not in ((0,), ()))


def _order(entry: Entry) -> tuple[tuple[str, str], int, str]:
    return _table_key(entry), entry.key.bucket, entry.text


def _table(op: str, shapes: str, entries: list[Entry]) -> Table:
    table = Table(
        title=f"{op}  {shapes}  ({len(entries)} buckets)",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 3, 0, 0),
    )
    table.add_column("bucket", justify="right")
    table.add_column("runner")
    table.add_column("tactic")
    table.add_column("policy")
    for entry in entries:
        tactic = "default (-1)" if entry.tactic == -1 else str(entry.tactic)
        table.add_row(str(entry.key.bucket), entry.runner, tactic, _policy_text(entry.policy))
    return table


def _policy_text(policy: tuple[Any, ...] | None) -> str:
    fields = _policy_document(policy)
    if fields is None:
        return "not recorded"
    replays = fields.get("cuda_graph_profile_replays")
    return f"{fields.get('l2_cache_policy')} L2, {'no graph' if replays is None else f'graph x {replays}'}"
