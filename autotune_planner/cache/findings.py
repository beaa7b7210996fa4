"""The results of a check in words: what is wrong, why, and what to type next."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from autotune_planner.cache.check import CheckReport, FileReport, Question
from autotune_planner.cache.coverage import is_dropped
from autotune_planner.cache.metadata import StampMatch
from autotune_planner.cache.rank_files import FileContent
from autotune_planner.cache.rank_groups import TpGroup, names_of
from autotune_planner.cache.tactics import Doubt
from autotune_planner.errors import CacheFileError

Level = Literal["problem", "note"]

ALTERED = ("edited-file", "damaged-tactic")
"""Codes of problems for which the server loads and uses a file all the same."""

_SIMULATED = "simulated"


@dataclass(frozen=True)
class Finding:
    """One result. A ``problem`` is why the server will not use the cache, not for every size, or not as published."""

    level: Level
    code: str
    message: str
    hint: str | None = None


def findings_of(report: CheckReport) -> tuple[Finding, ...]:
    """Everything that is worth saying of a check. Without a ``problem`` the server loads every file, tunes nothing at
    start and falls back for no size."""
    return (
        *_environment_findings(report.question),
        *reading_findings(report),
        *_coverage_findings(report),
    )


def _environment_findings(question: Question) -> Iterator[Finding]:
    """The environment compared with must be the deployment's: the path holds its FlashInfer, the stamp its GPU."""
    gpu, wanted = question.environment.get("gpu", "unknown"), question.resolved.gpu.name
    if question.resolved.gpu.vendor == "amd":
        return
    if gpu == "unknown":
        yield Finding(
            "problem",
            "no-gpu-here",
            f"{question.environment_name} has no GPU that torch can see, and the server's stamp names {wanted}",
            "run check on the server's machine, or take its environment along: autotune-plan doctor --json > env.json "
            "there, and --env env.json here",
        )
    elif gpu != wanted:
        yield Finding(
            "problem",
            "other-gpu-here",
            f"the deployment says {wanted}, {question.environment_name} has {gpu}",
            "correct gpu: in the deployment file, or check against the server's environment: --env env.json",
        )
    yield from version_findings(question)


def version_findings(question: Question) -> Iterator[Finding]:
    """The path holds the FlashInfer version: another one than the release's pin is worth a word."""
    pinned = question.resolved.release.flashinfer_version
    if question.place.flashinfer_version != pinned:
        yield Finding(
            "note",
            "flashinfer-not-pinned",
            f"{question.environment_name} has FlashInfer {question.place.flashinfer_version}, the release pins "
            f"{pinned}: the path is that of the former",
        )


def reading_findings(report: CheckReport) -> Iterator[Finding]:
    """What becomes of the files at start, whatever sizes they serve."""
    question = report.question
    if report.not_read is not None:
        message = f"the server reads no cache: {report.not_read}"
        yield Finding("problem", "not-read", message, "autotune-plan compute shows what the server does instead")
        return
    yield from _absence(report)
    for group in report.groups:
        if group.differ:
            yield _differing_ranks(question, group)
    for member, names in _by_content(report.files):
        if member.file.problem:
            yield _damage(question, member, names)
        elif member.file.content and member.stamp:
            yield from _stamp_findings(question, member.stamp, names)
            yield from _content_findings(question, member, member.file.content, names)


def _absence(report: CheckReport) -> Iterator[Finding]:
    """All ranks without a file; where only some lack theirs, the ranks' comparison says so."""
    question = report.question
    compared = {rank for group in report.groups if group.differ for rank in group.ranks}
    absent = [member.file for member in report.files if member.file.absent and member.file.rank not in compared]
    if not absent:
        return
    files = f"no file of {len(absent)} ranks is there" if len(absent) > 1 else f"{names_of(absent)} is not there"
    if question.demands or question.resolved.unplanned:
        yield Finding(
            "problem", "no-file", f"{files}: the server tunes at start what its own passes reach", question.run_command
        )
    else:
        yield Finding("note", "no-file", f"{files}, and this deployment reaches no op that is tuned")


