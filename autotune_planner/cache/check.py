"""What a server will make of the cache files of its ranks, file by file and size by size. Pure: the files are read.

Sources: SGLang 0.5.23, ``model_executor/runner/flashinfer_autotune.py:flashinfer_autotune_context`` (compare the ranks,
load, tune what misses, save); FlashInfer 0.7.2, ``AutoTuner.load_configs``, which raises for what is not its JSON.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from autotune_planner.cache.coverage import Coverage, Demand, State, cover, loaded
from autotune_planner.cache.metadata import StampMatch, compare_stamp
from autotune_planner.cache.production import prefill_shares
from autotune_planner.cache.rank_files import RankFile
from autotune_planner.cache.rank_groups import TpGroup, tp_groups
from autotune_planner.engines.resolved import CachePlace, Rank, Resolved

Fate = Literal["loads", "ignored", "deleted", "fails", "absent", "not read"]

_NOT_REUSED = "cache-not-reused"


@dataclass(frozen=True)
class Question:
    """What is checked: a deployment, its place, the environment of its server, and what reproduces the cache."""

    resolved: Resolved
    place: CachePlace
    demands: tuple[Demand, ...]
    environment: Mapping[str, str]
    environment_name: str  # "this machine", or the file that it was read from
    run_command: str  # autotune-plan run FILE ...


@dataclass(frozen=True)
class FileReport:
    """What becomes of one rank's file at start: ``fails`` ends the server, ``deleted`` is by the rank itself."""

    file: RankFile
    fate: Fate
    stamp: StampMatch | None


@dataclass(frozen=True)
class Served:
    """Coverage by what these ranks load; a share of prefill tokens for each where the deployment has traffic."""

    ranks: tuple[Rank, ...]
    coverage: tuple[Coverage, ...]
    shares: tuple[dict[State, float] | None, ...]


@dataclass(frozen=True)
class CheckReport:
    """``not_read`` is why the server reads no cache at all; None where it does."""

    question: Question
    not_read: str | None
    files: tuple[FileReport, ...]
    groups: tuple[TpGroup, ...]
    served: tuple[Served, ...]


def check(question: Question, files: Sequence[RankFile]) -> CheckReport:
    """Judge the files of all ranks of a place, in its order."""
    not_read = _not_read(question.resolved)
    replicas = question.resolved.arguments.attn_dp_size == 1
    groups = () if not_read else tp_groups(files, replicas=replicas)
    deleted = {rank for group in groups if group.differ for rank in group.ranks}
    reports = tuple(_file_report(question, file, not_read, file.rank in deleted) for file in files)
    served = () if not_read else tuple(_served(question, reports))
    return CheckReport(question, not_read, reports, groups, served)


def _not_read(resolved: Resolved) -> str | None:
    if resolved.no_autotune_reason is not None:
        return resolved.no_autotune_reason
    return resolved.noticed(_NOT_REUSED)


def _file_report(question: Question, file: RankFile, not_read: str | None, deleted: bool) -> FileReport:
    stamp = compare_stamp(file.content.file.metadata, question.environment) if file.content else None
    fate: Fate
    if file.absent:
        fate = "absent"
    elif not_read:
        fate = "not read"
    elif deleted:
        fate = "deleted"
    elif stamp is None or (stamp.loads and file.content and file.content.notes):
        fate = "fails"
    else:
        fate = "loads" if stamp.loads else "ignored"
    return FileReport(file, fate, stamp)


def _served(question: Question, reports: Sequence[FileReport]) -> Iterator[Served]:
    """Coverage of each content that loads, and of nothing for ranks that load nothing."""
    by_content: defaultdict[str, list[FileReport]] = defaultdict(list)
    for report in reports:
        if report.fate != "fails":
            by_content[report.file.digest if report.fate == "loads" else ""].append(report)
    for members in by_content.values():
        content = members[0].file.content if members[0].fate == "loads" else None
        coverage = cover(question.demands, loaded(content.file.entries) if content else {})
        shares = tuple(prefill_shares(question.resolved, coverage))
        yield Served(tuple(member.file.rank for member in members), coverage, shares)
