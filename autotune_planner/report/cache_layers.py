"""Entries of a cache as the layers of a model that they serve: one op and weight shape, all its buckets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from autotune_planner.cache.keys import CacheKey, Opaque, Profile
from autotune_planner.cache.v1 import Entry

_Position = tuple[int, int]  # input and dimension, in a profile


@dataclass(frozen=True)
class Layer:
    """``title`` names op and shapes with M for the tokens; entries by bucket, ascending."""

    title: str
    entries: tuple[Entry, ...]

    @property
    def buckets(self) -> int:
        return len({entry.key.bucket for entry in self.entries})


def layers_of(entries: Iterable[Entry]) -> list[Layer]:
    """Sorted by op and shapes. Extras are part of a title where shapes alone do not tell two layers apart."""
    layers = [(layer.shape_text, layer.extras, its_entries) for layer, its_entries in _layers(entries).items()]
    alike = Counter(shape for shape, _, _ in layers)
    named = [
        (f"{shape}  {extras}" if alike[shape] > 1 else shape, its_entries) for shape, extras, its_entries in layers
    ]
    return [
        Layer(name, tuple(sorted(its_entries, key=lambda entry: (entry.key.bucket, entry.text))))
        for name, its_entries in sorted(named, key=lambda pair: pair[0])
    ]


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