def _differing_ranks(question: Question, group: TpGroup) -> Finding:
    again = ""
    if group.other_shapes and question.resolved.arguments.moe_ep_size > 1:
        again = (
            "; ranks of expert parallelism that hold other shapes never agree and tune at every start (sglang#40320)"
        )
    return Finding(
        "problem",
        "ranks-differ",
        f"all {len(group.ranks)} ranks{_where(group)} will delete their files and tune again, since these are not "
        f"identical: {group.differ}{again}",
        f"publish one content for all of them: {question.run_command}",
    )


def _where(group: TpGroup) -> str:
    stages = {rank.pp for rank in group.ranks}
    return f" of pipeline stage {stages.pop()}" if len(stages) == 1 and stages != {0} else ""


def _damage(question: Question, report: FileReport, names: str) -> Finding:
    problem = report.file.problem
    if report.file.remedy is not None:
        message = f"{names}: the file {problem}; a server that cannot read it either fails at start"
        return Finding("problem", "unreadable-file", message, f"{report.file.remedy}; then check again")
    if report.fate == "deleted":
        return Finding("problem", "damaged-file", f"{names}: the file {problem}", question.run_command)
    return Finding(
        "problem",
        "damaged-file",
        f"{names}: the file {problem}; the server fails at start when it loads this",
        f"delete it, then: {question.run_command}",
    )


def _stamp_findings(question: Question, stamp: StampMatch, names: str) -> Iterator[Finding]:
    if stamp.outcome == "unchecked":
        yield Finding("note", "no-stamp", f"{names}: no _metadata, so FlashInfer loads it unchecked")
    for field in stamp.differing("wildcard"):
        yield Finding(
            "note",
            "wildcard",
            f'{names}: {field.field} is "*", which matches anything: a tactic that is an index may name another kernel',
        )
    if stamp.outcome == "healed":
        fields = ", ".join(field.field for field in stamp.differing("soft"))
        yield Finding(
            "problem",
            "stamp-healed",
            f"{names}: ignored, since its writer did not know {fields}; the server tunes at its next start and "
            "replaces the file",
            question.run_command,
        )
    if stamp.outcome == "stuck":
        yield _stuck(question, stamp, names)


def _stuck(question: Question, stamp: StampMatch, names: str) -> Finding:
    hard = stamp.differing("hard")
    fields = "; ".join(f"{field.field} {field.saved} against {field.current}" for field in hard)
    gpu = next((str(field.saved) for field in hard if field.field == "gpu" and field.current != "unknown"), None)
    message = f"{names}: ignored and stuck: {fields}. The server tunes at every start and never rewrites the file"
    if gpu is None:
        other = any(field.field == "gpu" and field.saved != question.resolved.gpu.name for field in hard)
        hint = f"delete or move it, then: {question.run_command}" if other else question.run_command
        return Finding("problem", "stamp-stuck", message, hint)
    if gpu.startswith(_SIMULATED):
        return Finding(
            "problem", "simulated-file", f"{message}; a simulated run wrote it", f"on the GPU: {question.run_command}"
        )
    return Finding(
        "problem",
        "other-gpu-file",
        f"{message}; GPU models of one architecture share this path",
        "give each GPU model a cache directory of its own (SGLANG_CACHE_DIR), or delete or move the file",
    )


