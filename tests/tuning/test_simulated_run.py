"""Whole runs on the simulated device: real worker processes, real op code, a cost model for a clock."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from autotune_planner.engines.resolved import OpUse
from autotune_planner.errors import NotPossibleHereError
from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.plan.schedule import Shard
from autotune_planner.tuning.keys import exact_keys
from autotune_planner.tuning.messages import UnitFinished, UnitStarted, WorkerLost, WorkerSpec
from autotune_planner.tuning.pool import Watchdog, WorkerPool
from autotune_planner.tuning.quarantine import Quarantine
from autotune_planner.tuning.tune import Options, tune
from tests.tuning.plans import H200, plan_of, qwen3_moe, small_plan

pytestmark = pytest.mark.flashinfer

GIB = 1 << 30


def simulated(work_dir, observer, plan=None, devices=1, **options):
    return tune(
        plan or small_plan(),
        device="simulated",
        devices=devices,
        work_dir=work_dir,
        observer=observer,
        options=Options(**options),
    )


def count(events, kind):
    return sum(isinstance(event, kind) for event in events)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """``(work_dir, tuned, events)`` of a run with one worker."""
    work_dir, events = tmp_path_factory.mktemp("one"), []
    return work_dir, simulated(work_dir, events.append), events


def test_every_unit_gives_its_own_key(one):
    _, tuned, events = one
    keys = {key.key: list(key.policy) for key in exact_keys(small_plan())}
    assert {key: value[2] for key, value in tuned.entries.items()} == keys
    assert [result.unit for result in tuned.results] == list(small_plan().units)
    assert (tuned.failures, tuned.resumed, tuned.build_seconds) == ((), 0, 0.0)
    assert (count(events, UnitStarted), count(events, UnitFinished), count(events, WorkerLost)) == (12, 12, 0)


def test_the_stamp_says_simulated(one):
    assert one[1].metadata["gpu"] == "simulated NVIDIA H200"


def test_the_device_clock_of_stock_tuning(tmp_path):
    # 46 tactics of a MoE GEMM (45 stand-ins and the default), 9 of a linear; each at least its 5 ms delay kernel, and
    # 20 ms a profile (profiles/search.yaml).
    for result in simulated(tmp_path, lambda event: None, strategy="stock").results:
        timings = 9 if result.unit.custom_op == "fp8_gemm" else 46
        assert 0.005 * timings < result.device_seconds - 0.02 < 0.007 * timings


def test_two_workers_give_the_same_entries(one, tmp_path):
    events = []

    def wait_for_the_second(event):  # units take milliseconds here, its start takes seconds
        events.append(event)
        if isinstance(event, UnitFinished) and all(getattr(event, "worker", 0) == 0 for event in events):
            time.sleep(3)

    tuned = simulated(tmp_path, wait_for_the_second, devices=2)
    assert tuned.entries == one[1].entries
    assert tuned.metadata == one[1].metadata
    assert {event.worker for event in events if isinstance(event, UnitFinished)} == {0, 1}


def test_a_second_run_finds_everything_done(one):
    work_dir, first, _ = one
    events = []
    again = simulated(work_dir, events.append)
    assert again.resumed == len(small_plan().units)
    assert events == []
    assert again.entries == first.entries
    picks = [(result.unit, result.search.pick, result.skipped) for result in first.results]
    assert [(result.unit, result.search.pick, result.skipped) for result in again.results] == picks


def test_fresh_does_it_all_again(one, tmp_path):
    work_dir, first, _ = one
    (tmp_path / "journal.jsonl").write_bytes((work_dir / "journal.jsonl").read_bytes())
    events = []
    again = simulated(tmp_path, events.append, fresh=True)
    assert again.resumed == 0
    assert count(events, UnitStarted) == 12
    assert again.entries == first.entries


def peak_memory(process):
    """Highest resident memory of a live process so far, in bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads a worker's peak memory from /proc")
def test_a_worker_stays_small_whatever_the_model(tmp_path):
    # Qwen3-30B-A3B at tp1 has 1.2 GB of MoE weights, Llama-3.1-8B 0.2 GB of linears: none of it may be materialised.
    linears = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
    uses = [OpUse(name, BmmFp8(n=n, k=k), 3906, None, 3906, 8192) for name, (n, k) in linears.items()]
    plan = plan_of(OpUse("mlp.experts", qwen3_moe(tp=1), 4096, None, 4096, 8192), *uses)
    assert len(plan.units) == 2 * 21 + 4 * 21
    peaks = []

    def observer(event):
        if isinstance(event, UnitFinished):
            peaks.extend(peak_memory(child) for child in multiprocessing.active_children())

    tuned = simulated(tmp_path, observer, plan)
    assert tuned.failures == ()
    assert max(peaks) <= 1.5 * GIB


