"""``check`` as a function: a plan and an environment become what the server will make of its cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autotune_planner.cache.check import CheckReport, Question, check
from autotune_planner.cache.coverage import demands_of
from autotune_planner.cache.findings import ALTERED, Finding, findings_of
from autotune_planner.cache.rank_files import neighbours, read_rank_files
from autotune_planner.plan.plan import Plan
from autotune_planner.tuning.environment import stamp_and_keys


@dataclass(frozen=True)
class Checked:
    """``neighbours`` are directories of other caches below the same root, looked for where no rank has a file."""

    report: CheckReport
    findings: tuple[Finding, ...]
    neighbours: tuple[Path, ...]

    @property
    def used(self) -> bool:
        """The server loads every rank's file as it was published, tunes nothing at start and falls back for no size."""
        return not self._problems

    @property
    def altered(self) -> bool:
        """All the same but for what the files hold: they were changed after they were published."""
        return bool(self._problems) and all(problem.code in ALTERED for problem in self._problems)

    @property
    def _problems(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == "problem"]


def check_cache(
    plan: Plan,
    *,
    cache_dir: str | None,
    stamp: Mapping[str, str] | None,
    environment_name: str,
    run_command: str,
) -> Checked:
    """Check the cache of a plan's server. ``cache_dir`` stands for SGLANG_CACHE_DIR; nothing is written.

    ``stamp`` is FlashInfer's stamp of the server's environment, None for this machine's. ``NotPossibleHereError`` where
    FlashInfer is missing.
    """
    here, keys = stamp_and_keys(plan)
    environment = here if stamp is None else stamp
    place = plan.resolved.cache_place
    version = environment.get("flashinfer_version", place.flashinfer_version)
    place = replace(place, cache_dir=cache_dir or place.cache_dir, flashinfer_version=version)
    question = Question(plan.resolved, place, demands_of(plan, keys), environment, environment_name, run_command)
    report = check(question, read_rank_files(place))
    absent = all(member.file.absent for member in report.files)
    return Checked(report, findings_of(report), neighbours(place) if absent else ())