def _content_findings(question: Question, member: FileReport, content: FileContent, names: str) -> Iterator[Finding]:
    if member.fate == "fails":
        notes = ", ".join(content.notes)
        message = f"{names}: FlashInfer takes {notes} for an entry; the server fails at start when it loads this"
        yield Finding("problem", "damaged-file", message, f"delete it, then: {question.run_command}")
    if content.intact is False:
        yield Finding(
            "problem",
            "edited-file",
            f"{names}: the content does not fit its _generation: it was changed after it was saved, which "
            "FlashInfer does not look at",
            f"take an unchanged copy, or have it written again, from its journal where that is there: "
            f"{question.run_command}",
        )
    dropped = sum(map(is_dropped, content.file.entries))
    if dropped:
        entries = _count(dropped, "cuDNN entry", "cuDNN entries")
        yield Finding("note", "cudnn-indices", f"{names}: {entries} of an old form, not loaded")
    asked = {key.key for demand in question.demands for key in demand.keys.values()}
    doubts = [doubt for doubt in content.doubts if not asked or doubt.entry.text in asked]
    if doubts:
        yield _damaged_tactics(question, doubts, names)
    others = [entry for entry in content.file.entries if entry.text not in asked]
    old = malformed = 0
    for entry in others:
        try:
            old += entry.key.extras is None
        except CacheFileError:
            malformed += 1
    if old:
        keys = _count(old, "key", "keys")
        yield Finding(
            "note",
            "old-keys",
            f"{names}: {keys} of 3 elements, the form of before FlashInfer 0.6.13: never looked up",
        )
    if malformed:
        keys = _count(malformed, "key", "keys")
        yield Finding("note", "no-keys", f"{names}: {keys} that FlashInfer does not write: never looked up")
    unasked = len(others) - old - malformed
    if unasked and asked:
        entries = _count(unasked, "entry", "entries")
        yield Finding("note", "unasked-entries", f"{names}: {entries} that this deployment does not ask for")


def _damaged_tactics(question: Question, doubts: Sequence[Doubt], names: str) -> Finding:
    first, *more = doubts
    key = first.entry.key
    others = f" (and {_count(len(more), 'more entry', 'more entries')})" if more else ""
    return Finding(
        "problem",
        "damaged-tactic",
        f"{names}: tactic {json.dumps(first.entry.tactic)} of {key.custom_op} at bucket {key.bucket} {first.reason}"
        f"{others}; FlashInfer does not look at it and hands it to the runner",
        question.run_command,
    )


def _coverage_findings(report: CheckReport) -> Iterator[Finding]:
    command, unplanned = report.question.run_command, report.question.resolved.unplanned
    if report.served and unplanned:
        yield Finding("note", "coverage-unknown", f"coverage is not known in full: {unplanned}")
    texts: dict[str, dict[str, None]] = {"at_start": {}, "fallback": {}}
    loading = {member.file.rank for member in report.files if member.fate == "loads"}
    for served in report.served:
        if not loading.issuperset(served.ranks):
            continue  # these ranks load nothing, for a reason that is a finding of its own
        for found in served.coverage:
            demand = found.demand
            for gap in found.gaps():
                sizes = f"{demand.custom_op} {demand.layer} {demand.phase.upper()} M {gap.first}..{gap.last}"
                texts[gap.state][f"{sizes}: {gap.reason}"] = None
    if texts["at_start"]:
        message = f"the server would tune at start: {_some(texts['at_start'])}"
        yield Finding("problem", "tuned-at-start", message, command)
    if texts["fallback"]:
        message = f"sizes would fall back to FlashInfer's default tactic: {_some(texts['fallback'])}"
        yield Finding("problem", "falls-back", message, command)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _some(texts: Iterable[str]) -> str:
    first, *others = texts
    return f"{first} (and {len(others)} more: see the table)" if others else first


def _by_content(reports: Iterable[FileReport]) -> Iterator[tuple[FileReport, str]]:
    """One report for each distinct content, and the names of the files that hold it."""
    same: defaultdict[tuple[str, str | None], list[FileReport]] = defaultdict(list)
    for report in reports:
        if not report.file.absent:
            same[report.file.digest, report.file.problem].append(report)
    for members in same.values():
        yield members[0], names_of([member.file for member in members])
