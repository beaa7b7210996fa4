"""``check`` for people: the place, every rank's file, the stamp field by field, every size, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import ConsoleRenderable, Group
from rich.table import Table
from rich.text import Text

from autotune_planner.cache import sglang_layout
from autotune_planner.cache.check import CheckReport, FileReport, Served
from autotune_planner.cache.coverage import Coverage, State
from autotune_planner.cache.findings import Finding
from autotune_planner.cache.metadata import StampMatch
from autotune_planner.checking import Checked
from autotune_planner.engines.resolved import CachePlace, Rank

_OUTCOMES = {
    "loads": "loads",
    "unchecked": "loads unchecked: there is no stamp",
    "healed": "ignored, and replaced at the next save",
    "stuck": "ignored, and never replaced: delete or move it",
}
_FATES = {
    "deleted": "will be deleted: the ranks differ",
    "fails": "the server fails at start when it loads this",
    "absent": "not there",
    "not read": "not read",
}
_STYLES = {"problem": "red", "note": "cyan"}


def check_view(checked: Checked) -> Group:
    """Line by line; the verdict comes last."""
    report = checked.report
    parts: list[ConsoleRenderable] = [*_place(report.question.place), Text(), *_files(report)]
    for stamp, files in _stamps(report.files):
        parts += [Text(), *_stamp(report, stamp, files)]
    parts += [Text(), *_ranks(report)]
    for served in report.served:
        if served.coverage:
            parts += [Text(), *_coverage(served, report.files, report.question.run_command)]
    parts += [Text(), *finding_lines(checked.findings), *_neighbours(checked)]
    parts.append(Text(verdict(checked), style="bold green" if checked.used else "bold red"))
    return Group(*parts)


def _place(place: CachePlace) -> Iterator[Text]:
    yield Text.assemble(("Place ", "bold"), str(sglang_layout.cache_directory(place)))
    yield Text(f"  SGLANG_CACHE_DIR {place.cache_dir}, FlashInfer {place.flashinfer_version}")
    yield Text(f"  {sglang_layout.cache_key_hash(place.key_parts)} is the hash of")
    for name, value in zip(sglang_layout.KEY_PART_NAMES, place.key_parts, strict=True):
        yield Text(f"    {name:22}{value}")


def _files(report: CheckReport) -> Iterator[Text]:
    yield Text("Files", style="bold")
    if report.not_read is not None:
        yield Text(f"  the server reads none of them: {report.not_read}")
    for member in report.files:
        yield Text(f"  {member.file.path}  {_fate(member)}")


def _fate(member: FileReport) -> str:
    content = member.file.content
    held = (
        f"{len(content.file.entries)} entries, "
        if content
        else f"{member.file.problem}, "
        if member.file.problem
        else ""
    )
    if member.fate in _FATES:
        return held + _FATES[member.fate]
    assert member.stamp is not None
    return held + _OUTCOMES[member.stamp.outcome]


def _stamps(files: Iterable[FileReport]) -> Iterator[tuple[StampMatch, list[FileReport]]]:
    """Each distinct stamp with its files."""
    same: dict[tuple[object, ...], list[FileReport]] = {}
    for member in files:
        if member.stamp is not None and member.stamp.fields:
            fields = tuple((field.field, str(field.saved), field.match) for field in member.stamp.fields)
            same.setdefault(fields, []).append(member)
    for members in same.values():
        assert members[0].stamp is not None
        yield members[0].stamp, members


def _stamp(report: CheckReport, stamp: StampMatch, files: Sequence[FileReport]) -> Iterator[Text]:
    names = rank_names([member.file.rank for member in files])
    yield Text(f"Stamp of {names} against {report.question.environment_name}: {_OUTCOMES[stamp.outcome]}", style="bold")
    for field in stamp.fields:
        saved = "missing" if field.saved is None else str(field.saved)
        values = saved if field.match == "equal" else f"{saved} against {field.current}"
        yield Text(f"  {field.match:10}{field.field:24}{values}")
    for name in stamp.ignored:
        yield Text(f"  {'ignored':10}{name}")


def _ranks(report: CheckReport) -> Iterator[Text]:
    if not report.groups:
        count = len(report.files)
        alone = "nothing is compared between ranks" if count == 1 else "no two ranks compare their files"
        yield Text.assemble(("Ranks ", "bold"), "not compared: no file is read" if report.not_read else alone)
        return
    yield Text("Ranks that compare their files at start", style="bold")
    for group in report.groups:
        outcome = "identical" if group.differ is None else f"not identical, all delete their files: {group.differ}"
        yield Text(f"  {rank_names(group.ranks)}: {outcome}")


def _coverage(served: Served, files: Sequence[FileReport], command: str) -> Iterator[ConsoleRenderable]:
    """Sizes by op and pass, the share of production, then the gaps."""
    whose = "" if len(served.ranks) == len(files) else f" for {rank_names(served.ranks)}"
    table = _table(f"Sizes M (tokens of one call) by what serves them{whose}")
    for name in ("op", "layer", "pass"):
        table.add_column(name, no_wrap=True)
    for name in ("M up to", "tuned", "clamped", "tuned at start", "fall back"):
        table.add_column(name, justify="right")
    for found in served.coverage:
        demand = found.demand
        counts = [str(count) if count else "-" for count in found.sizes().values()]
        table.add_row(demand.custom_op, demand.layer, demand.phase.upper(), str(demand.largest), *counts)
    yield table
    shares = [line for pair in zip(served.coverage, served.shares, strict=True) for line in _share(*pair)]
    if shares:
        yield Text()
        yield Text.assemble(("Production", "bold"), " by prefill tokens of the sample")
        yield from shares
    gaps = [line for found in served.coverage for line in _gaps(found)]
    if gaps:
        yield Text()
        yield Text.assemble(("Gaps", "bold"), f" closed by: {command}")
        yield from gaps


def _gaps(found: Coverage) -> Iterator[Text]:
    demand = found.demand
    for gap in found.gaps():
        sizes = f"M {gap.first}" if gap.first == gap.last else f"M {gap.first}..{gap.last}"
        state = "would be tuned at start" if gap.state == "at_start" else "falls back"
        yield Text(f"  {demand.custom_op} {demand.layer} {demand.phase.upper()} {sizes} {state}: {gap.reason}")


def _share(found: Coverage, share: dict[State, float] | None) -> Iterator[Text]:
    if share is None:
        return
    names = {"tuned": "tuned", "clamped": "clamped", "at_start": "tuned at start", "fallback": "fall back"}
    text = ", ".join(f"{value:.1%} {names[state]}" for state, value in share.items() if value)
    yield Text(f"  {found.demand.custom_op} {found.demand.layer}: {text}")


def finding_lines(findings: Sequence[Finding]) -> Iterator[Text]:
    """Problems first, each with what to type."""
    for finding in sorted(findings, key=lambda finding: finding.level == "note"):
        yield Text.assemble(
            (f"{finding.level}: ", _STYLES[finding.level]), finding.message, (f" [{finding.code}]", "dim")
        )
        if finding.hint:
            yield Text(f"  try: {finding.hint}", style="cyan")


def _neighbours(checked: Checked) -> Iterator[Text]:
    if checked.neighbours:
        yield Text("note: other caches are below the same directory, of another model path, flags or FlashInfer:")
        yield from (Text(f"  {path}") for path in checked.neighbours)


def verdict(checked: Checked) -> str:
    """The result of a check in one line."""
    if checked.used:
        return "The server will use this cache: nothing to tune at start, and no size falls back"
    count = sum(finding.level == "problem" for finding in checked.findings)
    problems = f"{count} problem{'s' if count > 1 else ''}"
    if checked.altered:
        return f"The server loads this cache, but it was edited after it was published: {problems}"
    return f"The server will not use this cache as it is: {problems}"


def rank_names(ranks: Sequence[Rank]) -> str:
    """The first and the last of them."""
    names = [sglang_layout.rank_file_name(rank).removesuffix(".json") for rank in ranks]
    return names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]} ({len(names)})"


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
