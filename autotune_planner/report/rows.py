"""An aligned table as whole lines: Rich's own tables would shorten cells, and take seconds for large caches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rich.console import Console, ConsoleOptions
from rich.segment import Segment


class Rows:
    """Rows of equal length, the header first. Columns in ``right`` are aligned to the right."""

    def __init__(self, rows: Sequence[tuple[str, ...]], right: Collection[int] = ()) -> None:
        self._rows = rows
        self._right = right

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        widths = [max(map(len, column)) for column in zip(*self._rows, strict=True)]
        widths[-1] = 0  # nothing follows it
        cells = [f"{{:{'>' if i in self._right else '<'}{width}}}" for i, width in enumerate(widths)]
        line = ("   ".join(cells) + "\n").format
        yield Segment("".join(line(*row) for row in self._rows))
