"""Prove that a server will hit its cache: every rank's file loaded and every call made, in fresh processes.

Ranks whose files are equal, by the SHA-256 of their JSON content, share processes: each one's own file is loaded there,
and the calls are made with the first one's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune_planner.cache.check import CheckReport, Question, check
from autotune_planner.cache.coverage import NearMisses, demands_of, loaded, why_missed
from autotune_planner.cache.findings import Finding, reading_findings, version_findings
from autotune_planner.cache.keys import parse_key
from autotune_planner.cache.metadata import compare_stamp
from autotune_planner.cache.rank_files import RankFile, read_rank_files
from autotune_planner.cache.rank_groups import names_of
from autotune_planner.cache.timings import WORK_FOLDER, recorded_values
from autotune_planner.cache.v1 import Entry
from autotune_planner.engines.resolved import CachePlace
from autotune_planner.errors import NotPossibleHereError
from autotune_planner.plan.buckets import bucket_of
from autotune_planner.plan.plan import Plan
from autotune_planner.proof.fresh import process_log
from autotune_planner.proof.replay import ReplayReport, replay
from autotune_planner.proof.sessions import Session, sessions
from autotune_planner.tuning.devices import SIMULATED, DeviceKind
from autotune_planner.tuning.flashinfer_internals import Lookup

_SHOWN = 3
_OWN_PLACE = "tune for this GPU into a directory of its own: autotune-plan run FILE --cache-dir DIR"


@dataclass(frozen=True)
class Missed:
    """One key that was looked up in vain at ``sizes`` (M in tokens); ``timings`` tactics would be timed for it."""

    key: str
    custom_op: str
    bucket: int
    sizes: tuple[int, ...]
    timings: int
    reason: str


@dataclass(frozen=True)
class Process:
    """One fresh process and what it did."""

    session: Session
    report: ReplayReport


@dataclass(frozen=True)
class Content:
    """Ranks whose files hold the same, the processes that loaded the file of each, and what was missed in them."""

    files: tuple[RankFile, ...]
    processes: tuple[Process, ...]
    missed: tuple[Missed, ...]

    @property
    def loaded(self) -> bool:
        return all(process.report.loaded for process in self.processes)


@dataclass(frozen=True)
class Proof:
    """``files`` says what becomes of each rank's file at start, ``contents`` what was replayed of them."""

    device: DeviceKind
    files: CheckReport
    contents: tuple[Content, ...]
    findings: tuple[Finding, ...]

    @property
    def proved(self) -> bool:
        """The server loads every rank's file, hits at every size and times nothing."""
        return not any(finding.level == "problem" for finding in self.findings)


def prove(plan: Plan, place: CachePlace, *, device: DeviceKind, run_command: str, said: Callable[[str], None]) -> Proof:
    """Replay the files of all ranks at ``place``. Nothing is written there; ``said`` hears what is begun.

    ``NotPossibleHereError`` where this version does not know the calls that the server makes, or a process dies.
    """
    demands = demands_of(plan, {})
    unplanned = plan.resolved.unplanned
    if unplanned is not None and not demands:
        raise NotPossibleHereError(
            f"nothing can be proved: {unplanned}",
            code="op-not-planned",
            hint="autotune-plan check says whether the server loads the files",
        )
    files = read_rank_files(place)
    contents = _replayed(plan, files, device, said) if plan.units else ()
    stamp = next((process.report.metadata for found in contents for process in found.processes), {})
    question = Question(plan.resolved, place, demands, stamp, "this machine", run_command)
    report = check(question, files)
    findings = [*version_findings(question), *reading_findings(report)]
    if unplanned is not None:
        findings.append(Finding("note", "not-all-proved", f"not all calls were made: {unplanned}"))
    for content in contents:
        findings += _findings(content, run_command)
    return Proof(device, report, contents, tuple(findings))


def _replayed(
    plan: Plan, files: Sequence[RankFile], device: DeviceKind, said: Callable[[str], None]
) -> tuple[Content, ...]:
    """Each distinct content that FlashInfer can read."""
    same: defaultdict[str, list[RankFile]] = defaultdict(list)
    for file in files:
        if file.content is not None and not file.content.notes:
            same[file.digest].append(file)
    todo, gpu, contents = sessions(plan), plan.resolved.gpu, []
    count = "a process" if len(todo) == 1 else f"{len(todo)} processes, one after another"
    with process_log("prove") as log:
        for members in same.values():
            said(f"Replaying {names_of(members)} in {count}; log: {log}")
            paths = [str(file.path) for file in members]
            processes = tuple(
                Process(session, replay(paths, session.steps, device=device, gpu=gpu, log_path=log)) for session in todo
            )
            missed = _missed(members[0], processes)
            contents.append(Content(tuple(members), tuple(map(_of_the_file, processes)), missed))
    return tuple(contents)


def _of_the_file(process: Process) -> Process:
    """Without a hit where the file of the calls, the first, was not loaded: all that the tuner finds then is what it
    timed itself, a moment before."""
    report = process.report
    if report.loads[0]:
        return process
    calls = (
        replace(call, lookups=tuple(replace(each, hit=False, tactic=None, offered=None) for each in call.lookups))
        for call in report.calls
    )
    return replace(process, report=replace(report, calls=tuple(calls)))


def _serving(processes: Sequence[Process]) -> Iterator[tuple[int, Lookup]]:
    """(M, lookup) of every call that serving makes."""
    for process in processes:
        if process.session.purpose == "serving":
            for replayed in process.report.calls:
                for lookup in replayed.lookups:
                    yield replayed.step.m, lookup


