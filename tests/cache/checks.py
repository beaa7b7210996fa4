"""Questions of ``check`` without FlashInfer: plans of truth rows, with the keys that the real server produced there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune_planner.cache.check import CheckReport, Question, check
from autotune_planner.cache.coverage import demands_of
from autotune_planner.cache.findings import Finding, findings_of
from autotune_planner.cache.keys import parse_key
from autotune_planner.cache.rank_files import read_rank_files
from autotune_planner.cache.sglang_layout import rank_file
from autotune_planner.cache.v1 import Entry, render_v1
from autotune_planner.engines import resolve
from autotune_planner.plan.plan import make_plan
from autotune_planner.tuning.keys import PlannedKey
from tests.engines.truth import deployment_of, row

KEYS = "keys-sglang-0.5.23.jsonl"
H200 = json.loads((Path(__file__).parents[1] / "data" / "h200" / "cutlass_moe_bf16_run_a.json").read_text())[
    "_metadata"
]
RUN = "autotune-plan run deployment.yaml"


def question(root: Path, identity: str = "q30-h200-tp4-ep4", **changes: Any) -> Question:
    """A MoE deployment whose ranks look below ``root``; the server's own passes tune all of its keys."""
    truth = row(identity, KEYS)
    plan = make_plan(resolve(replace(deployment_of(truth), **changes)))
    keys = {(parse_key(text).custom_op, parse_key(text).bucket): text for text in truth["keys"]}
    by_unit = {
        unit: (PlannedKey(keys[unit.custom_op, unit.bucket], tuple(truth["policy"][unit.custom_op]), True),)
        for unit in plan.units
    }
    place = replace(plan.resolved.cache_place, cache_dir=str(root))
    return Question(plan.resolved, place, demands_of(plan, by_unit), H200, "this machine", RUN)


def entries_of(asked: Question) -> dict[str, Entry]:
    """An entry for every key of a question, measured as its op asks."""
    keys = {key.key: key for demand in asked.demands for key in demand.keys.values()}
    return {text: Entry(text, parse_key(text).runner, 3, tuple(key.policy)) for text, key in keys.items()}


def content_of(asked: Question, **metadata: Any) -> dict[str, Any]:
    """The JSON of a complete file, with fields of its stamp changed."""
    return json.loads(render_v1({**H200, **metadata}, entries_of(asked)))  # type: ignore[no-any-return]


def publish(asked: Question, content: dict[str, Any] | bytes) -> list[Path]:
    """The same content for every rank."""
    raw = content if isinstance(content, bytes) else json.dumps(content, indent=2).encode()
    paths = [rank_file(asked.place, rank) for rank in asked.place.ranks]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    return paths


def checked(asked: Question) -> tuple[CheckReport, dict[str, Finding]]:
    """The report, and its findings by code."""
    report = check(asked, read_rank_files(asked.place))
    return report, {finding.code: finding for finding in findings_of(report)}


def problems(found: dict[str, Finding]) -> list[str]:
    return [code for code, finding in found.items() if finding.level == "problem"]
