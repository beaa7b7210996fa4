"""kill -9 at random points: the parent and its workers, many times over, and the same command goes on.

Simulated device, real processes. Whatever was killed, the published files are those of an undisturbed run or are not
there at all, and no more is done twice than what was in the hands of a worker.
"""

import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytestmark = [pytest.mark.flashinfer, pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")]

ROOT = Path(__file__).parents[2]
SEED = 20261130
PARENT_KILLS, WORKER_KILLS = 7, 13
DEPLOYMENT = """\
gpu: H200
model: qwen3-30b-a3b
model_path: /models/Qwen3-30B-A3B
parallel: {tp: 2}
moe: {runner_backend: flashinfer_cutlass}
kv_token_capacity: 1000000
"""


class Site:
    """One target directory, its event file, and the command that fills it."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.deployment = folder / "deployment.yaml"
        self.deployment.write_text(DEPLOYMENT)
        self.events_file = folder / "events.jsonl"

    def start(self):
        command = [
            "run",
            str(self.deployment),
            "--device",
            "simulated",
            "--gpus",
            "2",
            "--events",
            str(self.events_file),
        ]
        return subprocess.Popen(
            [sys.executable, "-m", "autotune_planner", *command, "--cache-dir", str(self.folder / "cache")],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def events(self):
        lines = self.events_file.read_text().splitlines() if self.events_file.exists() else []
        parsed = []
        for line in lines:
            try:
                parsed.append(json.loads(line))
            except ValueError:
                assert line is lines[-1]  # only the last line may be torn
        return parsed

    def count(self, kind):
        return sum(event["event"] == kind for event in self.events())

    def is_at(self, finished, pid):
        return self.count("unit_finished") >= finished and bool(children_of(pid))

    def journaled(self):
        (journal,) = self.folder.glob("cache/flashinfer/autotune/*/*/*/.autotune-plan/journal.jsonl")
        records = []
        for line in journal.read_text().splitlines():
            with contextlib.suppress(ValueError):  # torn by a kill
                records.append(json.loads(line))
        return {record["unit"] for record in records if "unit" in record}

    def published(self):
        return {
            path.name: path.read_bytes() for path in self.folder.glob("cache/flashinfer/autotune/*/*/*/rank_*.json")
        }


def children_of(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        found += [int(child) for child in (task / "children").read_text().split()]
    workers = []
    for child in found:
        line = Path(f"/proc/{child}/cmdline").read_bytes()
        if b"spawn_main" in line:
            workers.append(child)
    return sorted(workers)


def wait_for(condition, process, seconds=120):
    """False where the process ended first."""
    until = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            return False
        assert time.monotonic() < until, "the run does not move"
        time.sleep(0.002)
    return True


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("chaos") / "undisturbed")
    process = site.start()
    assert process.wait(timeout=300) == 0, process.stderr.read()
    assert site.count("unit_finished") == 42
    return site.published()


def test_twenty_kills(undisturbed, tmp_path):
    chance = random.Random(SEED)
    kills = ["parent"] * PARENT_KILLS + ["worker"] * WORKER_KILLS
    chance.shuffle(kills)
    site, log = Site(tmp_path / "site"), []
    process = site.start()
    for kind in kills:
        if process.poll() is not None:  # done before the next kill: there is nothing left to break
            break
        already = site.count("unit_finished")
        wanted = already + chance.randint(0, 2)
        if not wait_for(functools.partial(site.is_at, wanted, process.pid), process):
            break
        time.sleep(chance.random() * 0.02)
        if kind == "worker":
            workers = children_of(process.pid)
            if not workers:
                continue
            os.kill(chance.choice(workers), signal.SIGKILL)
        else:
            orphans = children_of(process.pid)
            process.kill()
            process.wait()
            for orphan in orphans:  # they end by themselves when their parent is gone
                until = time.monotonic() + 60
                while Path(f"/proc/{orphan}").exists() and time.monotonic() < until:
                    time.sleep(0.05)
                assert not Path(f"/proc/{orphan}").exists()
            process = site.start()
        log.append(f"{kind} at {site.count('unit_finished')} finished")
        assert site.published() in ({}, undisturbed)
    while True:
        process.wait(timeout=300)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, process.stderr.read()
        process = site.start()
    print(*log, sep="\n")
    assert len(log) >= PARENT_KILLS
    assert site.published() == undisturbed
    finished = Counter(json.dumps(event["unit"]) for event in site.events() if event["event"] == "unit_finished")
    started = sum(event["event"] == "unit_started" for event in site.events())
    # A record comes before its event, which may die with the parent: the journal has every profile.
    assert len(site.journaled()) == 42
    assert len(finished) >= 42 - PARENT_KILLS
    # A killed worker costs its unit once more, a killed parent the unit of each of its two workers.
    lost = sum(2 if line.startswith("parent") else 1 for line in log)
    assert started <= 42 + lost
    assert sum(finished.values()) <= 42 + 2 * PARENT_KILLS


def test_interrupted_by_sigterm(undisturbed, tmp_path):
    site = Site(tmp_path / "site")
    process = site.start()
    assert wait_for(lambda: site.count("unit_finished") >= 5, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 130
    assert site.published() == {}
    again = site.start()
    assert again.wait(timeout=300) == 0
    assert site.published() == undisturbed
    assert site.count("unit_finished") <= 42 + 2


def test_two_runs_at_once(undisturbed, tmp_path):
    site = Site(tmp_path / "site")
    first = site.start()
    assert wait_for(lambda: site.count("unit_started") >= 1, first)
    second = site.start()
    assert second.wait(timeout=120) == 7
    said = second.stderr.read()
    assert f"process {first.pid}" in said
    assert first.wait(timeout=300) == 0
    assert site.published() == undisturbed


def test_a_full_disk_while_publishing(undisturbed, tmp_path, monkeypatch, cli):
    """fsync says so: exit 4, nothing half is there, and with room the same command finishes from the journal."""
    import errno

    site = Site(tmp_path / "site")
    command = ("run", site.deployment, "--device", "simulated", "--gpus", "2", "--cache-dir", site.folder / "cache")
    from autotune_planner.cache import publish

    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(publish, "_write", full)
        result = cli(*command)
    assert result.code == 4
    assert "space" in result.err
    assert site.published() == {}
    assert cli(*command).code == 0
    assert site.published() == undisturbed
