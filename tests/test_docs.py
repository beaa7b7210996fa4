"""The documentation is true: quoted commands print what is quoted, and names in it exist."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from autotune_planner.errors import ExitCode
from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.plan.plan import WorkUnit
from autotune_planner.tuning import messages
from autotune_planner.tuning.journal import Journal
from autotune_planner.tuning.messages import Candidate, Search, UnitResult
from tests.command import call
from tests.command_reference import commands, parameters, reference

ROOT = Path(__file__).parents[1]
DOCS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SCHEMA = re.compile(r"autotune-plan/[a-z]+@\d+")


class Quoted(NamedTuple):
    """A command of a console block and the lines that it is said to print."""

    document: str
    command: str
    lines: tuple[str, ...]


def fences(document: Path, language: str) -> list[str]:
    return [body for name, body in _FENCE.findall(document.read_text(encoding="utf-8")) if name == language]


def quoted() -> list[Quoted]:
    found = []
    for document in DOCS:
        for body in fences(document, "console"):
            command, *lines = body.splitlines()
            found.append(Quoted(document.name, command.removeprefix("$ "), tuple(lines)))
    return found


def program_lines() -> list[tuple[str, str]]:
    """Every line of a fenced block that calls the program, with its document's name."""
    lines = []
    for document in DOCS:
        for body in (*fences(document, "sh"), *fences(document, "console")):
            lines += [
                (document.name, line.removeprefix("$ ")) for line in body.splitlines() if "autotune-plan " in line
            ]
    return lines


def words_of(line: str) -> tuple[dict[str, str], list[str]]:
    """Variables before the program, and its arguments up to a pipe, a redirection or an alternative."""
    words = shlex.split(line, comments=True)
    at = words.index("autotune-plan")
    end = next((i for i, word in enumerate(words) if word in ("|", ">", "||", "&&")), len(words))
    return dict(word.split("=", 1) for word in words[:at]), words[at + 1 : end]


def normal(line: str) -> str:
    return " ".join(line.split())


def matches(wanted: str, line: str) -> bool:
    """``..`` at either end of a quoted line stands for more of the line."""
    core = wanted.removeprefix(".. ").removesuffix(" ..")
    if wanted.startswith(".. "):
        return core in line
    return line.startswith(core) if wanted.endswith(" ..") else line == core


@pytest.mark.parametrize("example", quoted(), ids=lambda example: f"{example.document}: {example.command[:70]}")
def test_commands_print_what_is_quoted(example: Quoted, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, with columns one blank apart. ``..`` marks what is left out."""
    monkeypatch.chdir(ROOT)
    environ, arguments = words_of(example.command)
    assert arguments[0] == "compute"
    result = call(*arguments, environ=environ)
    assert result.code == 0, result.err
    printed = iter([normal(line) for line in (result.out + result.err).splitlines()])
    assert example.lines
    for line in example.lines:
        wanted = normal(line)
        if wanted != "..":
            assert any(matches(wanted, line) for line in printed), wanted


@pytest.mark.parametrize(("document", "line"), program_lines(), ids=lambda value: value[:60])
def test_options_and_examples_exist(document: str, line: str) -> None:
    _, arguments = words_of(line)
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    assert ours[0] in commands(), line
    known = {name for parameter in parameters(commands()[ours[0]]) for name in parameter.names}
    assert {word for word in ours if word.startswith("-")} <= known | {"--help"}
    for word in ours:
        if word.startswith("examples/"):
            assert (ROOT / word).is_file(), word


@pytest.mark.parametrize("document", DOCS, ids=lambda document: document.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = _FENCE.sub("", document.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not target.startswith(("http:", "https:")):
            assert (document.parent / target).exists(), target


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_has_an_example_a_command_and_what_to_look_at(guide: Path) -> None:
    text = guide.read_text(encoding="utf-8")
    assert re.search(r"\]\(\.\./\.\./examples/[\w-]+\.yaml\)", text)
    assert any(example.document == guide.name for example in quoted())
    assert any("autotune-plan run " in body for body in fences(guide, "sh"))
    assert "\n## Look at\n" in text
    assert "\n## What misleads\n" in text


def test_the_command_reference_is_the_programs() -> None:
    written = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert written == reference(), "python -m tests.command_reference > docs/commands.md"


def test_exit_codes_are_all_there() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", (ROOT / "docs" / "exit-codes.md").read_text(), re.MULTILINE)
    assert [(int(code), name) for code, name in rows] == [(int(code), code.name) for code in ExitCode]


def test_schemas_are_all_there() -> None:
    documented = set(_SCHEMA.findall((ROOT / "docs" / "file-formats.md").read_text(encoding="utf-8")))
    program = {name for path in (ROOT / "autotune_planner").rglob("*.py") for name in _SCHEMA.findall(path.read_text())}
    assert documented == program


def test_events_are_all_there() -> None:
    text = (ROOT / "docs" / "file-formats.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (`[a-z_`, ]+`) \|", text[text.index("## Events") : text.index("## Documents")], re.MULTILINE
    )
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    kinds = messages.Event.__args__  # type: ignore[attr-defined]
    assert documented == {re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower() for kind in kinds}


def test_fields_of_the_journal_are_all_there(tmp_path: Path) -> None:
    search = Search("race", 2, (Candidate(2, 10.0), Candidate(-1, 12.0)), 0.001, 1, 64)
    unit = WorkUnit("fp8_gemm", BmmFp8(n=64, k=64), 1)
    Journal(tmp_path / "journal.jsonl", {}, "race").append(UnitResult(unit, {}, (), 1.0, None, search=search))
    record = json.loads((tmp_path / "journal.jsonl").read_text().splitlines()[1])
    text = (ROOT / "docs" / "file-formats.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (`[a-z_`, ]+`) \|", text[text.index("## journal@2") : text.index("## quarantine")], re.MULTILINE
    )
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(record)


def test_the_table_of_ops_names_no_gpu_on_which_the_server_does_not_tune():
    """docs/limits.md: SM90 and newer."""
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| ") and "SM" in line]
    assert len(rows) >= 4
    assert min(int(found) for row in rows for found in re.findall(r"SM(\d+)", row)) == 90
