"""``run`` for people and scripts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from autotune_planner.pipeline import Format, RunOutcome, Target
from autotune_planner.plan.plan import Plan
from autotune_planner.tuning.messages import UnitResult

SCHEMA = "autotune-plan/run@1"


def run_document(plan: Plan, outcome: RunOutcome, *, device: str) -> dict[str, Any]:
    """The ``autotune-plan/run@1`` document. Times in seconds."""
    tuned = outcome.tuned
    return {
        "schema": SCHEMA,
        "device": device,
        "directory": str(outcome.target.directory),
        "published": [str(path) for path in outcome.published],
        "store": str(outcome.store) if outcome.store else None,
        "work_units": len(plan.units),
        "entries": len(tuned.entries),
        "kept_entries": outcome.kept,
        "resumed_units": tuned.resumed,
        "build_seconds": round(tuned.build_seconds, 3),
        "tuning_seconds": round(tuned.tuning_seconds, 3),
        "metadata": dict(tuned.metadata),
        "skipped_tactics": [_unit(result) | {"tactics": list(result.skipped)} for result in _skipping(outcome)],
        "failures": [_unit(result) | {"reason": result.failure} for result in tuned.failures],
    }


def run_view(plan: Plan, outcome: RunOutcome, *, device: str) -> Group:
    """What was tuned, skipped and written."""
    tuned = outcome.tuned
    count = len(plan.units)
    lines = [
        Text(f"{len(tuned.entries)} of {count} profiles are tuned, in {tuned.tuning_seconds:.1f} s{_apart(outcome)}"),
        *_published(outcome),
    ]
    if outcome.kept:
        lines.append(Text(f"Kept {outcome.kept} entries of other ops that were in the files already"))
    skipped = sum(len(result.skipped) for result in _skipping(outcome))
    if skipped:
        units = len(_skipping(outcome))
        lines.append(Text(f"FlashInfer rejected {skipped} tactics in {units} profiles; they were skipped (--json)"))
    if tuned.failures:
        count = len(tuned.failures)
        lines.append(
            Text(f"{count} {'profile was' if count == 1 else 'profiles were'} not tuned; the same command tries again:")
        )
        lines += [
            Text(f"  {result.unit.custom_op} {result.unit.call.label} M={result.unit.bucket}: {result.failure}")
            for result in tuned.failures
        ]
    if device == "simulated":
        lines.append(Text("Simulated device: timings come from a cost model; no server will load these files"))
    return Group(*lines)


def _published(outcome: RunOutcome) -> list[Text]:
    lines = []
    if outcome.published:
        lines.append(Text(f"Published {_rank_files(len(outcome.published))} in {outcome.target.directory}"))
        lines += [Text(f"  {path.name}") for path in outcome.published]
    if outcome.store:
        lines.append(Text(f"Published a v2 store in {outcome.store}"))
        lines.append(Text(f"  for autotune_v2 with FLASHINFER_AUTOTUNE_CACHE_DIR={outcome.target.store_root}"))
    return lines


def nothing_document(reason: str) -> dict[str, Any]:
    """``autotune-plan/run@1`` where there was nothing to tune, and why."""
    return {"schema": SCHEMA, "published": [], "work_units": 0, "nothing_to_tune": reason}


def dry_run_view(plan: Plan, target: Target, formats: Collection[Format]) -> Group:
    """What ``run`` would do."""
    lines = [Text(f"Would tune {len(plan.units)} profiles and write")]
    if "v1" in formats:
        lines[-1].append(f" {_rank_files(len(target.files))} in {target.directory}:")
        lines += [Text(f"  {name}") for name in target.files]
    if "v2" in formats:
        lines.append(Text(f"  a v2 store below {target.store_root}"))
    return Group(*lines)


def _rank_files(count: int) -> str:
    return "1 rank file" if count == 1 else f"{count} identical rank files"


def _apart(outcome: RunOutcome) -> str:
    tuned = outcome.tuned
    notes = []
    if tuned.resumed:
        notes.append(f"{tuned.resumed} finished earlier")
    if tuned.build_seconds:
        notes.append(f"{tuned.build_seconds:.0f} s of compiling apart")
    return f" ({', '.join(notes)})" if notes else ""


def _skipping(outcome: RunOutcome) -> Sequence[UnitResult]:
    return [result for result in outcome.tuned.results if result.skipped]


def _unit(result: UnitResult) -> dict[str, Any]:
    unit = result.unit
    return {"custom_op": unit.custom_op, "shape": unit.call.label, "bucket": unit.bucket}
