"""Tuning on a Ray cluster: two nodes of a local one, CPUs in place of GPUs, the simulated device. Expected is what one
machine alone finds, whatever tasks and hosts are lost on the way."""

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from autotune_planner.cli.main import _interrupt
from autotune_planner.errors import InterruptedRunError, NotPossibleHereError, UsageError
from autotune_planner.ops.base import JitModule
from autotune_planner.tuning.messages import ModuleBuilding, ModuleReady, UnitFinished, WorkerLost, WorkerSpec
from autotune_planner.tuning.pool import Watchdog
from autotune_planner.tuning.ray_executor import RayCluster, RayExecutor, connect, differences, given_up
from autotune_planner.tuning.tune import Options, tune
from tests.command import call
from tests.tuning.plans import H200, small_plan

pytestmark = [pytest.mark.flashinfer, pytest.mark.xdist_group("ray")]

NODE = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20}
RUN = ("run", "examples/qwen3-30b-h200-dp8.yaml", "--device", "simulated")
MODULES = ("missing", "broken")
STAMP = {"flashinfer_version": "0.7.2", "cudnn_version": "91900", "gpu": "NVIDIA H200"}


def tuned_on(devices, work_dir, observer, **options):
    return tune(
        small_plan(),
        device="simulated",
        devices=devices,
        work_dir=work_dir,
        observer=observer,
        options=Options(**options),
    )


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return tuned_on(1, tmp_path_factory.mktemp("local"), lambda event: None)


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="Ray is not installed (extra [ray])")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args=NODE)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def second(cluster):
    """``second(**environment)``: start a second node, gone after the test."""
    nodes = []

    def start(**environment):
        nodes.append(cluster.add_node(**NODE, env_vars=environment))
        return nodes[-1]

    yield start
    for node in nodes:
        if node in cluster.list_all_nodes():
            cluster.remove_node(node)


def processes_of(node):
    """Ids of the processes that a node's raylet has started."""
    (raylet,) = (found.process.pid for found in node.all_processes["raylet"])
    return [int(pid) for pid in Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()]


def task_of(node):
    """Id of the process that runs our task on a node."""
    return next(pid for pid in processes_of(node) if b"GpuTask" in Path(f"/proc/{pid}/cmdline").read_bytes())


def picks(tuned):
    return [(result.unit, result.search.pick) for result in tuned.results]


def test_a_cluster_gives_what_one_machine_gives_though_a_host_is_lost(local, cluster, second, tmp_path):
    other = second()
    events = []

    def lose_a_host_after_the_first(event):
        if isinstance(event, UnitFinished) and not any(isinstance(event, UnitFinished) for event in events):
            cluster.remove_node(other, allow_graceful=False)
        events.append(event)

    tuned = tuned_on(connect(cluster.address, "simulated", 2), tmp_path, lose_a_host_after_the_first)
    assert len({event.worker for event in events if isinstance(event, WorkerLost)}) == 1
    assert tuned.entries == local.entries
    assert picks(tuned) == picks(local)
    assert tuned.metadata == local.metadata
    assert (tuned.failures, tuned.resumed) == ((), 0)
    assert [(host.gpus, dict(host.differs)) for host in tuned.hosts] == [(1, {}), (1, {})]


def test_units_of_a_killed_task_are_tuned_again(local, cluster, tmp_path):
    events = []

    def kill_after_the_third(event):
        events.append(event)
        if isinstance(event, UnitFinished) and sum(isinstance(event, UnitFinished) for event in events) == 3:
            os.kill(task_of(cluster.head_node), signal.SIGKILL)

    tuned = tuned_on(connect(cluster.address, "simulated", 1), tmp_path, kill_after_the_third)
    (lost,) = [event for event in events if isinstance(event, WorkerLost)]
    assert "died" in lost.reason
    finished = [event.result.unit for event in events if isinstance(event, UnitFinished)]
    assert sorted(unit.id for unit in finished) == sorted(unit.id for unit in small_plan().units)
    assert tuned.failures == ()
    assert (tuned.entries, picks(tuned)) == (local.entries, picks(local))
    assert [host.gpus for host in tuned.hosts] == [1]


