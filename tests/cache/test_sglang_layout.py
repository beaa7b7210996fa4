"""Cache paths of SGLang 0.5.23 against those that its own code computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune_planner.cache.sglang_layout import (
    cache_directory,
    cache_key_hash,
    rank_file,
    rank_file_name,
)
from autotune_planner.engines.resolved import CachePlace, Rank
from autotune_planner.engines.sglang_0_5_23.parallel import ranks_of

TRUTH = Path(__file__).parents[1] / "data" / "truth"


def rows_with_a_path() -> list[dict[str, Any]]:
    rows = map(json.loads, (TRUTH / "sglang-0.5.23.jsonl").read_text().splitlines())
    return [row for row in rows if recorded_path(row)]


def recorded_path(row: dict[str, Any]) -> str | None:
    runtime = (row.get("resolved") or {}).get("runtime") or {}
    path = (runtime.get("real") or {}).get("flashinfer_autotune_cache_path")
    return path if path is None else str(path)


def key_parts(row: dict[str, Any]) -> tuple[str, ...]:
    resolved = row["resolved"]
    model = resolved["model"]
    sizes = (resolved["tp_size"], resolved["pp_size"], resolved["attn_dp_size"], resolved["moe_ep_size"])
    return (
        row["args"][row["args"].index("--model-path") + 1],
        model["dtype"],
        str(resolved["quantization"]),
        resolved["moe_runner_backend"],
        *map(str, sizes),
        model["hf_config_class"],
        "candidate_selection=v2_default",
        "skip_ops=" + ",".join(sorted(resolved["flashinfer_autotune_skip_ops"] or ())),
    )


def place(row: dict[str, Any]) -> CachePlace:
    gpus = json.loads((TRUTH / "gpus.json").read_text())
    major, minor = map(int, gpus[row["gpu"]]["compute_capability"].split("."))
    return CachePlace("/cache", "0.7.2", (major, minor), key_parts(row), ())


def test_worked_example() -> None:
    parts = "/models/Qwen3-30B-A3B|torch.bfloat16|None|flashinfer_cutlass|8|1|8|1|Qwen3MoeConfig"
    full = f"{parts}|candidate_selection=v2_default|skip_ops="
    assert cache_key_hash(tuple(full.split("|"))) == "e7ab5bf4f968e10d"
    row = next(row for row in rows_with_a_path() if row["id"] == "dpa8-H200-32768")
    expected = Path("/cache/flashinfer/autotune/0.7.2/sm90/e7ab5bf4f968e10d")
    assert cache_directory(place(row)) == expected
    assert rank_file(place(row), Rank(3, 0, 3)) == expected / "rank_tp3_pp0_dp3.json"


def test_every_recorded_path() -> None:
    rows = rows_with_a_path()
    assert len(rows) > 200
    wrong = {row["id"] for row in rows if str(rank_file(place(row), Rank(0, 0, 0))) != recorded_path(row)}
    assert wrong == set()


def test_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    directory = cache_directory(CachePlace("~/.cache/sglang", "0.7.2", (10, 3), ("a", "b"), ()))
    assert directory.is_relative_to("/home/user/.cache/sglang/flashinfer/autotune/0.7.2/sm103")


@pytest.mark.parametrize(
    ("tp", "pp", "attn_dp", "replicas", "expected"),
    [
        (1, 1, 1, 1, [(0, 0, 0)]),
        (2, 2, 1, 1, [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]),
        (8, 1, 2, 2, [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 0, 1), (5, 0, 1), (6, 0, 1), (7, 0, 1)]),
        (4, 1, 4, 4, [(0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 0, 3)]),
        (2, 1, 1, 2, [(0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1)]),
        (2, 2, 2, 2, [(0, 0, 0), (1, 0, 1), (0, 1, 0), (1, 1, 1)]),
    ],
    ids=["one", "tp2 pp2", "tp8 dp2 attention", "tp4 dp4 attention", "tp2 and two replicas", "tp2 pp2 dp2 attention"],
)
def test_ranks(tp: int, pp: int, attn_dp: int, replicas: int, expected: list[tuple[int, int, int]]) -> None:
    ranks = ranks_of(tp, pp, attn_dp, replicas)
    assert ranks == tuple(Rank(*rank) for rank in expected)
    assert len({rank_file_name(rank) for rank in ranks}) == len(ranks)
