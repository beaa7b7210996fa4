"""Heat map of a cache: a row for every bucket, a column for every layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group
from rich.style import Style
from rich.text import Text

from autotune_planner.cache.contents import Content
from autotune_planner.report.cache_layers import Layer, layers_of
from autotune_planner.report.entry_text import gain_of, gain_text

_CELL = 8  # columns of the terminal
_ABSENT, _TUNED, _DEFAULT = "·", "tuned", "-1"
_WARMTH = ((2.0, "black on green"), (1.2, "black on yellow"), (1.0, "black on bright_black"), (0.0, "white on red"))


def heat_map(content: Content, width: int) -> Group:
    """How many times faster than the fallback each bucket of each layer is, or only whether it is tuned.

    ``width`` is the terminal's, in characters: layers that do not fit beside each other follow below.
    """
    layers = layers_of(content.entries)
    beside = max(1, (width - _CELL) // _CELL)
    lines: list[Text] = []
    for first in range(0, len(layers), beside):
        lines += _block(content, layers[first : first + beside], first + 1)
    lines.append(Text(f"Times faster than the default tactic; {_ABSENT} is not in the cache", style="dim"))
    return Group(*lines)


def _block(content: Content, layers: Sequence[Layer], number: int) -> Iterator[Text]:
    yield Text(
        "bucket".rjust(_CELL) + "".join(f"[{number + i}]".rjust(_CELL) for i in range(len(layers))), style="bold"
    )
    cells = [_cells(content, layer) for layer in layers]
    for bucket in sorted({bucket for column in cells for bucket in column}):
        line = Text(str(bucket).rjust(_CELL))
        for column in cells:
            text, style = column.get(bucket, (_ABSENT, "dim"))
            line.append(" ").append(text.rjust(_CELL - 1), style=style)
        yield line
    for i, layer in enumerate(layers):
        yield Text(f"  [{number + i}] {layer.title}")


def _cells(content: Content, layer: Layer) -> dict[int, tuple[str, str | Style]]:
    """Text and style by bucket; of several runners' entries the fastest counts."""
    gains: dict[int, list[float]] = {}
    states: dict[int, str] = {}
    for entry in layer.entries:
        bucket = entry.key.bucket
        if entry.tactic != -1 or bucket not in states:
            states[bucket] = _DEFAULT if entry.tactic == -1 else _TUNED
        gain = gain_of(content.time_us(entry), content.fallback_us(entry))
        if gain is not None:
            gains.setdefault(bucket, []).append(gain)
    return {
        bucket: (gain_text(max(gains[bucket])), _warmth(max(gains[bucket]))) if bucket in gains else (state, "")
        for bucket, state in states.items()
    }


def _warmth(gain: float) -> str:
    return next((style for least, style in _WARMTH if gain >= least), "")
