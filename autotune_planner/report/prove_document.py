"""``autotune-plan/prove@1``: the JSON of ``prove``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from autotune_planner.cache import sglang_layout
from autotune_planner.proof.prove import Content, Process, Proof
from autotune_planner.proof.replay import Replayed

SCHEMA = "autotune-plan/prove@1"


def prove_document(proof: Proof) -> dict[str, Any]:
    """Everything that was replayed, and what it shows. Sizes are M in tokens; ``timings`` are of single tactics."""
    report = proof.files
    calls = [call for content in proof.contents for process in content.processes for call in process.report.calls]
    return {
        "schema": SCHEMA,
        "proved": proof.proved,
        "device": proof.device,
        "directory": str(sglang_layout.cache_directory(report.question.place)),
        "metadata": dict(report.question.environment),
        "totals": _totals(calls),
        "files": [
            {
                "rank": asdict(member.file.rank),
                "path": str(member.file.path),
                "fate": member.fate,
                "digest": member.file.digest or None,
            }
            for member in report.files
        ],
        "contents": [_content(content) for content in proof.contents],
        "findings": [asdict(finding) for finding in proof.findings],
    }


def _content(content: Content) -> dict[str, Any]:
    return {
        "ranks": [asdict(file.rank) for file in content.files],
        "digest": content.files[0].digest,
        "loaded": content.loaded,
        "processes": [_process(process, content) for process in content.processes],
        "missed": [asdict(missed) for missed in content.missed],
    }


def _process(process: Process, content: Content) -> dict[str, Any]:
    loads = zip(content.files, process.report.loads, strict=True)
    return {
        "purpose": process.session.purpose,
        "loads": {file.path.name: loaded for file, loaded in loads},
        "calls": [_call(call) for call in process.report.calls],
    }


def _call(call: Replayed) -> dict[str, Any]:
    step = call.step
    return {
        "op": step.call.family,
        "shape": step.call.label,
        "m": step.m,
        "tune_max": step.call.tune_max,
        "stage": step.stage,
        **_totals([call]),
    }


def _totals(calls: Sequence[Replayed]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for call in calls:
        counts.update(hits=len(call.hits), misses=len(call.misses), timings=call.timings)
    return {name: counts[name] for name in ("hits", "misses", "timings")}
