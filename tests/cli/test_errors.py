"""Bad input: one clear message each, the right exit code, never a traceback."""

import errno
import json
import os
import subprocess
import sys

import pytest

from autotune_planner import pipeline, planning
from autotune_planner.cache import publish
from autotune_planner.tuning import devices
from autotune_planner.tuning.devices import CudaDevice
from tests.cli.conftest import ROOT

H200 = CudaDevice(0, "NVIDIA H200", (9, 0), 143155)


@pytest.mark.parametrize(
    ("changes", "where", "words"),
    [
        ({"chunked_prefil_size": "8192"}, "deployment.yaml:6", ["chunked_prefil_size", "chunked_prefill_size"]),
        (
            {"parallel": "{tp: 8, dp: 3, dp_attention: true}"},
            "deployment.yaml:6: parallel.dp (--dp-size)",
            ["8", "3", "1, 2, 4, 8"],
        ),
        (
            {"flags": "{page_size: 64}", "prefill": "{chunked_prefill_size: 1000}"},
            "--chunked-prefill-size",
            ["960", "1024"],
        ),
        ({"flags": "{page_sise: 64}"}, "deployment.yaml:6", ["page-sise", "page_size"]),
        ({"flags": "{tp_size: 8}"}, "deployment.yaml:6", ["parallel: {tp: ...}"]),
        ({"moe": "{runner_backend: flashinfer_cutlas}"}, "deployment.yaml:4", ["flashinfer_cutlass"]),
        (
            {"parallel": "{tp: 8, ep: 2}"},
            "deployment.yaml:6: parallel.ep (--ep-size)",
            ["flashinfer_cutlass", "--ep-size 8"],
        ),
        ({"engine_version": "0.5.22"}, "deployment.yaml:6", ["0.5.22", "0.5.23"]),
        (
            {"autotune": "{extend: true}", "env": '{SGLANG_FLASHINFER_AUTOTUNE_EXTEND: "0"}'},
            "deployment.yaml",
            ["extend"],
        ),
    ],
)
def test_an_invalid_deployment_exits_3(cli, deployment, changes, where, words):
    result = cli("compute", deployment(**changes))
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("error: ")
    assert where in result.err
    assert all(word in result.err for word in words)
    assert "Traceback" not in result.err


def test_a_server_without_rules_exits_3(cli, deployment):
    result = cli("compute", deployment(engine="vllm"))
    assert result.code == 3
    assert "deployment.yaml:6" in result.err
    assert "known: sglang" in result.err


def test_rules_can_be_assumed_for_a_release_without_any_and_say_so(cli, deployment):
    path = deployment(engine_version="0.5.24")
    refused = cli("compute", path)
    assert refused.code == 3
    assert "--assume-rules 0.5.23" in refused.err
    assumed = cli("compute", path, "--assume-rules", "0.5.23", "--json")
    document = json.loads(assumed.out)
    assert assumed.code == 0
    assert document["warnings"][0]["code"] == "rules-assumed"
    assert "0.5.24" in document["warnings"][0]["message"]


@pytest.mark.parametrize("version", [None, "0.5.23", "0.5.24"])
@pytest.mark.parametrize("command", ["compute", "check"])
def test_unknown_rules_are_never_assumed(cli, deployment, command, version):
    result = cli(command, deployment(engine_version=version), "--assume-rules", "banana")
    assert (result.code, result.out) == (2, "")
    assert "no rules for sglang banana" in result.err
    assert "known: 0.5.23" in result.err


