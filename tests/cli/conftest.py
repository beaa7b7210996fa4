"""The command line in this process: exit code, stdout and stderr of one call."""

import errno
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from autotune_planner import checking, planning
from autotune_planner.cache import files
from autotune_planner.cache.sglang_layout import cache_directory, rank_file_name
from autotune_planner.cache.v1 import read_v1
from autotune_planner.cli.main import main
from autotune_planner.deployment.load import load_deployment
from autotune_planner.tuning.keys import PlannedKey

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples/qwen3-30b-h200-tp1.yaml"
PUBLISHED = ROOT / "tests" / "data" / "h200" / "published_qwen3-30b-h200-tp1.json"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path):
    """``cli("compute", FILE)``: runs in the repository root with a home of its own, as a pipe sees it."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for variable in ("SGLANG_CACHE_DIR", "SGLANG_FLASHINFER_AUTOTUNE_EXTEND", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(int(ended.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture
def deployment(tmp_path):
    """Writes a deployment file: a Qwen3-30B-A3B on H200 with flashinfer_cutlass, changed as asked."""

    def write(text="", **changes):
        lines = {
            "gpu": "H200",
            "model": "qwen3-30b-a3b",
            "model_path": "/models/Qwen3-30B-A3B",
            "moe": "{runner_backend: flashinfer_cutlass}",
            "kv_token_capacity": "1000000",
            **changes,
        }
        path = tmp_path / "deployment.yaml"
        path.write_text("".join(f"{name}: {value}\n" for name, value in lines.items() if value is not None) + text)
        return path

    return write


@pytest.fixture
def unreadable(monkeypatch):
    """``unreadable(path)``: from now on this user may not read it, also where the tests run as root."""
    denied = set()

    def opened(path, *arguments, **options):
        if Path(path) in denied:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open(path, *arguments, **options)

    monkeypatch.setattr(files, "open", opened, raising=False)
    return denied.add


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """The files that a run on an H200 published, without its journal, on a machine with their environment."""
    place = planning.plan(load_deployment(ROOT / EXAMPLE), {}).resolved.cache_place
    directory = Path(cache_directory(replace(place, cache_dir=str(tmp_path / "cache"))))
    directory.mkdir(parents=True)
    shutil.copy(PUBLISHED, directory / rank_file_name(place.ranks[0]))
    file = read_v1(PUBLISHED)
    keys = {
        (entry.key.custom_op, entry.key.bucket): PlannedKey(entry.text, entry.policy, True) for entry in file.entries
    }

    def answer(plan):
        return dict(file.metadata), {unit: (keys[unit.custom_op, unit.bucket],) for unit in plan.units}

    monkeypatch.setattr(checking, "stamp_and_keys", answer)
    return tmp_path / "cache"
