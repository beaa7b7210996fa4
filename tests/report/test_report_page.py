"""The page and the Markdown of a report: figures equal the document's, nothing is fetched, no text becomes markup."""

from __future__ import annotations

import html
import importlib.util
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune_planner.cache.sglang_layout import cache_directory
from autotune_planner.errors import NotPossibleHereError
from autotune_planner.report.report_document import report_document
from autotune_planner.report.report_markdown import report_markdown
from autotune_planner.report.report_page import report_page, require_libraries
from autotune_planner.reporting import Report
from tests.cache.checks import H200, content_of, publish, question
from tests.report.browser import CHROMIUM, browse
from tests.report.pages import Element, parse
from tests.report.reports import report_of, times_of, tuned

HOSTILE = "/models/<script>alert(1)</script>|`x`&\"' [a](b)"
in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH (Debian: apt install chromium)")


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Four ranks with all times, one quarantined tactic."""
    asked = tuned(question(tmp_path / "cache"))
    item = {
        "custom_op": "trtllm::fused_moe::gemm1",
        "runner": "MoERunner",
        "tactic": 7,
        "fault": "hang",
        "reason": "no answer in 60 s",
        "bucket": 256,
        "shape": "E32 H2048 I768 k8",
    }
    path = Path(cache_directory(asked.place)) / ".autotune-plan" / "quarantine.json"
    path.write_text(json.dumps({"_metadata": H200, "details": [item]}))
    return report_of(asked)


@pytest.fixture
def hostile(tmp_path: Path) -> Report:
    """Markup in the model path, a tactic, the stamp and the quarantine."""
    asked = question(tmp_path / "cache", model_path=HOSTILE)
    content = content_of(asked, cudnn_version="<img src=x onerror=y>")
    key = next(name for name in content if not name.startswith("_"))
    publish(asked, {**content, key: [content[key][0], ["</td><script>"], content[key][2]]})
    return report_of(asked)


def section(page: Element, identity: str) -> Element:
    return next(found for found in page.all("section") if found.attributes.get("id") == identity)


def picks_of(report: Report) -> list[list[dict[str, Any]]]:
    return [layer["picks"] for group in report_document(report)["groups"] for layer in group["layers"]]


def test_figures_of_the_tables_are_the_documents(report: Report) -> None:
    page = parse(report_page(report))
    tables = section(page, "picks").all("table")
    layers = picks_of(report)
    assert len(tables) == len(layers) == 2
    for table, picks in zip(tables, layers, strict=True):
        header, *rows = table.rows
        assert header[2:4] == ["us", "default us"]
        for row, pick in zip(rows, picks, strict=True):
            cells = dict(zip(header, row, strict=True))
            assert (cells["bucket"], cells["tactic"]) == (str(pick["bucket"]), str(pick["tactic"]))
            assert float(cells["us"]) == round(pick["time_us"], 2)
            assert float(cells["default us"]) == round(pick["fallback_us"], 2)
            assert float(cells["gain"].removesuffix("x")) == pytest.approx(pick["gain"], abs=0.005)
            assert float(cells["roofline us"]) == pytest.approx(pick["roofline_us"], abs=0.005)
            assert float(cells["behind"].removesuffix("%")) == pytest.approx(
                pick["runner_up"]["behind"] * 100, abs=0.005
            )
            assert cells["runner-up"].removeprefix("default ").strip("()") == str(pick["runner_up"]["tactic"])
            assert cells["equal"] == "2 of 3"
    heat = next(found for found in page.all("table") if found.attributes.get("class") == "heat")
    for row, *pair in zip(heat.rows[1:], *layers, strict=True):
        assert row[0] == str(pair[0]["bucket"])
        assert [float(cell.removesuffix("x")) for cell in row[1:]] == pytest.approx(
            [pick["gain"] for pick in pair], abs=0.005
        )
    gain = report_document(report)["groups"][0]["gain"]
    assert f"{gain['mean']:.2f}x in the geometric mean of 42 buckets, 0.98x to 2.50x" in page.text
    assert "hang" in section(page, "quarantine").text


def test_the_other_tables_are_the_documents(report: Report) -> None:
    page = parse(report_page(report))
    document = report_document(report)
    sizes = section(page, "coverage").all("table")[0].rows
    for row, op in zip(sizes[1:], document["check"]["coverage"][0]["ops"], strict=True):
        assert row[:4] == [op["custom_op"], op["layer"], op["phase"].upper(), str(op["largest"])]
        assert [0 if cell == "-" else int(cell) for cell in row[4:8]] == list(op["sizes"].values())
    environment = section(page, "environment").all("table")[0].rows[1:]
    assert {row[0]: row[2] for row in environment} == H200
    assert {row[3] for row in environment} == {"equal"}
    derivation = section(page, "plan").all("table")[-1].rows[1:]
    assert [row[0] for row in derivation] == [found["field"] for found in document["plan"]["derivation"]]
    assert [row[0] for row in section(page, "checks").all("table")[-1].rows[1:]] == [
        Path(member["path"]).name for member in document["check"]["files"]
    ]


def line_points(figure: Element) -> list[list[tuple[float, float]]]:
    """The drawn lines of a chart, in its own coordinates: paths of more than two points."""
    lines = []
    for path in figure.all("path"):
        points = [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", path.attributes["d"] or "")]
        if len(points) > 4 and "fill: none" in (path.attributes.get("style") or ""):
            lines.append(points)
    return lines


def on_a_line(pairs: list[tuple[float, float]]) -> bool:
    """Whether drawn coordinates are a linear function of the values, within a hundredth of a pixel."""
    (a, at_a), (b, at_b) = min(pairs), max(pairs)
    return all(math.isclose(at_a + (value - a) / (b - a) * (at_b - at_a), at, abs_tol=0.01) for value, at in pairs)


def test_charts_draw_the_documents_figures(report: Report) -> None:
    figures = section(parse(report_page(report)), "times").all("figure")
    layers = picks_of(report)
    assert len(figures) == 3  # a chart of times for each layer, one of gains
    for figure, picks in zip(figures, layers, strict=False):
        lines = line_points(figure)
        xs = [(math.log(pick["bucket"]), x) for pick, (x, _) in zip(picks, lines[0], strict=True)]
        assert on_a_line(xs)
        values = ("fallback_us", "time_us", "roofline_us")  # one scale for all three
        drawn = [
            (math.log(pick[name]), y)
            for name, points in zip(values, lines, strict=True)
            for pick, (_, y) in zip(picks, points, strict=True)
        ]
        assert on_a_line(drawn)
    lines = line_points(figures[2])
    gains = [
        (pick["gain"], y)
        for picks, line in zip(layers, lines, strict=True)
        for pick, (_, y) in zip(picks, line, strict=True)
    ]
    assert on_a_line(gains)
    for figure in figures:
        assert "M, tokens of one call" in figure.text
        assert figure.all("svg")[0].attributes["aria-label"]


def no_address(text: str) -> None:
    """Nothing that a browser would fetch, run or follow."""
    page = parse(text)
    assert not re.search(r"https?:|//\w|@import", html.unescape(text))
    forbidden = ("script", "link", "iframe", "img", "image", "object", "embed", "a", "form", "base", "foreignobject")
    assert page.all(*forbidden) == []
    identities = [element.attributes["id"] for element in page.all() if "id" in element.attributes]
    assert len(set(identities)) == len(identities)
    for element in page.all():
        for name, value in element.attributes.items():
            assert not name.startswith(("on", "xmlns", "xlink"))
            if name in ("href", "src", "action", "data"):
                assert (element.tag, value[:1] if value else "") == ("use", "#")
                assert value
                assert value[1:] in identities
            for reference in re.findall(r"url\(([^)]*)\)", value or ""):
                assert reference.removeprefix("#") in identities
    assert "url(" not in page.all("style")[0].text


def test_nothing_is_fetched_run_or_followed(report: Report) -> None:
    no_address(report_page(report))


def test_texts_of_files_and_flags_stay_text(hostile: Report) -> None:
    text = report_page(hostile)
    no_address(text)
    page = parse(text)
    assert HOSTILE in page.all("h1")[0].text
    assert "['</td><script>']" in section(page, "picks").text
    assert "<img src=x onerror=y>" in section(page, "environment").text


def test_texts_stay_text_in_markdown(hostile: Report) -> None:
    text = report_markdown(hostile)
    tags = set(re.findall(r"<[^>]*>", text))
    assert tags == {"<details>", "</details>", "<summary>", "</summary>"}
    assert HOSTILE in html.unescape(text)
    for line in text.splitlines():
        assert "`" not in line
        assert "](" not in line
        if line.startswith("|"):
            assert line.endswith("|")
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_markdown_has_the_same_rows(report: Report) -> None:
    cells = {
        tuple(html.unescape(cell).strip() for cell in line.strip("|").split("|"))
        for line in report_markdown(report).splitlines()
        if line.startswith("| ")
    }
    page = parse(report_page(report))
    for table in page.all("table"):
        for row in table.rows:
            assert tuple(cell.strip() for cell in row) in cells or not any(row), row
    assert "<svg" not in report_markdown(report)


def test_what_was_not_measured_is_said_to_be(tmp_path: Path) -> None:
    asked = question(tmp_path)
    publish(asked, content_of(asked))
    text = report_page(report_of(asked))
    page = parse(text)
    assert page.all("svg") == []
    assert "Not measured: no journal" in section(page, "times").text
    assert "gain over the default tacticnot measured: no journal" in page.text
    for table in section(page, "picks").all("table"):
        for row in table.rows[1:]:
            assert row[2:9] == ["-"] * 7  # times, gain, runner-up and margins
            assert row[10:] == ["-", "hot L2, no graph"]  # the roofline alone needs no measurement
    heat = next(found for found in page.all("table") if found.attributes.get("class") == "heat")
    assert {cell for row in heat.rows[1:] for cell in row[1:]} == {"tuned"}
    assert "not measured" in report_markdown(report_of(asked))


def test_a_deployment_without_ops_and_one_without_files(tmp_path: Path) -> None:
    nothing = parse(report_page(report_of(question(tmp_path, flags={"disable_flashinfer_autotune": True}))))
    assert "nothing to tune" in nothing.text
    absent = parse(report_page(report_of(question(tmp_path))))
    assert "not in the cache" in section(absent, "picks").text
    assert "0 of 42" in absent.text


def test_a_gpu_without_a_profile_has_no_roofline(tmp_path: Path) -> None:
    asked = tuned(question(tmp_path))
    unknown = replace(asked.resolved, gpu=replace(asked.resolved.gpu, profile=None))
    report = report_of(replace(asked, resolved=unknown))
    assert {pick["roofline_us"] for picks in picks_of(report) for pick in picks} == {None}
    assert "roofline of the GPU" not in report_page(report)


def test_equal_reports_give_equal_bytes(tmp_path: Path) -> None:
    asked = tuned(question(tmp_path), times=times_of)
    assert report_page(report_of(asked)) == report_page(report_of(asked))


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else real(name))
    with pytest.raises(NotPossibleHereError) as caught:
        require_libraries()
    assert "matplotlib" in caught.value.message
    assert "autotune-planner[report]" in (caught.value.hint or "")
    assert "--format md" in (caught.value.hint or "")


@in_chromium
@pytest.mark.parametrize("width", [390, 1280])
def test_in_a_browser(report: Report, tmp_path: Path, width: int) -> None:
    from PIL import Image

    page, image = tmp_path / "report.html", tmp_path / "screenshot.png"
    page.write_text(report_page(report), encoding="utf-8")
    shown = browse(page, tmp_path / "profile", f"--window-size={width},4000", f"--screenshot={image}")
    assert shown.console == ()
    with Image.open(image) as picture:
        assert picture.size == (width, 4000)
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24) or []}
    assert {(0x7F, 0xC9, 0x7F), (0xF4, 0xA5, 0x82)} <= colours  # warm and cold cells of the heat map
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= colours  # lines of the charts


@in_chromium
@pytest.mark.parametrize("width", [390, 1280])
def test_no_part_is_wider_than_the_window(report: Report, tmp_path: Path, width: int) -> None:
    """In a frame, whose script tells how wide the page would like to be; wide tables scroll in themselves."""
    (tmp_path / "report.html").write_text(report_page(report), encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe src="report.html" style="width:{width}px;height:900px;border:0" onload="'
        "document.title = this.contentDocument.documentElement.scrollWidth"
        '"></iframe>'
    )
    shown = browse(frame, tmp_path / "profile", "--window-size=1400,1000", "--dump-dom")
    assert f"<title>{width}</title>" in shown.out


@in_chromium
def test_a_console_message_would_be_seen(report: Report, tmp_path: Path) -> None:
    """The test above is worth something: a picture from elsewhere is refused by the page's own policy, and heard."""
    page = tmp_path / "report.html"
    text = report_page(report).replace("<footer>", '<footer><img src="http://localhost/x.png">')
    page.write_text(text, encoding="utf-8")
    shown = browse(page, tmp_path / "profile", "--dump-dom")
    assert any("Content Security Policy" in line for line in shown.console)


@pytest.mark.parametrize("gpu", ["simulated NVIDIA H200", "NVIDIA H200"])
def test_times_of_a_cost_model_are_said_to_be(tmp_path: Path, gpu: str) -> None:
    report = report_of(tuned(question(tmp_path), gpu=gpu))
    simulated = gpu.startswith("simulated")
    assert report_document(report)["simulated"] is simulated
    for text in (report_page(report), report_markdown(report)):
        before = text[: text.index("planned buckets in the cache")]  # the first table
        assert ("times and gains come from a cost model" in before) is simulated
