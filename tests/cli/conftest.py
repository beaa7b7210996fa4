"""The command line in this process: exit code, stdout and stderr of one call."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune_planner.cli.main import main

ROOT = Path(__file__).parents[2]


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
