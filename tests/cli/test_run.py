"""``run`` on the simulated device: published files, resume, interruption, locks, files that are not ours."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune_planner.cache.v1 import Entry, read_v1, render_v1
from autotune_planner.deployment.load import load_deployment
from autotune_planner.pipeline import plan, target_of
from autotune_planner.tuning.keys import exact_keys
from autotune_planner.tuning.lock import tuning_lock

pytestmark = [pytest.mark.flashinfer, pytest.mark.xdist_group("simulated-run")]

ROOT = Path(__file__).parents[2]
DP8 = ROOT / "examples" / "qwen3-30b-h200-dp8.yaml"


def target(cache_dir, deployment=DP8):
    return target_of(plan(load_deployment(deployment), {}), cache_dir=str(cache_dir), flashinfer_version="0.7.2")


def command(*arguments):
    return [sys.executable, "-m", "autotune_planner", *map(str, arguments)]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    cache_dir = tmp_path_factory.mktemp("cache")
    done = subprocess.run(
        command("run", DP8, "--device", "simulated", "--gpus", 2, "--cache-dir", cache_dir, "--json"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return cache_dir, json.loads(done.stdout), done.stderr


def test_every_rank_gets_the_same_bytes(published):
    cache_dir, document, _ = published
    files = [Path(path) for path in document["published"]]
    assert [file.name for file in files] == [f"rank_tp{i}_pp0_dp{i}.json" for i in range(8)]
    assert {file.parent.name for file in files} == {"e7ab5bf4f968e10d"}
    assert len({file.read_bytes() for file in files}) == 1
    assert {path.name for path in target(cache_dir).directory.iterdir()} == {file.name for file in files} | {
        ".autotune-plan"
    }


def test_keys_are_the_planned_ones_and_every_entry_has_its_policy(published):
    file = read_v1(Path(published[1]["published"][0]))
    planned = exact_keys(plan(load_deployment(DP8), {}))
    assert [entry.text for entry in file.entries] == [key.key for key in planned]
    assert [entry.policy for entry in file.entries] == [key.policy for key in planned]
    assert all(entry.text.endswith(", False))") for entry in file.entries)


def test_no_real_server_can_load_it(published):
    file = read_v1(Path(published[1]["published"][0]))
    assert file.metadata["gpu"] == "simulated NVIDIA H200"


def test_progress_and_logs(published):
    cache_dir, document, talk = published
    assert "42/42 profiles" in talk
    assert "AutoTuner" not in talk  # FlashInfer's own progress bar and log go to the workers' log files
    log = (target(cache_dir).work_dir / "worker-0.log").read_text()
    assert "Autotuning process starts" in log
    assert (document["entries"], document["failures"], document["build_seconds"]) == (42, [], 0.0)


def test_again_continues_and_fresh_starts_over(published):
    cache_dir, first, _ = published
    content = Path(first["published"][0]).read_bytes()
    for option, resumed in (("--json", 42), ("--fresh", 0)):
        done = subprocess.run(
            command("run", DP8, "--device", "simulated", "--cache-dir", cache_dir, "--json", option),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout)["resumed_units"] == resumed
        assert Path(first["published"][0]).read_bytes() == content


def test_interrupted_publishes_nothing_and_the_same_command_continues(tmp_path):
    arguments = command("run", DP8, "--device", "simulated", "--gpus", 1, "--cache-dir", tmp_path)
    journal = target(tmp_path).work_dir / "journal.jsonl"
    running = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (journal.exists() and journal.read_text().count("\n") > 3):
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, talk = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "the same command continues" in talk
    assert not list(target(tmp_path).directory.glob("*.json"))
    finished = journal.read_text().count('"unit"')
    again = subprocess.run([*arguments, "--json"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["resumed_units"] >= finished > 0
    assert len(list(target(tmp_path).directory.glob("*.json"))) == 8


def test_a_second_run_exits_7_and_names_the_first(cli, tmp_path):
    with tuning_lock(target(tmp_path).work_dir):
        result = cli("run", DP8, "--device", "simulated", "--cache-dir", tmp_path)
    assert result.code == 7
    assert "process" in result.err


def put(cache_dir, metadata, entries):
    place = target(cache_dir)
    place.directory.mkdir(parents=True)
    for name in place.files:
        (place.directory / name).write_bytes(render_v1(metadata, {entry.text: entry for entry in entries}))
    return place


def test_files_of_a_real_gpu_are_not_replaced_by_simulated_ones(cli, tmp_path):
    place = put(tmp_path, {"flashinfer_version": "0.7.2", "gpu": "NVIDIA H200"}, [])
    before = (place.directory / place.files[0]).read_bytes()
    result = cli("run", DP8, "--device", "simulated", "--cache-dir", tmp_path)
    assert result.code == 4
    assert "--cache-dir" in result.err
    assert (place.directory / place.files[0]).read_bytes() == before


def test_entries_of_other_ops_are_kept(published, tmp_path):
    metadata = read_v1(Path(published[1]["published"][0])).metadata
    other = Entry(
        "('fp8_gemm', 'CublasFp8GemmRunner', ((1, 8, 16), (1, 16, 8)), ())", "CublasFp8GemmRunner", 1, ("hot",)
    )
    place = put(tmp_path, metadata, [other])
    done = subprocess.run(
        command("run", DP8, "--device", "simulated", "--cache-dir", tmp_path, "--json"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["kept_entries"] == 1
    texts = {entry.text for entry in read_v1(place.directory / place.files[0]).entries}
    assert other.text in texts
    assert len(texts) == 43


def test_dry_run_writes_nothing(cli, tmp_path):
    result = cli("run", DP8, "--device", "simulated", "--cache-dir", tmp_path / "cache", "--dry-run")
    assert result.code == 0
    assert "Would tune 42 profiles" in result.out
    assert result.out.count("rank_tp") == 8
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("content", ['{"invalid_tactics": [', '{"invalid_tactics": [7]}', "[]"])
def test_a_blocklist_that_flashinfer_cannot_read(cli, tmp_path, monkeypatch, content):
    blocklist = tmp_path / "blocklist.json"
    blocklist.write_text(content)
    monkeypatch.setenv("FLASHINFER_TACTICS_BLOCKLIST", str(blocklist))
    result = cli("run", DP8, "--device", "simulated", "--cache-dir", tmp_path / "cache")
    assert result.code == 4
    assert str(blocklist) in result.err
    assert "FLASHINFER_TACTICS_BLOCKLIST" in result.err


def test_a_budget_for_nothing_publishes_nothing(cli, tmp_path):
    result = cli(
        "run", DP8, "--device", "simulated", "--gpus", "1", "--cache-dir", tmp_path, "--time-budget", "0.000001s"
    )
    assert (result.code, list(tmp_path.rglob("rank_*.json"))) == (0, [])
    assert "Nothing is published: no profile is tuned" in result.out
    assert "Left out by the time budget, which went to what is worth most: " in result.out
