"""Charts of a report as SVG, drawn by matplotlib: text stays text, nothing is fetched, equal data gives equal bytes.

Each is as wide as a phone, so that its labels stay readable there; a wide page sets several side by side.
"""

from __future__ import annotations

import io
import logging
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from autotune_planner.reporting import LayerReport, Pick

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GAINS_PER_CHART = 4

_SIZE = (4.6, 3.5)  # inches
_INK, _GRID = "#333333", "#dddddd"
# Told apart without colours too: Okabe and Ito's palette, each with a marker and a dash of its own.
_STYLES = (("#0072b2", "o", "-"), ("#d55e00", "s", "--"), ("#009e73", "^", "-."), ("#cc79a7", "D", ":"))
_NAMESPACE = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"


def time_chart(name: str, layer: LayerReport) -> str | None:
    """Time of one launch against tokens: the default, what was picked, and the roofline. None where nothing was
    measured. ``name`` is a word that no other chart of the page has."""
    lines = [
        ("default (-1)", _points(layer.picks, lambda pick: pick.fallback_us), _STYLES[1]),
        ("in the cache", _points(layer.picks, lambda pick: pick.time_us), _STYLES[0]),
    ]
    lines = [line for line in lines if line[1]]
    if not lines:
        return None
    roofline = _points(layer.picks, lambda pick: pick.roofline_us)
    if roofline:
        lines.append(("roofline of the GPU", roofline, ("#777777", "", ":")))

    def draw(axes: Axes) -> None:
        axes.set_yscale("log")
        axes.set_ylabel("us a launch")
        axes.yaxis.set_major_formatter("{x:g}")
        low, high = axes.get_ylim()
        if high < 30 * low:  # less than one and a half decades: name the steps between powers of ten too
            axes.yaxis.set_minor_formatter("{x:g}")
            axes.tick_params(axis="y", which="minor", labelsize=8)

    return _chart(name, f"Time against tokens of {layer_title(layer)}", lines, draw)


def gain_chart(name: str, layers: Sequence[tuple[str, LayerReport]]) -> str | None:
    """Times faster than the default by bucket, for at most ``GAINS_PER_CHART`` labelled layers."""
    lines = [
        (label, _points(layer.picks, lambda pick: pick.gain), style)
        for (label, layer), style in zip(layers, _STYLES, strict=False)
    ]
    lines = [line for line in lines if line[1]]
    if not lines:
        return None

    def draw(axes: Axes) -> None:
        axes.axhline(1.0, color=_INK, linewidth=1)
        axes.set_ylim(bottom=min(0.9, axes.get_ylim()[0]))
        axes.set_ylabel("times faster than the default")

    return _chart(name, f"Gain by bucket of {', '.join(label for label, _ in layers)}", lines, draw)


def layer_title(layer: LayerReport) -> str:
    return f"{layer.custom_op} {layer.layer} {layer.shape}"


_Points = list[tuple[int, float]]


def _points(picks: Iterable[Pick], value: Callable[[Pick], float | None]) -> _Points:
    return [(pick.bucket, found) for pick in picks if (found := value(pick)) is not None]


def _chart(
    name: str, title: str, lines: Sequence[tuple[str, _Points, tuple[str, str, str]]], draw: Callable[[Axes], None]
) -> str:
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of its font cache
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10}):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.add_subplot()
        for label, points, (colour, marker, dash) in lines:
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, color=colour, marker=marker, linestyle=dash, label=label, markersize=4, linewidth=1.5)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set_xlabel("M, tokens of one call")
        axes.grid(color=_GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        figure.legend(
            loc="outside lower center", ncols=1 if max(len(line[0]) for line in lines) > 20 else 3, fontsize=9
        )
        svg = io.StringIO()
        figure.savefig(svg, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return _inlined(svg.getvalue(), name, title)


def _inlined(text: str, name: str, title: str) -> str:
    """An SVG document as an element of a page: no namespaces, styles or metadata, and no id that another chart has."""
    root = ElementTree.fromstring(text)
    used = {value for element in root.iter() for value in _references(element)}
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{_NAMESPACE}style", f"{_NAMESPACE}metadata"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.removeprefix(_NAMESPACE)
        identity = element.attrib.pop("id", None)
        if identity in used:
            element.set("id", f"{name}-{identity}")
        if _LINK in element.attrib:
            element.set("href", f"#{name}-{element.attrib.pop(_LINK)[1:]}")
        if "clip-path" in element.attrib:
            element.set("clip-path", element.get("clip-path", "").replace("url(#", f"url(#{name}-"))
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("role", "img")
    root.set("aria-label", title)
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)


def _references(element: ElementTree.Element) -> list[str]:
    found = [element.get(_LINK, "")[1:], element.get("clip-path", "")[len("url(#") : -1]]
    return [reference for reference in found if reference]