def test_known_rules_are_not_overridden(cli, deployment):
    document = json.loads(cli("compute", deployment(), "--assume-rules", "0.5.23", "--json").out)
    assert "rules-assumed" not in {notice["code"] for notice in document["warnings"]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parallel": "{tp: 1024}"}, "attention heads 32 over 1024 ranks"),
        ({"parallel": "{tp: 32, dp: 32, dp_attention: true, ep: 1}"}, None),  # 768 / 32 = 24, one head group a rank
        ({"parallel": "{tp: 5, dp: 5, dp_attention: true}"}, "MoE intermediate size 768 over 5 ranks"),
        ({"parallel": "{tp: 3}", "model": "llama-3.1-8b-fp8", "moe": None}, "attention heads 32 over 3 ranks"),
    ],
)
def test_shapes_that_cannot_be_split_are_an_error_and_are_not_tuned(cli, deployment, tmp_path, changes, words):
    """The server resolves such arguments and fails while it builds the model, so compute still shows the numbers."""
    path = deployment(**changes)
    computed = cli("compute", path, "--json")
    document = json.loads(computed.out)
    assert computed.code == 0
    errors = [notice["message"] for notice in document["warnings"] if notice["level"] == "error"]
    if words is None:
        assert errors == []
        assert document["ops"]
        return
    assert words in errors[0]
    assert document["ops"] == []
    ran = cli("run", path, "--device", "simulated", "--cache-dir", tmp_path / "cache")
    assert ran.code == 3
    assert words in ran.err
    assert not (tmp_path / "cache").exists()


def test_a_model_folder_without_config_json_exits_3(cli, deployment, tmp_path):
    (tmp_path / "empty").mkdir()
    result = cli("compute", deployment(model=tmp_path / "empty"))
    assert result.code == 3
    assert "config.json" in result.err


def test_a_file_that_is_not_there_exits_3(cli):
    result = cli("compute", "no-such-file.yaml")
    assert result.code == 3
    assert "no-such-file.yaml" in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "x.yaml", "--cache-dir", ""),
        ("run", "x.yaml", "--cache-dir", "--dry-run"),
        ("compute",),
        ("run", "x.yaml", "--device", "tpu"),
        ("nothing",),
        ("run", "x.yaml", "--gpus", "none"),
    ],
)
def test_wrong_usage_exits_2(cli, arguments):
    result = cli(*arguments)
    assert result.code == 2
    assert "try: " in result.err


def test_errors_as_json(cli, deployment):
    result = cli("compute", deployment(parallel="{tp: 8, dp: 3, dp_attention: true}"), "--json")
    assert result.code == 3
    document = json.loads(result.out)
    assert document["schema"] == "autotune-plan/error@1"
    assert document["exit_code"] == 3
    assert document["where"].endswith("deployment.yaml:6: parallel.dp (--dp-size)")
    assert document["hint"]


def test_usage_errors_as_json(cli):
    result = cli("compute", "--json")
    assert json.loads(result.out)["exit_code"] == result.code == 2


def test_run_without_a_gpu_and_without_the_flag_exits_4(cli, deployment, monkeypatch):
    monkeypatch.setattr(pipeline, "cuda_devices", lambda: ())
    result = cli("run", deployment())
    assert result.code == 4
    assert "--device simulated" in result.err


def test_more_gpus_than_there_are_exits_4_and_lists_them(cli, deployment, monkeypatch):
    monkeypatch.setattr(pipeline, "cuda_devices", lambda: (H200,))
    result = cli("run", deployment(), "--gpus", 8)
    assert result.code == 4
    assert "GPU 0: NVIDIA H200, SM90, 143155 MiB" in result.err
    assert "--gpus all" in result.err


@pytest.mark.parametrize(
    ("name", "capability", "words"),
    [("NVIDIA A100-SXM4-80GB", (8, 0), "SM90 and newer"), ("NVIDIA H100 80GB HBM3", (9, 0), "says NVIDIA H200")],
)
def test_the_wrong_gpu_exits_4(cli, deployment, monkeypatch, name, capability, words):
    monkeypatch.setattr(pipeline, "cuda_devices", lambda: (CudaDevice(0, name, capability, 81559),))
    result = cli("run", deployment())
    assert result.code == 4
    assert words in result.err


@pytest.mark.parametrize("missing", ["torch", "flashinfer"])
def test_a_missing_package_exits_4(cli, deployment, monkeypatch, missing):
    find = devices.importlib.util.find_spec
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    result = cli("run", deployment())
    assert result.code == 4
    assert missing in result.err
    assert "flashinfer-python==0.7.2" in result.err


def test_another_flashinfer_than_the_servers_exits_4(cli, deployment, monkeypatch):
    monkeypatch.setattr(devices.internals, "installed_version", lambda: "0.7.4")
    result = cli("run", deployment())
    assert result.code == 4
    assert "0.7.2" in result.err
    assert "--flashinfer-version 0.7.4" in result.err