def _missed(file: RankFile, processes: Sequence[Process]) -> tuple[Missed, ...]:
    """Keys that serving looked up in vain, each once: what a miss leaves in the tuner's memory is hit afterwards."""
    entries = _entries(file) if all(process.report.loaded for process in processes) else {}
    near = NearMisses(entries, {lookup.key for _, lookup in _serving(processes)})
    found: defaultdict[str, list[tuple[int, Lookup]]] = defaultdict(list)
    for m, lookup in _serving(processes):
        if not lookup.hit:
            found[lookup.key].append((m, lookup))
    return tuple(
        Missed(
            key=key,
            custom_op=places[0][1].custom_op,
            bucket=parse_key(key).bucket,
            sizes=tuple(sorted({m for m, _ in places})),
            timings=sum(lookup.timings for _, lookup in places),
            reason=why_missed(key, places[0][1].policy, entries, near),
        )
        for key, places in found.items()
    )


def _entries(file: RankFile) -> dict[str, Entry]:
    return loaded(file.content.file.entries) if file.content else {}


def _findings(content: Content, run_command: str) -> Iterator[Finding]:
    names = names_of(content.files)
    if content.missed:
        count, first = len(content.missed), content.missed[0]
        timings = sum(missed.timings for missed in content.missed)
        yield Finding(
            "problem",
            "missed",
            f"{names}: {count} {'key is' if count == 1 else 'keys are'} missed, and the server would time {timings} "
            f"tactics: {first.custom_op} bucket {first.bucket}: {first.reason}"
            + (f" (and {count - 1} more: see the list)" if count > 1 else ""),
            _OWN_PLACE if _of_another_gpu(content) else run_command,
        )
    yield from _unoffered(content, names, run_command)
    yield from _unrecorded(content, names, run_command)
    yield from _stuck_bound(content, names)


def _of_another_gpu(content: Content) -> bool:
    """Files that a run for this GPU would not overwrite: ``pipeline.check_same_gpu``."""
    file, here = content.files[0].content, content.processes[0].report.metadata
    stamp = compare_stamp(file.file.metadata if file else None, {"gpu": here["gpu"]})
    return any(not str(field.saved).startswith(SIMULATED) for field in stamp.differing("hard"))


def _unoffered(content: Content, names: str, run_command: str) -> Iterator[Finding]:
    """Hits whose tactic the op's runner does not list for the call's own inputs."""
    at_bucket: dict[tuple[str, int], Any] = {}
    inside: dict[tuple[str, int], Any] = {}
    for m, lookup in _serving(content.processes):
        if lookup.offered is False:
            bucket = parse_key(lookup.key).bucket
            (at_bucket if bucket == m else inside)[lookup.custom_op, m] = lookup.tactic
    if at_bucket:
        yield Finding(
            "problem",
            "tactic-not-offered",
            f"{names}: hits with a tactic that the op's runner does not have: {_listed(at_bucket)}",
            f"{run_command} --fresh",
        )
    elif inside:
        yield Finding(
            "note",
            "fewer-tactics-inside",
            f"{names}: at sizes inside a bucket the op's runner has fewer tactics than at the bucket, and takes its "
            f"default: {_listed(inside)}",
        )


def _unrecorded(content: Content, names: str, run_command: str) -> Iterator[Finding]:
    """Hits that the journal beside the file knows otherwise: a file whose digest was made to fit is told so."""
    file = content.files[0]
    assert file.content is not None
    entries = _entries(file)
    recorded = recorded_values(file.path.parent, file.content.file.metadata)
    hit = {lookup.key for _, lookup in _serving(content.processes)} - {missed.key for missed in content.missed}
    strangers = {
        (entries[key].key.custom_op, entries[key].key.bucket): entries[key].tactic
        for key in sorted(hit & entries.keys() & recorded.keys())
        if entries[key].value() not in recorded[key]
    }
    if strangers:
        folder = file.path.parent / WORK_FOLDER
        yield Finding(
            "problem",
            "entry-not-recorded",
            f"{names}: entries that no run recorded in the journal beside them: {_listed(strangers)}",
            f"{run_command}, or remove {folder} if the file was tuned elsewhere",
        )


def _listed(tactics: dict[tuple[str, int], Any]) -> str:
    texts = [f"{custom_op} M = {m} tactic {tactic}" for (custom_op, m), tactic in tactics.items()]
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def _stuck_bound(content: Content, names: str) -> Iterator[Finding]:
    """What a decode worker looks up after its graphs are captured: a defect of the server, which no file can mend.

    Source: SGLang 0.5.23, ``moe_runner/flashinfer_cutlass.py`` gives a bound for each M; FlashInfer 0.7.2,
    ``MoERunner.refine_tuning_config`` keeps the last one that was new.
    """
    stuck: dict[int, int] = {}
    captured: set[int] = set()
    for process in content.processes:
        for replayed in process.report.calls:
            step = replayed.step
            found = {parse_key(lookup.key).bucket for lookup in replayed.lookups}
            if step.stage == "capture":
                captured.add(step.m)
            if step.stage == "eager" and found != {bucket_of(step.m, step.call.tune_max)}:
                stuck[step.m] = max(found)
    if not stuck:
        return
    largest = max(captured)
    above = [m for m in stuck if m > largest]
    yield Finding(
        "note",
        "server-bound-stuck",
        f"{names}: a known defect of the server, whatever the cache holds: once its CUDA graphs are captured, eager "
        f"decode at M = {', '.join(map(str, sorted(stuck)))} looks up bucket "
        f"{', '.join(map(str, sorted(set(stuck.values()))))}, the bound of its smallest graph. Captured graphs keep "
        f"their own tactics, and they go up to M = {largest}"
        + ("" if above else ", which every decode batch here fits"),
        "capture a graph for every decode batch: --cuda-graph-max-bs-decode not below --max-running-requests"
        if above
        else None,
    )
