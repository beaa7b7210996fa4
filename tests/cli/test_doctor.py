"""``doctor``: what this machine has against what a plan needs."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from autotune_planner import planning
from autotune_planner.deployment.load import load_deployment
from autotune_planner.plan.modules import build_seconds
from autotune_planner.tuning import environment
from autotune_planner.tuning.devices import CudaDevice
from autotune_planner.tuning.environment import Machine, Program, probe_machine, read_stamp
from autotune_planner.tuning.known_issues import known_issues
from autotune_planner.tuning.needs import items
from tests.cli.conftest import ROOT

QWEN = "examples/qwen3-30b-h200-tp1.yaml"
STAMP = json.loads((Path(__file__).parents[1] / "data" / "h200" / "mm_bf16.json").read_text())["_metadata"]


def machine(**changes):
    """An H200 machine that lacks nothing."""
    found = Machine(
        python="3.12.3",
        cores=16,
        driver="580.95.05",
        gpus=(CudaDevice(0, "NVIDIA H200", (9, 0), 143155),),
        torch="2.11.0+cu130",
        torch_cuda="13.0",
        flashinfer="0.7.2",
        prebuilt=None,
        metadata=STAMP,
        compiled={"fused_moe_90": True},
        compiled_folder="/root/.cache/flashinfer/0.7.2/90a/cached_ops",
        nvcc=Program("/usr/local/cuda/bin/nvcc", "release 13.0"),
        ninja=Program("/usr/bin/ninja", "1.11.1"),
        problem=None,
    )
    return replace(found, **changes)


@pytest.fixture
def plan(tmp_path):
    return planning.plan(load_deployment(ROOT / QWEN), {"SGLANG_CACHE_DIR": str(tmp_path / "cache")})


def missing(found):
    return [item.topic for item in found if item.status == "missing"]


def test_a_machine_that_lacks_nothing(plan):
    assert missing(items(machine(), plan)) == []


@pytest.mark.parametrize(
    ("changes", "topic", "says"),
    [
        ({"gpus": ()}, "GPU", "none that torch can see; the plan is for NVIDIA H200"),
        ({"gpus": (CudaDevice(0, "NVIDIA H20", (9, 0), 97871),)}, "GPU", "files of another GPU are ignored"),
        ({"gpus": (CudaDevice(0, "NVIDIA A100-SXM4-80GB", (8, 0), 81920),)}, "GPU", "SM90 and newer only"),
        ({"torch": None}, "torch", "not installed"),
        ({"flashinfer": None}, "FlashInfer", "not installed"),
        ({"flashinfer": "0.7.4"}, "FlashInfer", "the release pins 0.7.2"),
        ({"problem": "ImportError: libcudart.so.12"}, "FlashInfer", "libcudart.so.12"),
        ({"compiled": {}, "nvcc": None}, "nvcc", "fused_moe_90 has to be compiled"),
        ({"compiled": {}, "ninja": None}, "ninja", "fused_moe_90 has to be compiled"),
    ],
)
def test_what_a_plan_cannot_do_without(plan, changes, topic, says):
    found = items(machine(**changes), plan)
    assert missing(found) == [topic]
    assert says in next(item.text for item in found if item.status == "missing")
    assert missing(items(machine(**changes), None)) == []  # without a plan nothing is needed


def test_compilers_are_not_needed_where_all_is_compiled(plan):
    assert missing(items(machine(nvcc=None, ninja=None), plan)) == []


def test_time_of_a_build(plan):
    """57600 core-seconds on 16 cores are an hour; 111 of 3 objects do not use more than 3 cores."""
    assert build_seconds("fused_moe_90", 16) == 3600
    assert build_seconds("gemm", 16) == 37
    assert build_seconds("a module of tomorrow", 16) is None
    module = next(item for item in items(machine(compiled={}), plan) if item.topic == "module fused_moe_90")
    assert (module.status, "248 objects, about 60 min on 16 cores" in module.text) == ("note", True)


def test_an_unknown_field_of_the_stamp_is_noted(plan):
    found = items(machine(metadata={**STAMP, "cudnn_version": "unknown"}), plan)
    assert next(item for item in found if item.topic == "stamp cudnn_version").status == "note"
    assert next(item for item in found if item.topic == "stamp gpu").text == "NVIDIA H200"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_directory_that_cannot_be_written(plan, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o500)
    assert missing(items(machine(), plan)) == ["cache directory"]


def test_a_cache_directory_below_a_file(plan, tmp_path):
    (tmp_path / "cache").write_text("")
    assert missing(items(machine(), plan)) == ["cache directory"]


@pytest.mark.parametrize(
    ("package", "version", "sm", "says"),
    [
        ("flashinfer", "0.6.15", {100}, "MLA decode"),
        ("flashinfer", "0.6.15", {90}, None),
        ("flashinfer", "0.6.15.post1", {100}, None),
        ("flashinfer", "0.6.14.post2", {103}, "hang"),
        ("flashinfer", "0.6.16", {100}, None),
        ("flashinfer", "0.6.16.post4", {100}, "NaN"),
        ("flashinfer", "0.6.17", {100}, "NaN"),
        ("flashinfer", "0.6.18", {100}, None),
        ("flashinfer", "0.6.12", {90}, "bmm_fp8"),
        ("flashinfer", "0.6.13", {90}, None),
        ("flashinfer", "0.7.2", {90}, "exact M"),
        ("flashinfer", "0.7.4", {90}, None),
        ("flashinfer", "0.7.2+cu130", set(), "exact M"),
        ("cudnn_frontend", "1.28.0", {90}, "prefill"),
        ("cudnn_frontend", "1.32.0", {90}, None),
        ("flashinfer", "unknown", {90}, None),
    ],
)
def test_known_issues(package, version, sm, says):
    """Versions as the sources of profiles/notices.yaml give them."""
    found = [issue.text for issue in known_issues({package: version}, sm)]
    assert any(says in text for text in found) if says else found == []


def test_every_known_issue_has_a_source_and_a_date():
    versions = {"flashinfer": "0.7.2", "sglang": "0.5.23"}
    assert all(issue.source and issue.date.startswith("2026-") for issue in known_issues(versions, ()))


# The command.


@pytest.fixture
def here(monkeypatch):
    """This machine is the one that a test gives."""

    def set_machine(found):
        monkeypatch.setattr(environment, "probe_machine", lambda modules=(): found)

    return set_machine


def test_exit_codes(cli, here):
    here(machine())
    assert cli("doctor", QWEN).code == 0
    here(machine(gpus=()))
    assert cli("doctor", QWEN).code == 4
    assert cli("doctor").code == 0


def test_text(cli, here):
    here(machine(gpus=(), metadata={**STAMP, "cudnn_version": "unknown", "gpu": "unknown"}))
    result = cli("doctor", QWEN)
    lines = result.out.splitlines()
    assert "missing  GPU" in result.out
    (unknown,) = [line for line in lines if "unknown: a file whose writer knew it is ignored here" in line]
    assert unknown.startswith("note     stamp ")
    assert "  cudnn_version, cutlass_dsl_version, gpu: unknown: a file" in unknown
    assert any(line.startswith("ok       stamp cublas_version") for line in lines)
    items = json.loads(cli("doctor", QWEN, "--json").out)["items"]
    assert {"stamp cudnn_version", "stamp cutlass_dsl_version", "stamp gpu"} <= {item["topic"] for item in items}
    assert any("try: run inside the server's image" in line for line in lines)
    assert result.err == ""


def test_the_document_is_an_environment_for_check(cli, here, tmp_path):
    here(machine())
    result = cli("doctor", "--json")
    document = json.loads(result.out)
    assert (result.code, document["schema"]) == (0, "autotune-plan/doctor@1")
    assert document["gpus"] == [{"index": 0, "name": "NVIDIA H200", "compute_capability": [9, 0], "memory_mib": 143155}]
    path = tmp_path / "env.json"
    path.write_text(result.out)
    assert read_stamp(path) == STAMP


def test_no_flags_of_the_server(cli):
    assert cli("doctor", "--", "--tp", "2").code == 2


@pytest.mark.flashinfer
def test_the_real_machine():
    """A child process asks; nothing is compiled here that a server needs, and this process imports no torch."""
    found = probe_machine(["fused_moe_90", "gemm"])
    assert found.problem is None
    assert found.flashinfer == "0.7.2"
    assert found.metadata is not None
    assert {"flashinfer_version", "cuda_version", "cudnn_version", "gpu"} <= set(found.metadata)
    assert set(found.compiled) == {"fused_moe_90", "gemm"}


def test_a_broken_installation_is_an_item(monkeypatch):
    monkeypatch.setattr(environment, "_inside", _broken)
    found = probe_machine()
    assert found.problem == "RuntimeError: no libcudart"
    assert found.metadata is None
    assert any("no libcudart" in item.text for item in items(found, None))


def _broken(modules):
    raise RuntimeError("no libcudart")


def test_a_child_that_dies_is_a_problem_and_no_traceback(monkeypatch):
    monkeypatch.setattr(environment, "_inside", _dies)
    assert "exit code 3" in (probe_machine().problem or "")


def _dies(modules):
    os._exit(3)