def test_a_server_with_another_flashinfer_has_another_path(cli, deployment, monkeypatch):
    monkeypatch.setattr(devices.internals, "installed_version", lambda: "0.7.4")
    result = cli("run", deployment(), "--flashinfer-version", "0.7.4", "--dry-run")
    assert result.code == 0
    assert "/autotune/0.7.4/sm90/" in result.out


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_cache_directory_that_cannot_be_written_exits_4_before_any_tuning(
    cli, deployment, monkeypatch, tmp_path, code
):
    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    def never(*_, **__):
        raise AssertionError("tuned although nothing could be published")

    monkeypatch.setattr(publish.os, "open", refuse)
    monkeypatch.setattr(pipeline, "tune", never)
    result = cli("run", deployment(), "--device", "simulated", "--cache-dir", tmp_path / "cache")
    assert result.code == 4
    assert errno.errorcode[code] in result.err
    assert "--cache-dir" in result.err
    assert not (tmp_path / "cache").exists()


def test_a_gpu_below_sm90_has_no_passes_and_cannot_be_tuned(cli, deployment):
    path = deployment(gpu="A100-80G")
    computed = cli("compute", path, "--json")
    document = json.loads(computed.out)
    assert computed.code == 0
    assert [found["run"] for found in document["passes"]] == [False, False]
    assert "SM80" in document["no_autotune_reason"]
    assert document["ops"] == []
    ran = cli("run", path)
    assert ran.code == 4
    assert "SM80" in ran.err


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "llama-3.1-8b", "model_path": "/models/Llama-3.1-8B", "moe": None}, "no op needs it"),
        ({"moe": "{runner_backend: triton}"}, "the MoE runner is triton"),
        ({"flags": "{enable_deterministic_inference: true}"}, "deterministic inference"),
        ({"flags": "{disable_flashinfer_autotune: true}"}, "--disable-flashinfer-autotune"),
    ],
)
def test_nothing_to_tune_exits_0_says_why_and_writes_nothing(cli, deployment, tmp_path, changes, reason):
    path = deployment(**changes)
    computed = cli("compute", path)
    assert computed.code == 0
    assert f"Nothing to tune: {reason}" in " ".join(computed.out.split()) or reason in computed.out
    ran = cli("run", path, "--device", "simulated", "--cache-dir", tmp_path / "cache")
    assert ran.code == 0
    assert reason in ran.out
    assert not (tmp_path / "cache").exists()


def test_a_bug_exits_1_and_asks_for_a_report(cli, deployment, monkeypatch):
    def bug(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(planning, "plan", bug)
    result = cli("compute", deployment())
    assert result.code == 1
    assert "please report" in result.err


def test_more_virtual_gpus_than_the_simulated_device_has_exits_4(cli, deployment):
    result = cli("run", deployment(), "--device", "simulated", "--gpus", 100)
    assert result.code == 4
    assert "--gpus 16" in result.err


def test_nothing_typed_is_a_call_for_help(cli):
    result = cli()
    assert (result.code, result.err) == (0, "")
    assert "compute" in result.out


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_output_that_cannot_be_written_is_one_line(deployment):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "autotune_planner", "compute", str(deployment())]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    assert done.returncode == 4
    assert "cannot write the output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_version(cli):
    result = cli("--version")
    assert (result.code, result.out) == (0, "autotune-plan 0.1.0\n")


def test_what_the_server_tunes_and_no_plan_can_is_not_called_nothing(cli, tmp_path):
    """gpt-oss-120b with flashinfer_cutlass on a B200: run exits 4 and check does not send back to run."""
    path = tmp_path / "deployment.yaml"
    path.write_text(
        "engine: sglang\nengine_version: 0.5.23\ngpu: B200\nmodel: gpt-oss-120b\nmodel_path: /models/gpt-oss-120b\n"
        "parallel: {tp: 8}\nmoe: {runner_backend: flashinfer_cutlass}\n"
    )
    result = cli("run", path, "--device", "simulated", "--cache-dir", tmp_path)
    assert result.code == 4
    assert "the server tunes the flashinfer_cutlass MoE with mxfp4 weights" in result.err
    assert "autotune-plan run" not in result.err
