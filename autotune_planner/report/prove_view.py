"""``prove`` for people: which files were loaded, what was looked up of each op, and what was missed and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import ConsoleRenderable, Group
from rich.text import Text

from autotune_planner.cache import sglang_layout
from autotune_planner.cache.rank_groups import names_of
from autotune_planner.proof.prove import Content, Missed, Proof
from autotune_planner.proof.replay import Replayed
from autotune_planner.report.check_view import finding_lines
from autotune_planner.report.rows import Rows

_DIGEST = 12


def prove_view(proof: Proof) -> Group:
    """Each content with its ranks; the verdict comes last."""
    parts: list[ConsoleRenderable] = [
        Text.assemble(("Place ", "bold"), str(sglang_layout.cache_directory(proof.files.question.place)))
    ]
    for content in proof.contents:
        parts += [Text(), *_content(content)]
    parts += [Text(), *finding_lines(proof.findings)]
    if proof.device == "simulated":
        parts.append(Text("Simulated device: FlashInfer's own lookups, for files that a simulated run wrote"))
    parts.append(Text(verdict(proof), style="bold green" if proof.proved else "bold red"))
    return Group(*parts)


def verdict(proof: Proof) -> str:
    """One sentence."""
    problems = sum(finding.level == "problem" for finding in proof.findings)
    if problems:
        return f"Not proved: {problems} problem{'s' if problems > 1 else ''}"
    if not proof.contents:
        return "Nothing to prove: this deployment reaches no op that is tuned"
    ranks = sum(len(content.files) for content in proof.contents)
    loads = "the rank loads its file" if ranks == 1 else f"all {ranks} ranks load their files"
    return f"Proved: {loads}, every call hits, and the server times nothing"


def _content(content: Content) -> Iterator[ConsoleRenderable]:
    names, files = names_of(content.files), len(content.files)
    same = f"; all {files} have SHA-256 {content.files[0].digest[:_DIGEST]}" if files > 1 else ""
    yield Text.assemble((names, "bold"), same)
    whose = "its file" if files == 1 else "every rank's own file"
    loaded = f"{whose} was loaded" if content.loaded else "FlashInfer refused to load it"
    serving = [process for process in content.processes if process.session.purpose == "serving"]
    made = "" if files == 1 else ", and the calls were made with the first one's"
    yield Text(f"  {_processes(len(serving))}: {loaded}{made}")
    yield Rows(_table([call for process in serving for call in process.report.calls]), right=range(3, 7))
    yield from _in_order(content)
    if content.missed:
        yield Text()
        yield Text("Missed", style="bold")
        yield Rows([_MISSED_HEADER, *map(_missed, content.missed)], right=(1, 3))


def _processes(count: int) -> str:
    return "In a fresh process" if count == 1 else f"In {count} fresh processes, one for each M"


def _in_order(content: Content) -> Iterator[Text]:
    for process in content.processes:
        if process.session.purpose != "serving":
            calls = len(process.report.calls)
            yield Text(f"  In another: the {calls} calls of the server's own order, start, graph capture, eager decode")


_HEADER = ("  op", "shape", "M", "lookups", "hits", "misses", "tactics timed")
_MISSED_HEADER = ("  op", "bucket", "at M", "tactics timed", "why")


def _table(calls: Sequence[Replayed]) -> list[tuple[str, ...]]:
    """A row for each call of the ops, whatever its bound."""
    by_shape: dict[tuple[str, str], list[Replayed]] = {}
    for call in calls:
        by_shape.setdefault((call.step.call.family, call.step.call.label), []).append(call)
    return [_HEADER, *(_row(family, label, made) for (family, label), made in by_shape.items())]


def _row(family: str, label: str, calls: Sequence[Replayed]) -> tuple[str, ...]:
    hits, misses = (sum(map(len, found)) for found in ([c.hits for c in calls], [c.misses for c in calls]))
    counts = hits + misses, hits, misses, sum(call.timings for call in calls)
    sizes = {call.step.m for call in calls}
    return f"  {family}", label, f"{len(sizes)} sizes, {min(sizes)} to {max(sizes)}", *map(str, counts)


def _missed(missed: Missed) -> tuple[str, ...]:
    sizes = " ".join(map(str, missed.sizes))
    return f"  {missed.custom_op}", str(missed.bucket), sizes, str(missed.timings), missed.reason