def test_a_host_with_another_environment_is_listed_and_not_used(local, cluster, second, tmp_path):
    # FlashInfer's stamp names every installed distribution of the CuTe DSL: one more makes it another environment.
    package = tmp_path / "site" / "nvidia_cutlass_dsl_libs_other-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cutlass-dsl-libs-other\nVersion: 1.0\n")
    second(PYTHONPATH=os.pathsep.join([str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])]))
    done = call(*RUN, "--gpus", 2, "--cache-dir", tmp_path, "--json", "--executor", "ray", "--address", cluster.address)
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert (document["entries"], len(document["published"])) == (42, 8)
    assert document["metadata"] == local.metadata
    used, dropped = document["hosts"]
    assert (used["gpus"], used["differs"], dropped["gpus"]) == (1, {}, 1)
    ((field, values),) = dropped["differs"].items()
    assert (field, values["here"]) == ("cutlass_dsl_version", local.metadata["cutlass_dsl_version"])
    assert "nvidia-cutlass-dsl-libs-other==1.0" in values["there"]
    assert f"not tuned on {dropped['host']}: cutlass_dsl_version is " in done.err


def test_modules_are_built_on_the_hosts(cluster):
    missing, broken = (JitModule(name, f"tests.tuning.jit_modules:gen_{name}_module", 2) for name in MODULES)
    connect(cluster.address, "simulated", 1)
    events = []
    with (
        pytest.raises(NotPossibleHereError) as raised,
        RayExecutor([WorkerSpec(0, "simulated", None, H200, 0, "")], events.append, Watchdog()) as executor,
    ):
        executor.first_ready()
        executor.build([missing])
        executor.build([broken])
    assert [event.name for event in events if isinstance(event, ModuleBuilding | ModuleReady)] == ["missing", "missing"]
    assert raised.value.code == "jit-failed"
    assert "Could not find nvcc" in raised.value.message


def test_an_interruption_ends_the_tasks(cluster, tmp_path):
    gpus = connect(cluster.address, "simulated", 1)

    def interrupt(event):
        if isinstance(event, UnitFinished):
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, _interrupt)
    try:
        with pytest.raises(InterruptedRunError):
            tuned_on(gpus, tmp_path, interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    connect(cluster.address, "simulated", 1)  # its CPU is free again


def test_an_address_is_a_clusters():
    done = call(*RUN, "--json", "--address", "auto")
    assert (done.code, json.loads(done.out)["code"]) == (2, "usage")


def test_more_gpus_than_are_free(cluster):
    with pytest.raises(NotPossibleHereError) as raised:
        connect(cluster.address, "cuda", None)
    assert (raised.value.code, raised.value.where) == ("too-few-gpus", "--gpus")


def test_no_cluster_answers():
    pytest.importorskip("ray", reason="Ray is not installed (extra [ray])")
    with pytest.raises(NotPossibleHereError) as raised:
        connect("127.0.0.1:1", "simulated", 1)
    assert (raised.value.code, raised.value.where) == ("no-cluster", "--address")
    with pytest.raises(UsageError):
        connect("ray://127.0.0.1:10001", "simulated", 1)


def test_a_cluster_that_was_noted_on_this_host_and_is_gone(monkeypatch, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed (extra [ray])")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(NotPossibleHereError) as raised:
        connect("auto", "simulated", 1)
    assert raised.value.code == "no-cluster"


def test_ray_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(NotPossibleHereError) as raised:
        connect("auto", "simulated", 1)
    assert raised.value.code == "ray-missing"
    assert "pip install 'autotune-planner[ray]'" in raised.value.hint


def test_differing_fields_by_hand():
    assert differences(STAMP, STAMP) == {}
    other = {"flashinfer_version": "0.7.2", "cudnn_version": "91800", "extra": "ignored"}
    assert differences(other, STAMP) == {"cudnn_version": ("91800", "91900"), "gpu": ("missing", "NVIDIA H200")}


def test_a_unit_may_cost_three_tasks():
    first, second, *_ = small_plan().units
    losses = Counter()
    assert given_up([first, second], losses) == ()
    assert given_up([first], losses) == ()
    assert given_up([first, second], losses) == (first,)
    assert given_up([second], losses) == (second,)


def test_a_cluster_counts_its_gpus():
    assert len(RayCluster(3)) == 3
