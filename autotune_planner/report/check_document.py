"""The ``autotune-plan/check@1`` document of ``check --json``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from autotune_planner.cache import sglang_layout
from autotune_planner.cache.check import FileReport, Served
from autotune_planner.cache.coverage import Coverage, State
from autotune_planner.checking import Checked

SCHEMA = "autotune-plan/check@1"


def check_document(checked: Checked) -> dict[str, Any]:
    """Everything that was found. ``fate`` is what becomes of a file at start; sizes are M in tokens."""
    report = checked.report
    question = report.question
    place = question.place
    return {
        "schema": SCHEMA,
        "used": checked.used,
        "not_read": report.not_read,
        "environment": {"name": question.environment_name, "metadata": dict(question.environment)},
        "place": {
            "cache_dir": place.cache_dir,
            "directory": str(sglang_layout.cache_directory(place)),
            "hash": sglang_layout.cache_key_hash(place.key_parts),
            "hash_of": dict(zip(sglang_layout.KEY_PART_NAMES, place.key_parts, strict=True)),
            "other_caches": [str(path) for path in checked.neighbours],
        },
        "files": [_file(member) for member in report.files],
        "tensor_parallel_groups": [asdict(group) for group in report.groups],
        "coverage": [_served(served) for served in report.served],
        "findings": [asdict(finding) for finding in checked.findings],
    }


def _file(member: FileReport) -> dict[str, Any]:
    file, stamp = member.file, member.stamp
    return {
        "rank": asdict(file.rank),
        "path": str(file.path),
        "fate": member.fate,
        "problem": file.problem,
        "entries": len(file.content.file.entries) if file.content else None,
        "intact": file.content.intact if file.content else None,
        "stamp": stamp and {"outcome": stamp.outcome, **asdict(stamp)},
    }


def _served(served: Served) -> dict[str, Any]:
    pairs = zip(served.coverage, served.shares, strict=True)
    return {
        "ranks": [asdict(rank) for rank in served.ranks],
        "ops": [_op(coverage, share) for coverage, share in pairs],
    }


def _op(coverage: Coverage, share: dict[State, float] | None) -> dict[str, Any]:
    demand = coverage.demand
    return {
        "custom_op": demand.custom_op,
        "layer": demand.layer,
        "shape": demand.shape,
        "phase": demand.phase,
        "largest": demand.largest,
        "sizes": coverage.sizes(),
        "spans": [{**asdict(span), "key": _key(coverage, span.bucket)} for span in coverage.spans],
        "gaps": [asdict(gap) for gap in coverage.gaps()],
        "share_of_prefill_tokens": share,
    }


def _key(coverage: Coverage, bucket: int) -> str | None:
    key = coverage.demand.keys.get(bucket)
    return key.key if key else None
