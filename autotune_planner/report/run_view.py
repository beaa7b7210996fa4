"""``run`` for people and scripts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from statistics import geometric_mean
from typing import Any

from rich.console import Group
from rich.text import Text

from autotune_planner.pipeline import Format, RunOutcome, Target
from autotune_planner.plan.plan import Plan, WorkUnit
from autotune_planner.report.evidence import evidence_lines
from autotune_planner.tuning.messages import Host, UnitResult
from autotune_planner.tuning.quarantine import FILE as QUARANTINE
from autotune_planner.tuning.tune import Tuned

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
        "strategy": tuned.strategy,
        "tuning_seconds": round(tuned.tuning_seconds, 3),
        "forecast_seconds": round(tuned.forecast_seconds, 3),
        "device_seconds": tuned.device_seconds,
        "metadata": dict(tuned.metadata),
        "hosts": [_host(host) for host in tuned.hosts],
        "skipped_tactics": [_unit(result) | {"tactics": list(result.skipped)} for result in _skipping(outcome)],
        "quarantined": [asdict(item) for item in tuned.quarantined],
        "left_out": [_work(unit) for unit in tuned.left_out],
        "gains": [_work(result.unit) | gain for result in tuned.results if (gain := _gain(result))],
        "not_raced": [_work(result.unit) for result in tuned.results if _is_unraced(tuned, result)],
        "evidence": evidence_lines(plan.ops),
        "failures": [_unit(result) | {"reason": result.failure} for result in tuned.failures],
    }


def run_view(plan: Plan, outcome: RunOutcome, *, device: str) -> Group:
    """What was tuned, skipped and written."""
    tuned = outcome.tuned
    count = len(plan.units)
    lines = [
        Text(f"{len(tuned.entries)} of {count} profiles are tuned, in {_spent(tuned)}{_apart(outcome)}"),
        *([Text(gains)] if (gains := _gains(tuned.results)) else []),
        *_published(outcome),
    ]
    if outcome.kept:
        lines.append(Text(f"Kept {outcome.kept} entries that were in the files already"))
    lines += [Text(f"Not tuned on {host}") for host in tuned.hosts if host.differs]
    skipped = sum(len(result.skipped) for result in _skipping(outcome))
    if skipped:
        units = len(_skipping(outcome))
        lines.append(Text(f"FlashInfer rejected {skipped} tactics in {units} profiles; they were skipped (--json)"))
    if (unraced := _unraced(tuned)) is not None:
        lines.append(Text(unraced))
    if tuned.quarantined:
        lines.append(
            Text(f"Quarantined, in {outcome.target.work_dir / QUARANTINE}; FlashInfer takes it as a blocklist:")
        )
        lines += [Text(f"  {item}") for item in tuned.quarantined]
    if tuned.left_out:
        kept = "; what the files held of it is kept" if outcome.kept else ""
        lines.append(
            Text(f"Left out by the time budget, which went to what is worth most{kept}: {_listed(tuned.left_out)}")
        )
    if tuned.failures:
        count = len(tuned.failures)
        lines.append(
            Text(f"{count} {'profile was' if count == 1 else 'profiles were'} not tuned; the same command tries again:")
        )
        lines += [
            Text(f"  {result.unit.custom_op} {result.unit.call.label} M={result.unit.bucket}: {result.failure}")
            for result in tuned.failures
        ]
    lines += map(Text, evidence_lines(plan.ops))
    if device == "simulated":
        lines.append(Text("Simulated device: timings come from a cost model; no server will load these files"))
    return Group(*lines)


def _listed(units: Sequence[WorkUnit]) -> str:
    """By op and shape: ``op shape M=1, 2, 4``."""
    sizes: dict[str, list[int]] = {}
    for unit in units:
        sizes.setdefault(f"{unit.custom_op} {unit.call.label}", []).append(unit.bucket)
    return "; ".join(f"{name} M={', '.join(map(str, sorted(buckets)))}" for name, buckets in sizes.items())


def _published(outcome: RunOutcome) -> list[Text]:
    lines = []
    if outcome.published:
        lines.append(Text(f"Published {_rank_files(len(outcome.published))} in {outcome.target.directory}"))
        lines += [Text(f"  {path.name}") for path in outcome.published]
    if outcome.store:
        lines.append(Text(f"Published a v2 store in {outcome.store}"))
        lines.append(Text(f"  for autotune_v2 with FLASHINFER_AUTOTUNE_CACHE_DIR={outcome.target.store_root}"))
    return lines or [Text("Nothing is published: no profile is tuned")]


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


def _spent(tuned: Tuned) -> str:
    """Wall time; on the simulated device the busiest virtual GPU's own, which the forecast is of."""
    if tuned.device_seconds is None:
        return f"{tuned.tuning_seconds:.1f} s"
    return f"{tuned.device_seconds:.2f} simulated s"


def _apart(outcome: RunOutcome) -> str:
    tuned = outcome.tuned
    digits = 1 if tuned.device_seconds is None else 2
    notes = [f"forecast {tuned.forecast_seconds:.{digits}f} s"] if tuned.forecast_seconds else []
    if tuned.resumed:
        notes.append(f"{tuned.resumed} finished earlier")
    if tuned.device_seconds is not None:
        notes.append(f"{tuned.tuning_seconds:.1f} s here")
    if tuned.build_seconds:
        notes.append(f"{tuned.build_seconds:.0f} s of compiling apart")
    return f" ({', '.join(notes)})" if notes else ""


def _is_unraced(tuned: Tuned, result: UnitResult) -> bool:
    return tuned.strategy == "race" and result.search is not None and result.search.strategy == "stock"


def _unraced(tuned: Tuned) -> str | None:
    """What FlashInfer's own loop timed in a race, and why."""
    units = [result.unit for result in tuned.results if _is_unraced(tuned, result)]
    if not units:
        return None
    ops = ", ".join(dict.fromkeys(unit.custom_op for unit in units))
    return f"{len(units)} profiles of {ops} were timed by FlashInfer's own loop: race does not keep their policy"


def _skipping(outcome: RunOutcome) -> Sequence[UnitResult]:
    return [result for result in outcome.tuned.results if result.skipped]


def _gain(result: UnitResult) -> dict[str, Any] | None:
    """Time of the pick and of the default, in microseconds a launch; None where the search did not measure both."""
    search = result.search
    if search is None:
        return None
    pick, fallback = search.us_of(search.pick), search.us_of(-1)
    if pick is None or fallback is None:
        return None
    return {"tactic": search.pick, "us": pick, "fallback_us": fallback, "gain": fallback / pick}


def _gains(results: Sequence[UnitResult]) -> str | None:
    """Range and geometric mean of the gains over the default."""
    gains = sorted(gain["gain"] for result in results if (gain := _gain(result)))
    if not gains:
        return None
    return (
        f"Over the untuned default: {geometric_mean(gains):.2f} times faster in the geometric mean, "
        f"{gains[0]:.2f} to {gains[-1]:.2f}"
    )


def _host(host: Host) -> dict[str, Any]:
    differs = {name: {"there": theirs, "here": ours} for name, (theirs, ours) in host.differs.items()}
    return {"host": host.name, "gpus": host.gpus, "differs": differs}


def _unit(result: UnitResult) -> dict[str, Any]:
    return _work(result.unit)


def _work(unit: WorkUnit) -> dict[str, Any]:
    return {"custom_op": unit.custom_op, "shape": unit.call.label, "bucket": unit.bucket}
