"""The ``autotune-plan/report@1`` document of ``report --json``: plan, check, and what was picked and measured."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from autotune_planner import __version__
from autotune_planner.report.check_document import check_document
from autotune_planner.report.entry_text import policy_document
from autotune_planner.report.plan_document import plan_document
from autotune_planner.reporting import LayerReport, Pick, RankGroup, Report

SCHEMA = "autotune-plan/report@1"


def report_document(report: Report) -> dict[str, Any]:
    """``plan`` and ``check`` are the documents of those commands. Times in microseconds a launch, null where they were
    not measured; ``gain`` is over the default tactic; ``simulated``: they come from a cost model."""
    place = report.checked.report.question.place
    return {
        "schema": SCHEMA,
        "version": __version__,
        "simulated": report.simulated,
        "plan": plan_document(report.plan, place, keys=None, explain=True),
        "check": check_document(report.checked),
        "groups": [_group(group) for group in report.groups],
        "quarantined": [asdict(item) for item in report.quarantined],
    }


def _group(group: RankGroup) -> dict[str, Any]:
    gains = group.gains
    return {
        "ranks": [asdict(rank) for rank in group.ranks],
        "fates": list(group.fates),
        "metadata": None if group.metadata is None else dict(group.metadata),
        "entries": group.entries,
        "buckets": {"tuned": group.count("tuned"), "default": group.count("default"), "absent": group.count("absent")},
        "gain": {"measured": len(gains), "mean": group.mean_gain, "least": gains[0], "most": gains[-1]}
        if gains
        else None,
        "layers": [_layer(layer) for layer in group.layers],
        "other_entries": dict(group.others),
    }


def _layer(layer: LayerReport) -> dict[str, Any]:
    return {
        "custom_op": layer.custom_op,
        "layer": layer.layer,
        "shape": layer.shape,
        "covers": dict(layer.covers),
        "picks": [_pick(pick) for pick in layer.picks],
    }


def _pick(pick: Pick) -> dict[str, Any]:
    return {
        **asdict(pick),
        "policy": policy_document(pick.policy),
        "gain": pick.gain,
        "roofline_share": pick.roofline_share,
    }
