"""``show`` for people and scripts: the ``autotune-plan/cache@1`` document and its tables."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group
from rich.segment import Segment
from rich.text import Text

from autotune_planner.cache.keys import CacheKey, Opaque, Profile
from autotune_planner.cache.v1 import Entry, V1File

SCHEMA = "autotune-plan/cache@1"

_HEADER = ("bucket", "runner", "tactic", "policy")
_Position = tuple[int, int]  # input and dimension, in a profile


def cache_document(path: Path, file: V1File) -> dict[str, Any]:
    """One v1 file. Values that a v1 file does not hold (times) are null."""
    return {
        "schema": SCHEMA,
        "format": "v1",
        "path": str(path),
        "metadata": dict(file.metadata or {}),
        "entries": [_entry_document(entry) for entry in file.entries],
    }


def cache_json(document: dict[str, Any]) -> str:
    """The document as JSON text, one entry per line: a cache can hold a hundred thousand."""
    head = json.dumps({name: value for name, value in document.items() if name != "entries"}, indent=2)
    entries = ",\n    ".join(map(json.dumps, document["entries"]))
    listed = f"[\n    {entries}\n  ]" if entries else "[]"
    return f'{head[:-2]},\n  "entries": {listed}\n}}'


def cache_view(path: Path, file: V1File, ranks: Iterable[Path] = ()) -> Group:
    """A table for every op and layer shape, buckets ascending. Lines are never shortened or wrapped."""
    names = [rank.name for rank in ranks]
    parts: list[ConsoleRenderable] = [Text(f"{path}", style="bold")]
    if names:
        parts.append(Text(f"  {len(names)} identical rank files: {' '.join(names)}"))
    parts.append(_stamp(file))
    for title, entries in _tables(file.entries):
        parts += [Text(), Text(title, style="bold"), _Rows(entries)]
    if not file.entries:
        parts.append(Text("  no entries: the server would tune everything at start"))
    return Group(*parts)


class _Layer(NamedTuple):
    """What all buckets of one layer share: a key without runner, with M in the place of the token count."""

    custom_op: str
    shapes: tuple[tuple[int | str, ...], ...]
    extras: tuple[Any, ...]

    @property
    def shape_text(self) -> str:
        """Inputs that the caller gives: not the absent ones, scalars, and those derived from M (-1)."""
        shapes = [shape for shape in self.shapes if shape not in ((), (0,)) and -1 not in shape]
        return f"{self.custom_op}  {' '.join('x'.join(map(str, shape)) for shape in shapes)}"


def _tables(entries: Iterable[Entry]) -> Iterator[tuple[str, list[Entry]]]:
    """Title and entries of every table, sorted by op and shapes; extras are shown where shapes alone do not tell."""
    layers = [(layer.shape_text, layer.extras, its_entries) for layer, its_entries in _layers(entries).items()]
    alike = Counter(shape for shape, _, _ in layers)
    named = [
        (f"{shape}  {extras}" if alike[shape] > 1 else shape, its_entries) for shape, extras, its_entries in layers
    ]
    for name, its_entries in sorted(named, key=lambda pair: pair[0]):
        count = len({entry.key.bucket for entry in its_entries})
        title = f"{name}  ({count} bucket{'s' if count > 1 else ''})"
        yield title, sorted(its_entries, key=lambda entry: (entry.key.bucket, entry.text))


def _layers(entries: Iterable[Entry]) -> dict[_Layer, list[Entry]]:
    """Entries by layer. What counts tokens in an op's keys is found from the keys: it equals M in all of them."""
    by_op: defaultdict[object, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_op[entry.key.custom_op, len(entry.key.extras or ())].append(entry)
    by_form: defaultdict[tuple[str, tuple[int, ...], tuple[Any, ...]], list[Entry]] = defaultdict(list)
    for of_op in by_op.values():
        positions = _token_extras([entry.key for entry in of_op])
        for entry in of_op:
            key = entry.key
            by_form[key.custom_op, tuple(map(len, key.profile)), _with_m(key.extras or (), positions)].append(entry)
    layers: defaultdict[_Layer, list[Entry]] = defaultdict(list)
    for (op, _, extras), form in by_form.items():
        dims = _token_dims([entry.key for entry in form])
        for entry in form:
            layers[_Layer(op, _shapes_with_m(entry.key.profile, dims), extras)].append(entry)
    return layers


def _token_extras(keys: list[CacheKey]) -> list[int]:
    """Positions in the extras that equal M in every one of ``keys``; none if all have one bucket, as by chance."""
    positions = [i for i, extra in enumerate(keys[0].extras or ()) if type(extra) is int]
    for key in keys:
        positions = [i for i in positions if (key.extras or ())[i] == key.bucket]
        if not positions:
            break
    return positions if len({key.bucket for key in keys}) > 1 else []


def _token_dims(keys: list[CacheKey]) -> list[_Position]:
    """Dimensions that equal M in every one of ``keys``; only the first input's rows if all have one bucket."""
    first = keys[0]
    if len({key.bucket for key in keys}) == 1:
        return [(0, first.token_dim)] if first.bucket else []
    dims = [(i, d) for i, shape in enumerate(first.profile) for d, size in enumerate(shape) if size == first.bucket]
    for key in keys:
        dims = [(i, d) for i, d in dims if key.profile[i][d] == key.bucket]
    return dims


def _with_m(extras: tuple[Any, ...], positions: list[int]) -> tuple[Any, ...]:
    if not positions:
        return extras
    return tuple(Opaque("M") if i in positions else extra for i, extra in enumerate(extras))


def _shapes_with_m(profile: Profile, dims: list[_Position]) -> tuple[tuple[int | str, ...], ...]:
    shapes: list[tuple[int | str, ...]] = list(profile)
    for i, d in dims:
        shapes[i] = (*shapes[i][:d], "M", *shapes[i][d + 1 :])
    return tuple(shapes)


class _Rows:
    """An aligned table as whole lines: Rich's own tables would shorten cells, and take seconds for large caches."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._rows = [_row(entry) for entry in entries]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        widths = [max(map(len, column)) for column in zip(_HEADER, *self._rows, strict=True)]
        line = f"{{:>{widths[0]}}}   {{:{widths[1]}}}   {{:{widths[2]}}}   {{}}\n".format
        yield Segment("".join(line(*row) for row in (_HEADER, *self._rows)))


def _row(entry: Entry) -> tuple[str, str, str, str]:
    tactic = "default (-1)" if entry.tactic == -1 else str(entry.tactic)
    return str(entry.key.bucket), entry.runner, tactic, _policy_text(entry.policy)


def _entry_document(entry: Entry) -> dict[str, Any]:
    key = entry.key
    return {
        "key": entry.text,
        "custom_op": key.custom_op,
        "runner": entry.runner,
        "profile": list(map(list, key.profile)),
        "bucket": key.bucket,
        "extras": None if key.extras is None else [_plain(extra) for extra in key.extras],
        "tactic": entry.tactic,
        "policy": _policy_document(entry.policy),
        "time_us": None,
        "fallback_us": None,
    }


def _plain(value: Any) -> Any:
    """A JSON value of an extra: FlashInfer's own objects as their text."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.text if isinstance(value, Opaque) else value


def _policy_document(policy: tuple[Any, ...] | None) -> dict[str, Any] | None:
    return None if policy is None else dict(zip(policy[::2], policy[1::2], strict=False))


def _policy_text(policy: tuple[Any, ...] | None) -> str:
    fields = _policy_document(policy)
    if fields is None:
        return "not recorded"
    replays = fields.get("cuda_graph_profile_replays")
    return f"{fields.get('l2_cache_policy')} L2, {'no graph' if replays is None else f'graph x {replays}'}"


def _stamp(file: V1File) -> Text:
    if file.metadata is None:
        return Text("  no environment stamp: FlashInfer loads it unchecked")
    if not file.metadata:
        return Text("  an environment stamp without fields: FlashInfer ignores the file and replaces it")
    return Text("\n".join(f"  {field}: {value}" for field, value in file.metadata.items()))
