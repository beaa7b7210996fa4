"""Ten thousand damaged files: a typed error or a value, never another exception, and never a changed file."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from autotune_planner.cache.contents import Content, content_at
from autotune_planner.cache.diff import diff
from autotune_planner.cache.merge import merge
from autotune_planner.cache.timings import read_timings
from autotune_planner.cache.v1 import parse_v1, read_v1, render_v1
from autotune_planner.cache.v2 import render_v2
from autotune_planner.errors import PlannerError
from autotune_planner.report.cache_document import cache_csv, cache_json
from autotune_planner.report.cache_view import cache_view
from autotune_planner.report.diff_view import diff_document, diff_view
from autotune_planner.report.heat_map import heat_map
from tests.cache.journals import record, write_journal

H200 = Path(__file__).parents[1] / "data" / "h200"
SOUND = (H200 / "mm_bf16_and_bmm_fp8.json").read_bytes()
SMALL = (H200 / "shard_bucket_64.json").read_bytes()
FILES_AN_EXAMPLE = 20

JSON_VALUES: list[Any] = [
    None,
    True,
    -1,
    2**70,
    1e400,
    float("nan"),
    "",
    "x",
    "\ud800",
    "*",
    [],
    {},
    [[]],
    ["R", 0],
    {"a": 1},
]


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, cut out, put in or moved."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 20))):
        at, length = rng.randrange(len(damaged) + 1), rng.choice((1, 3, 50, 2000))
        action = rng.randrange(5)
        if action == 0:
            damaged[at : at + 1] = rng.randbytes(1)
        elif action == 1:
            del damaged[at : at + length]
        elif action == 2:
            damaged[at:at] = rng.randbytes(min(length, 50))
        elif action == 3:
            damaged[at:at] = damaged[: min(length, len(damaged))]
        else:
            del damaged[at:]
    return bytes(damaged)


def damaged_value(value: Any, rng: random.Random) -> Any:
    """One value anywhere inside replaced by another of any type, or one key by another."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(list(value))
        changed = {**value, name: damaged_value(value[name], rng)}
        if rng.random() < 0.2:
            text = damaged_bytes(name.encode(), rng).decode("utf-8", "replace")
            changed[text] = changed.pop(name)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], damaged_value(value[at], rng), *value[at + 1 :]]
    return rng.choice(JSON_VALUES)


def damaged(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        return damaged_bytes(data, rng)
    return json.dumps(damaged_value(json.loads(data), rng), indent=rng.choice((None, 2))).encode()


def use(content: Content) -> None:
    """Everything that a reader does with a cache."""
    console = Console(file=io.TextIOWrapper(io.BytesIO(), "utf-8"), width=80)
    for view in (cache_view(content), heat_map(content, 80)):
        console.print(view, soft_wrap=True)
    for line in (*cache_json(content), *cache_csv([content])):
        line.encode()
    sound = content_at(H200 / "shard_bucket_64.json")
    found = diff(content, sound)
    console.print(diff_view(content.path, sound.path, found), soft_wrap=True)
    json.dumps(diff_document(found))
    union = merge({"a": content}).file
    entries = {entry.text: entry for entry in union.entries}
    assert len(parse_v1(render_v1(union.metadata, entries, union.records), Path("x")).entries) == len(entries)
    render_v2(union.metadata, entries)


def is_refused(act: Callable[[], object]) -> bool:
    try:
        act()
    except PlannerError:
        return True
    return False


@settings(max_examples=350, deadline=None)
@given(st.integers(0, 2**32))
def test_v1_files(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path_factory.mktemp("v1") / "rank_tp0_pp0_dp0.json"
    for _ in range(FILES_AN_EXAMPLE):
        content = damaged(SOUND, rng)
        path.write_bytes(content)
        is_refused(lambda: content_at(path))
        assert path.read_bytes() == content


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_read_of_a_damaged_v1_file_can_be_used(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path_factory.mktemp("v1") / "rank_tp0_pp0_dp0.json"
    path.write_bytes(json.dumps(damaged_value(json.loads(SMALL), rng)).encode())
    is_refused(lambda: use(content_at(path)))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_v2_stores(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Twenty damaged entries a store, and now and then its manifest: never an error at all, only misses."""
    rng = random.Random(seed)
    root = tmp_path_factory.mktemp("v2")
    file = read_v1(H200 / "cutlass_moe_bf16_run_a.json")
    files = render_v2(file.metadata, {entry.text: entry for entry in file.entries})
    names = sorted(files)
    chosen = {*rng.sample([name for name in names if "/entries/" in name], FILES_AN_EXAMPLE)}
    chosen |= {name for name in names if name.endswith("manifest.json") and rng.random() < 0.2}
    for name in names:
        content = damaged(files[name], rng) if name in chosen else files[name]
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    before = {path: path.read_bytes() for path in root.rglob("*.json")}
    content = content_at(root)
    assert len(content.entries) + len(content.misses) == len(file.entries)
    assert len(content.misses) <= FILES_AN_EXAMPLE
    is_refused(lambda: use(content))
    assert {path: path.read_bytes() for path in root.rglob("*.json")} == before
    shutil.rmtree(root)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_journals(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = random.Random(seed)
    folder = tmp_path_factory.mktemp("journal")
    file = read_v1(H200 / "shard_bucket_64.json")
    sound = write_journal(
        folder, *(record(entry, file.metadata, {entry.tactic: 10.0, -1: 20.0}) for entry in file.entries)
    )
    lines = sound.read_bytes().splitlines()
    for _ in range(FILES_AN_EXAMPLE // 4):
        sound.write_bytes(b"\n".join(damaged(line, rng) if rng.random() < 0.5 else line for line in lines))
        before = sound.read_bytes()
        timings = read_timings(folder, file.metadata)
        for entry in file.entries:
            measured = timings.get(entry.text)
            assert measured is None or (measured.time_us(entry) or 1.0) > 0
        assert sound.read_bytes() == before