def test_a_killed_worker_costs_one_unit_twice(one, tmp_path):
    events = []

    def kill_on_the_third(event):
        events.append(event)
        if isinstance(event, UnitStarted) and count(events, UnitStarted) == 3:
            (child,) = multiprocessing.active_children()
            os.kill(child.pid, signal.SIGKILL)

    tuned = simulated(tmp_path, kill_on_the_third)
    third = [event.unit for event in events if isinstance(event, UnitStarted)][2]
    assert [event for event in events if isinstance(event, WorkerLost)] == [WorkerLost(0, third, "killed by SIGKILL")]
    assert [event.unit for event in events if isinstance(event, UnitStarted)].count(third) == 2
    assert (tuned.failures, tuned.quarantined) == ((), ())
    assert tuned.entries == one[1].entries


def test_a_killed_workers_shard_moves_to_another_gpu(tmp_path):
    units = small_plan().units
    work = [Shard(units[start : start + 4], 1.0) for start in (0, 4, 8)] * 1000
    specs = [spec(index, tmp_path / f"worker-{index}.log") for index in (0, 1)]
    events = []

    def kill_the_second(event):
        events.append(event)
        if count(events, WorkerLost) == 0 and isinstance(event, UnitStarted) and event.worker == 1:
            _, second = sorted(multiprocessing.active_children(), key=lambda child: child.pid)
            os.kill(second.pid, signal.SIGKILL)
        if count(events, WorkerLost) and count(events[events.index(lost(events)) :], UnitFinished) == 9:
            raise KeyboardInterrupt

    def lost(events):
        return next(event for event in events if isinstance(event, WorkerLost))

    def run():
        with WorkerPool(specs, kill_the_second, Watchdog()) as workers:
            quarantine = Quarantine(tmp_path / "quarantine.json", workers.first_ready().metadata)
            workers.tune(work, "race", quarantine, lambda unit: 1.0, lambda result: None)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert lost(events).worker == 1
    after = [event for event in events[events.index(lost(events)) :] if isinstance(event, UnitStarted)]
    # The first worker ends its own shard (at most 3 units are left of it), then takes all of the lost one.
    place = [event.unit for event in after].index(lost(events).unit)
    assert place <= 3
    shard = next(shard for shard in work if lost(events).unit in shard.units)
    moved = after[place : place + 4]
    assert {event.worker for event in moved} == {0}
    assert tuple(event.unit for event in moved) == shard.units


def test_an_interrupted_run_leaves_no_process_and_keeps_what_it_had(tmp_path):
    events = []

    def interrupt(event):
        events.append(event)
        if count(events, UnitFinished) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulated(tmp_path, interrupt)
    assert multiprocessing.active_children() == []
    assert simulated(tmp_path, events.append).resumed == 3


def spec(index, log_path):
    return WorkerSpec(index, "simulated", None, H200, 0, str(log_path))


def test_a_worker_that_never_starts_ends_the_run(tmp_path):
    events = []
    log = tmp_path / "missing" / "worker-0.log"
    with (
        pytest.raises(NotPossibleHereError) as raised,
        WorkerPool([spec(0, log)], events.append, Watchdog()) as workers,
    ):
        workers.first_ready()
    assert raised.value.code == "worker-failed"
    assert raised.value.where == str(log)
    assert events == [WorkerLost(0, None, "exit code 1")] * 3
    assert multiprocessing.active_children() == []


def test_a_second_worker_that_never_starts_ends_the_run_too(tmp_path):
    specs = [spec(0, tmp_path / "worker-0.log"), spec(1, tmp_path / "missing" / "worker-1.log")]

    def run():
        with WorkerPool(specs, lambda event: None, Watchdog()) as workers:
            ready = workers.first_ready()
            quarantine = Quarantine(tmp_path / "quarantine.json", ready.metadata)
            work = [Shard((unit,), 1.0) for unit in small_plan().units] * 50
            workers.tune(work, "race", quarantine, lambda unit: 1.0, lambda result: None)

    with pytest.raises(NotPossibleHereError) as raised:
        run()
    assert (raised.value.code, raised.value.where) == ("worker-failed", specs[1].log_path)
    assert multiprocessing.active_children() == []


def test_a_worker_that_starts_at_the_third_attempt_is_used(tmp_path):
    log = tmp_path / "late" / "worker-0.log"
    events = []

    def second_failure(event):
        events.append(event)
        if count(events, WorkerLost) == 2:
            log.parent.mkdir()

    with WorkerPool([spec(0, log)], second_failure, Watchdog()) as workers:
        assert workers.first_ready().metadata["gpu"] == "simulated NVIDIA H200"
    assert count(events, WorkerLost) == 2


def test_eight_virtual_gpus_scale(tmp_path):
    """The four linears of Llama-3.1-8B, 84 units: by the virtual GPUs' own clocks at least 7 times faster on 8."""
    linears = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
    plan = plan_of(*(OpUse(name, BmmFp8(n=n, k=k), 4096, None, 4096, 8192) for name, (n, k) in linears.items()))
    one, eight = (
        simulated(tmp_path / str(gpus), lambda event: None, plan, devices=gpus).device_seconds for gpus in (1, 8)
    )
    assert one / eight >= 7
