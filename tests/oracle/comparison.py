"""The server's answer and ours for one configuration, field by field."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from autotune_planner import profiles
from tests.command import call
from tests.engines.parity import Compared, Outcome, compare
from tests.oracle.configurations import ROOT, Configuration, model_folders
from tests.oracle.stand_ins import nvidia_smi

Verdict = Literal["equal", "refused by both", "equal until the server fails", "different"]
"""``equal until the server fails``: its arguments resolve, equal to ours, and then its attention backend fails,
which the plan says in a warning of level ``error``."""


def verdicts() -> tuple[Verdict, ...]:
    return get_args(Verdict)


@dataclass(frozen=True)
class Judged:
    configuration: Configuration
    server: Mapping[str, Any]
    ours: Outcome
    compared: tuple[Compared, ...]

    @property
    def different(self) -> dict[str, tuple[Any, Any]]:
        """Field -> (ours, the server's)."""
        return {one.field: (one.ours, one.theirs) for one in self.compared if not one.equal}

    @property
    def verdict(self) -> Verdict:
        if self.different:
            return "different"
        if "error" in self.server:
            return "refused by both"
        return "equal until the server fails" if "fails_later" in self.server["resolved"] else "equal"


def judge(configurations: Sequence[Configuration], scratch: Path) -> list[Judged]:
    """Each configuration by the server's code, one process a kind of GPU, and by ``compute --json``."""
    models = linked_models(scratch)
    answers = dict(server_answers(configurations, models, scratch))
    found = []
    for one in configurations:
        server, ours = answers[one.name], outcome(one, models)
        found.append(Judged(one, server, ours, tuple(compared(server, ours))))
    return found


def linked_models(scratch: Path) -> Path:
    """One folder with all model configs, for ``--model-dir`` and for the server."""
    models = scratch / "models"
    models.mkdir()
    for name, folder in model_folders().items():
        (models / name).symlink_to(folder)
    return models


def server_environment(gpu: Mapping[str, Any], scratch: Path) -> dict[str, str]:
    """The environment of a process that runs the server's code: nothing of the caller's but its interpreter."""
    programs = scratch / f"bin-{gpu['name']}"
    programs.mkdir(exist_ok=True)
    script = programs / "nvidia-smi"
    script.write_text(nvidia_smi(gpu))
    script.chmod(0o755)
    return {
        "PATH": f"{programs}{os.pathsep}{os.defpath}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(scratch),
        "SGLANG_CACHE_DIR": "/cache",
        "HF_HUB_OFFLINE": "1",
    }


def server_answers(
    configurations: Sequence[Configuration], models: Path, scratch: Path
) -> list[tuple[str, dict[str, Any]]]:
    """(name, answer) of ``tests.oracle.server`` for each."""
    by_gpu: defaultdict[str, list[Configuration]] = defaultdict(list)
    for one in configurations:
        by_gpu[one.gpu].append(one)
    found = []
    for name, members in by_gpu.items():
        gpu = profiles.load("gpus", name)
        with (scratch / f"server-{name}.log").open("w") as log:
            done = subprocess.run(
                [sys.executable, "-m", "tests.oracle.server", json.dumps(gpu), str(models)],
                input="".join(json.dumps(one.row) + "\n" for one in members),
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=scratch,
                env=server_environment(gpu, scratch),
                text=True,
                check=True,
            )
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        found += [(one.name, answer) for one, answer in zip(members, answers, strict=True)]
    return found


def outcome(configuration: Configuration, models: Path) -> Outcome:
    """``compute --json`` of the deployment file, or of the command line."""
    if configuration.file:
        done = call("compute", configuration.file, "--json")
    else:
        ours = ("--gpu", configuration.gpu, "--model-dir", models)
        capacity = ("--kv-token-capacity", configuration.kv_token_capacity)
        done = call(
            "compute", *ours, *capacity, "--json", "--", *configuration.arguments, environ=configuration.environ
        )
    return Outcome(done.code, json.loads(done.out))


def compared(server: Mapping[str, Any], ours: Outcome) -> list[Compared]:
    """Everything that ``tests.engines.parity`` compares, and every rank's file and what the passes do."""
    if "fault" in server:
        return [Compared("the server's code ran", server["fault"], None)]
    both = compare({"args": (), "env": {}, **server}, ours)
    resolved = server.get("resolved", {})
    if ours.code or not resolved:
        return both
    if "fails_later" in resolved:
        codes = {warning["code"] for warning in ours.document["warnings"] if warning["level"] == "error"}
        both.append(Compared("fails later: error-level warning", "attention-fails" in codes, True))
    if "runtime" in resolved:
        real = resolved["runtime"]["real"]
        files = sorted(file["path"] for file in ours.document["cache_files"])
        runs = {decision["name"]: decision["run"] for decision in ours.document["passes"]}
        both.append(Compared("cache_files", files, real["cache_files"]))
        both += [Compared(f"passes.{name}.run", runs[name], run) for name, run in real["passes"].items()]
    return both
