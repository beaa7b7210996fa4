"""Two real GPUs of one host: a lost worker, and the ranks of one deployment reading what was published for them."""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from autotune_planner import pipeline, planning
from autotune_planner.deployment.load import load_deployment
from autotune_planner.deployment.model import Gpu
from autotune_planner.engines.resolved import OpUse
from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.proof import replay as replaying
from autotune_planner.proof.sessions import sessions
from autotune_planner.tuning.devices import cuda_devices
from autotune_planner.tuning.environment import probe_machine
from autotune_planner.tuning.messages import UnitStarted, WorkerLost
from autotune_planner.tuning.tune import Options, tune
from tests.tuning.plans import plan_of

pytestmark = [pytest.mark.gpu, pytest.mark.flashinfer]

LINEAR = """
engine: sglang
engine_version: 0.5.23
gpu: H200
model: llama-3.1-8b-fp8
model_path: /models/Llama-3.1-8B-FP8
parallel: {tp: 2}
decode: {max_running_requests: 300}
"""
MOE = """
engine: sglang
engine_version: 0.5.23
gpu: H200
model: qwen3-30b-a3b
model_path: /models/Qwen3-30B-A3B
parallel: {tp: 2, ep: EP}
moe: {runner_backend: flashinfer_cutlass}
"""
DEPLOYMENTS = {"linears tp2": LINEAR, "moe tp2": MOE.replace("EP", "1"), "moe ep2": MOE.replace("EP", "2")}
HANG_SECONDS = 240


@pytest.fixture(scope="module")
def devices():
    found = [device for device in cuda_devices() if device.name == "NVIDIA H200"]
    if len(found) < 2:
        pytest.skip(f"needs two H200s; torch sees {len(found)}")
    return found[:2]


def test_a_killed_workers_shard_moves_to_the_other_gpu(devices, tmp_path):
    device = devices[0]
    gpu = Gpu(device.name, "nvidia", device.memory_mib, device.compute_capability, None)
    linears = [BmmFp8(n=1024 * times, k=4096) for times in range(1, 9)]
    plan = plan_of(*(OpUse(f"linear {call.n}", call, 8192, None, 8192, None) for call in linears), gpu=gpu)
    events = []

    def kill_the_second(event):
        events.append(event)
        if isinstance(event, UnitStarted) and event.worker == 1 and not lost(events):
            _, second = sorted(multiprocessing.active_children(), key=lambda child: child.pid)
            os.kill(second.pid, signal.SIGKILL)
            second.join()

    tuned = tune(plan, device="cuda", devices=devices, work_dir=tmp_path, observer=kill_the_second, options=Options())
    (loss,) = lost(events)
    assert (loss.worker, loss.reason) == (1, "killed by SIGKILL")
    after = events[events.index(loss) :]
    again = next(event for event in after if isinstance(event, UnitStarted) and event.unit == loss.unit)
    assert again.worker == 0
    assert (tuned.failures, tuned.quarantined) == ((), ())
    assert {result.unit for result in tuned.results} == set(plan.units)


def lost(events):
    return [event for event in events if isinstance(event, WorkerLost)]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_ranks_read_their_files_as_one_group(devices, tmp_path, name):
    """As SGLang 0.5.23 does: each rank loads its own file, with its CPU group as FlashInfer's autotune group."""
    file = tmp_path / "deployment.yaml"
    file.write_text(DEPLOYMENTS[name])
    plan = planning.plan(load_deployment(file), {}, None)
    capability = devices[0].compute_capability
    modules = {module.name for unit in plan.units for module in unit.call.jit_modules(capability)}
    absent = [name for name, there in probe_machine(sorted(modules)).compiled.items() if "moe" in name and not there]
    if absent:
        pytest.skip(f"{', '.join(absent)} is not compiled here, and would take an hour")
    target = pipeline.target_of(plan, cache_dir=str(tmp_path / "cache"), flashinfer_version="0.7.2")
    pipeline.run(plan, device="cuda", devices=devices, target=target, observer=lambda event: None, options=Options())
    assert len(target.files) == 2
    (session,) = sessions(plan)
    reports = in_a_group(
        [str(target.directory / file) for file in target.files], session.steps, plan.resolved.gpu, tmp_path
    )
    for report in reports:
        assert report.loaded
        assert report.served
        assert [call.step.m for call in report.calls] == [step.m for step in session.steps]
    tactics = [[(each.key, each.tactic) for call in report.calls for each in call.lookups] for report in reports]
    assert tactics[0] == tactics[1]
    assert len(tactics[0]) >= len(session.steps)


def in_a_group(paths, steps, gpu, folder):
    """One process for each path, all in one gloo group; what each replayed."""
    context = multiprocessing.get_context("spawn")
    children = []
    for rank, path in enumerate(paths):
        receiver, sender = context.Pipe(duplex=False)
        where = str(folder / "group"), rank, len(paths), str(folder / f"rank-{rank}.log")
        child = context.Process(target=one_rank, args=(sender, where, path, steps, gpu), daemon=True)
        child.start()
        sender.close()
        children.append((child, receiver))
    reports = []
    for rank, (child, receiver) in enumerate(children):
        assert receiver.poll(HANG_SECONDS), f"rank {rank} hangs: {Path(folder / f'rank-{rank}.log').read_text()}"
        reports.append(receiver.recv())
        child.join()
    return reports


def one_rank(sender, where, path, steps, gpu):
    meeting, rank, world, log = where
    os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
    import torch.distributed as dist
    from flashinfer.autotuner import get_autotune_process_group, set_autotune_process_group

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    set_autotune_process_group(dist.group.WORLD)
    report = replaying._replay((path,), steps, "cuda", gpu, log)
    assert get_autotune_process_group() is dist.group.WORLD
    dist.barrier()
    sender.send(report)
    dist.destroy_process_group()
