"""``bench`` for people: times by size with a plot of the gain, then what a pass gains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderResult
from rich.text import Text

from autotune_planner.proof.bench import FALLBACK, OURS, STOCK, Bench, Gain, PassLeftOut, PassResult, SizeResult
from autotune_planner.proof.medians import Interval
from autotune_planner.proof.whole_op import L2_STATES, ROUNDS
from autotune_planner.report.rows import Rows

_BAR = 24  # columns of the longest bar
_TITLES = {FALLBACK: "default", STOCK: "stock", OURS: "tuned"}


def bench_view(bench: Bench) -> Group:
    """A table for every op and L2 state."""
    lines: list[ConsoleRenderable] = [
        Text.assemble(("File ", "bold"), bench.path),
        Text(f"  microseconds of a whole op: median of {ROUNDS} samples, taken in turn, and its 95 % interval"),
    ]
    if bench.against is not None:
        lines.insert(1, Text.assemble(("Stock ", "bold"), bench.against))
    for shape in dict.fromkeys((result.layers, result.call.family, result.call.label) for result in bench.sizes):
        for state in L2_STATES:
            layers, family, label = shape
            found = [r for r in bench.sizes if r.l2 == state and (r.layers, r.call.family, r.call.label) == shape]
            title = f"{', '.join(layers)}  {family} {label}, {state} L2"
            lines += [Text(), Text(title, style="bold"), _Plot(found)]
    lines += [Text(), *_passes(bench.passes), *_left_out(bench.passes_left_out)]
    if bench.device == "simulated":
        lines.append(Text("Simulated device: times come from a cost model, which knows no L2 state"))
    return Group(*lines)


class _Plot:
    """Rows of times, and a bar as long as the gain: its first part is the default's speed."""

    def __init__(self, results: Sequence[SizeResult]) -> None:
        self._results = results

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        block = "#" if options.ascii_only else "█"
        names = [name for name in _TITLES if name in self._results[0].times]
        longest = max(_over_fallback(result).ratio.median for result in self._results)
        header = ("       M", *(_TITLES[name] for name in names), "gain", "", "")
        rows = [
            (
                f"{result.m:8}",
                *(_times(result.times[name]) for name in names),
                *_gain(_over_fallback(result)),
                block * max(1, round(_BAR * _over_fallback(result).ratio.median / longest)),
            )
            for result in self._results
        ]
        yield Rows([header, *rows], right=range(len(names) + 1))


def _over_fallback(result: SizeResult) -> Gain:
    return next(gain for gain in result.gains if gain.over == "fallback")


def _gain(gain: Gain) -> tuple[str, str]:
    """The ratio, and what it says."""
    if gain.verdict == "no measurable gain":
        return "", gain.verdict
    return f"{gain.ratio.median:.2f}x [{gain.ratio.low:.2f}, {gain.ratio.high:.2f}]", gain.verdict


def _times(interval: Interval) -> str:
    return f"{interval.median:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _left_out(passes: Sequence[PassLeftOut]) -> Iterator[Text]:
    for each in passes:
        yield Text(
            f"{each.phase.upper()}: what the pass gains is not known, since --sizes left out "
            f"{each.planned - each.measured} of the {each.planned} sizes that production meets"
        )


def _passes(results: Sequence[PassResult]) -> Iterator[Text]:
    if not results:
        return
    yield Text("Tuned ops of one decoder layer, weighted by how often production meets each size", style="bold")
    for result in results:
        times = ", ".join(
            f"{_TITLES[name]} {_times(result.times[name])} us" for name in _TITLES if name in result.times
        )
        yield Text(f"  {result.phase.upper()}, {result.l2} L2: {times}")
        for gain in result.gains:
            ratio, word = _gain(gain)
            yield Text(f"    over {_TITLES[gain.over]}: {f'{ratio} ' if ratio else ''}{word}")
