"""``bundle`` and ``install`` from the command line: what a target would not load is refused; all ranks or none."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from autotune_planner.cache.v1 import read_v1, render_v1
from autotune_planner.deployment.load import load_deployment
from autotune_planner.pipeline import plan, target_of
from autotune_planner.tuning import environment
from autotune_planner.tuning.lock import tuning_lock

DATA = Path(__file__).parents[1] / "data"
PUBLISHED = DATA / "h200" / "published_qwen3-30b-h200-tp1.json"
STAMP = json.loads(PUBLISHED.read_text())["_metadata"]
PARALLEL = "{tp: 2}"


def target(file, cache_dir):
    return target_of(plan(load_deployment(file), {}), cache_dir=str(cache_dir), flashinfer_version="0.7.2")


@pytest.fixture
def machine(monkeypatch):
    """``machine(stamp)``: what FlashInfer says of the machine that installs; None where it is missing."""
    nothing = environment.Machine("3", 1, None, (), None, None, None, None, None, {}, None, None, None, None)

    def set_to(stamp):
        monkeypatch.setattr(environment, "probe_machine", lambda *_: replace(nothing, metadata=stamp))

    set_to(STAMP)
    return set_to


@pytest.fixture
def tuned(deployment, tmp_path):
    """A deployment file, and a cache directory in which both of its ranks have a file, a journal and a quarantine."""
    file, cache_dir = deployment(parallel=PARALLEL), tmp_path / "tuned"
    place = target(file, cache_dir)
    (place.directory / ".autotune-plan").mkdir(parents=True)
    for name in place.files:
        shutil.copy(PUBLISHED, place.directory / name)
    (place.directory / ".autotune-plan" / "journal.jsonl").write_text('{"schema": "autotune-plan/journal@2"}\n')
    (place.directory / ".autotune-plan" / "quarantine.json").write_text("{}")
    return file, cache_dir


@pytest.fixture
def bundle(cli, tuned, tmp_path):
    file, cache_dir = tuned
    assert cli("bundle", file, "--cache-dir", cache_dir, "-o", tmp_path / "b.tar.gz").code == 0
    return tmp_path / "b.tar.gz"


def files_below(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_what_a_bundle_holds(cli, tuned, tmp_path):
    file, cache_dir = tuned
    result = cli("bundle", file, "--cache-dir", cache_dir, "-o", tmp_path / "b.tar.gz", "--json")
    document = json.loads(result.out)
    assert (result.code, document["schema"]) == (0, "autotune-plan/bundle@1")
    relative = str(target(file, cache_dir).directory.relative_to(cache_dir))
    names = ["rank_tp0_pp0_dp0.json", "rank_tp1_pp0_dp0.json"]
    names += [f".autotune-plan/{name}" for name in ("journal.jsonl", "plan.json", "quarantine.json")]
    assert {item["path"] for item in document["files"]} == {f"{relative}/{name}" for name in names}
    assert document["metadata"] == STAMP
    assert document["provenance"]["engine"] == "sglang 0.5.23"
    assert document["provenance"]["deployment"]["file"] == "deployment.yaml"
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        plan_file = json.load(tar.extractfile(f"{relative}/.autotune-plan/plan.json"))
    assert plan_file["schema"] == "autotune-plan/plan@1"


def test_a_rank_without_a_file(cli, tuned, tmp_path):
    file, cache_dir = tuned
    (target(file, cache_dir).directory / "rank_tp1_pp0_dp0.json").unlink()
    result = cli("bundle", file, "--cache-dir", cache_dir, "-o", tmp_path / "b.tar.gz")
    assert (result.code, "rank_tp1_pp0_dp0.json" in result.err) == (5, True)
    assert f"try: autotune-plan run {file} --cache-dir {cache_dir}\n" in result.err
    assert not (tmp_path / "b.tar.gz").exists()


def test_a_server_that_reads_no_cache(cli, deployment, tmp_path):
    result = cli("bundle", deployment("flags: {disable_flashinfer_autotune: true}\n"), "-o", tmp_path / "b.tar.gz")
    assert (result.code, "reads no cache" in result.err) == (5, True)


def test_ranks_that_differ_or_are_damaged(cli, tuned, tmp_path):
    file, cache_dir = tuned
    rank = target(file, cache_dir).directory / "rank_tp1_pp0_dp0.json"
    for content in (DATA / "h200" / "cutlass_moe_bf16_run_a.json").read_bytes(), b"{":
        rank.write_bytes(content)
        result = cli("bundle", file, "--cache-dir", cache_dir, "-o", tmp_path / "b.tar.gz")
        assert (result.code, "rank_tp1_pp0_dp0.json" in result.err) == (5, True)


@pytest.mark.parametrize("name", ["b.tar.gz", "b.tar.zst", "b"])
def test_installed_is_what_was_tuned(cli, tuned, machine, tmp_path, name):
    if name.endswith("zst"):
        pytest.importorskip("zstandard")
    file, cache_dir = tuned
    assert cli("bundle", file, "--cache-dir", cache_dir, "-o", tmp_path / name).code == 0
    result = cli("install", tmp_path / name, "--for", file, "--cache-dir", tmp_path / "new", "--json")
    document = json.loads(result.out)
    assert (result.code, document["schema"], document["forced_over"]) == (0, "autotune-plan/install@1", [])
    assert document["compared"] == list(STAMP)
    installed = files_below(tmp_path / "new")
    relative = target(file, cache_dir).directory.relative_to(cache_dir)
    assert installed.pop(str(relative / ".autotune-plan" / "plan.json"))
    assert installed.pop(str(relative / ".autotune-plan" / "lock")) == b""
    assert installed == files_below(cache_dir)


def test_without_a_deployment_it_goes_where_the_bundle_says(cli, bundle, machine, tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_CACHE_DIR", str(tmp_path / "env"))
    result = cli("install", bundle)
    assert result.code == 0
    assert len(list((tmp_path / "env" / "flashinfer" / "autotune" / "0.7.2" / "sm90").glob("*/rank_*.json"))) == 2


@pytest.mark.parametrize(
    ("stamp", "says"),
    [
        ({**STAMP, "cudnn_version": "92101"}, "cudnn_version: the bundle has 91900, the target 92101"),
        ({**STAMP, "gpu": "NVIDIA H100"}, "gpu: the bundle has NVIDIA H200, the target NVIDIA H100"),
        ({**STAMP, "cutlass_dsl_version": "4.3"}, "cutlass_dsl_version: the bundle has unknown, the target 4.3"),
    ],
)
def test_another_environment_is_refused(cli, bundle, machine, tmp_path, stamp, says):
    machine(stamp)
    result = cli("install", bundle, "--cache-dir", tmp_path / "new")
    assert (result.code, says in result.err, "--force" in result.err) == (5, True, True)
    assert not (tmp_path / "new").exists()
    forced = cli("install", bundle, "--cache-dir", tmp_path / "new", "--force")
    assert (forced.code, says in forced.out) == (0, True)


def test_a_machine_without_a_gpu_compares_the_rest(cli, bundle, machine, tmp_path):
    machine({**STAMP, "gpu": "unknown"})
    assert cli("install", bundle, "--cache-dir", tmp_path / "new").code == 0


def test_a_machine_without_flashinfer_compares_with_the_deployment(cli, bundle, machine, deployment, tmp_path):
    machine(None)
    result = cli("install", bundle, "--cache-dir", tmp_path / "new", "--json")
    assert json.loads(result.out)["compared"] == []
    result = cli("install", bundle, "--for", deployment(parallel=PARALLEL), "--cache-dir", tmp_path / "new", "--json")
    assert json.loads(result.out)["compared"] == ["flashinfer_version", "gpu"]


@pytest.fixture
def simulated(tuned):
    """The tuned cache as a simulated run stamps it."""
    file, cache_dir = tuned
    place = target(file, cache_dir)
    for name in place.files:
        path = place.directory / name
        content = read_v1(path)
        path.write_bytes(
            render_v1({**STAMP, "gpu": "simulated NVIDIA H200"}, {entry.text: entry for entry in content.entries})
        )
    return file, cache_dir


@pytest.mark.parametrize("stamp", [{**STAMP, "gpu": "unknown"}, STAMP, None], ids=["no GPU", "GPU", "no FlashInfer"])
def test_what_a_simulated_run_made_is_installed_by_force_only(cli, simulated, machine, tmp_path, stamp):
    """No server loads it, whatever machine installs it."""
    file, cache_dir = simulated
    packed = cli("bundle", file, "--cache-dir", cache_dir, "-o", tmp_path / "b.tar.gz", "--json")
    assert (packed.code, json.loads(packed.out)["metadata"]["gpu"]) == (0, "simulated NVIDIA H200")
    assert packed.err.startswith("warning: a simulated run made these files: no server loads them")
    machine(stamp)
    for options in ((), ("--for", file)):
        result = cli("install", tmp_path / "b.tar.gz", "--cache-dir", tmp_path / "new", *options)
        assert (result.code, result.err.count("  gpu: ")) == (5, 1)
        assert "--force" in result.err
    assert not (tmp_path / "new").exists()
    forced = cli("install", tmp_path / "b.tar.gz", "--cache-dir", tmp_path / "new", "--force", "--json")
    assert (forced.code, len(json.loads(forced.out)["forced_over"])) == (0, 1)


def test_a_bundle_of_a_real_run_has_no_warning(cli, tuned, tmp_path):
    file, cache_dir = tuned
    assert cli("bundle", file, "--cache-dir", cache_dir, "-o", tmp_path / "b.tar.gz").err == ""


def test_the_second_pipeline_stage_is_judged_too(cli, tuned, machine, deployment, tmp_path):
    file, cache_dir = deployment(parallel="{pp: 2}"), tmp_path / "stages"
    place = target(file, cache_dir)
    place.directory.mkdir(parents=True)
    shutil.copy(PUBLISHED, place.directory / place.files[0])
    other = {entry.text: entry for entry in read_v1(PUBLISHED).entries}
    (place.directory / place.files[1]).write_bytes(render_v1({**STAMP, "gpu": "simulated NVIDIA H200"}, other))
    assert cli("bundle", file, "--cache-dir", cache_dir, "-o", tmp_path / "b.tar.gz").err.startswith("warning: ")
    result = cli("install", tmp_path / "b.tar.gz", "--cache-dir", tmp_path / "new")
    assert (result.code, "the bundle has simulated NVIDIA H200" in result.err) == (5, True)


def test_a_file_that_cannot_be_packed(cli, tuned, tmp_path, unreadable):
    file, cache_dir = tuned
    place = target(file, cache_dir)
    for name in (place.files[1], ".autotune-plan/journal.jsonl"):
        unreadable(place.directory / name)
        result = cli("bundle", file, "--cache-dir", cache_dir, "-o", tmp_path / "b.tar.gz")
        assert (result.code, result.out) == (5, "")
        assert "Permission denied" in result.err
        assert "try: make it readable" in result.err
    assert not (tmp_path / "b.tar.gz").exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_path": "/mnt/Qwen3-30B-A3B"}, "the server looks in flashinfer/autotune/0.7.2/sm90/"),
        ({"parallel": "{tp: 4}"}, "the bundle has no rank_tp2_pp0_dp0.json, rank_tp3_pp0_dp0.json"),
        ({"gpu": "H100"}, "gpu: the bundle has NVIDIA H200, the target NVIDIA H100"),
        ({"flags": "{disable_flashinfer_autotune: true}"}, "the server reads no cache"),
    ],
)
def test_another_target_is_refused(cli, bundle, machine, deployment, tmp_path, changes, says):
    result = cli("install", bundle, "--for", deployment(**{"parallel": PARALLEL, **changes}), "--cache-dir", tmp_path)
    assert (result.code, says in result.err) == (5, True)


def test_files_of_another_gpu_at_the_same_path_are_not_replaced(cli, bundle, machine, deployment, tmp_path):
    file = deployment(parallel=PARALLEL)
    place = target(file, tmp_path / "shared")
    place.directory.mkdir(parents=True)
    other = place.directory / place.files[0]
    other.write_bytes(render_v1({**STAMP, "gpu": "NVIDIA H100"}, {}))
    before = other.read_bytes()
    result = cli("install", bundle, "--for", file, "--cache-dir", tmp_path / "shared")
    assert (result.code, "NVIDIA H100" in result.err) == (5, True)
    assert other.read_bytes() == before
    assert cli("install", bundle, "--for", file, "--cache-dir", tmp_path / "shared", "--force").code == 0
    assert read_v1(other).metadata == STAMP


def test_all_ranks_or_none(cli, bundle, machine, tmp_path, monkeypatch):
    rename = os.replace
    done = []

    def failing(source, goal, **options):
        if str(goal).endswith(".json") and "rank_" in str(goal):
            done.append(goal)
            if len(done) == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(source, goal, **options)

    monkeypatch.setattr(os, "replace", failing)
    result = cli("install", bundle, "--cache-dir", tmp_path / "new")
    assert (result.code, "ENOSPC" in result.err) == (4, True)
    assert [path for path in files_below(tmp_path / "new") if "lock" not in path] == []


def test_a_run_at_work_there(cli, bundle, machine, deployment, tmp_path):
    with tuning_lock(target(deployment(parallel=PARALLEL), tmp_path / "new").work_dir):
        assert cli("install", bundle, "--cache-dir", tmp_path / "new").code == 7


def test_a_changed_bundle_is_refused_even_by_force(cli, tuned, machine, tmp_path):
    file, cache_dir = tuned
    assert cli("bundle", file, "--cache-dir", cache_dir, "-o", tmp_path / "b").code == 0
    rank = next((tmp_path / "b").rglob("rank_tp1*.json"))
    rank.write_text(rank.read_text().replace('"hot"', '"cold"', 1))
    result = cli("install", tmp_path / "b", "--cache-dir", tmp_path / "new", "--force")
    assert (result.code, "does not verify" in result.err) == (5, True)
    assert not (tmp_path / "new").exists()


def kubernetes(cli, deployment):
    file = deployment(parallel=PARALLEL)
    arguments = ["--for", file, "--image", "server-image:1", "--print-k8s"]
    result = cli("install", "it's a bundle.tar.gz", *arguments)
    assert result.code == 0
    return file, {document["kind"]: document for document in yaml.safe_load_all(result.out)}


def containers(documents):
    job, template = documents["Job"]["spec"]["template"]["spec"], documents["PodTemplate"]["template"]["spec"]
    return job, job["containers"][0], template, template["initContainers"][0]


def test_kubernetes_objects_are_unprivileged(cli, deployment):
    file, documents = kubernetes(cli, deployment)
    assert list(documents) == ["ConfigMap", "NetworkPolicy", "Job", "PodTemplate"]
    assert documents["ConfigMap"]["data"]["deployment.yaml"] == file.read_text()
    job, tune, template, install = containers(documents)
    for pod in (job, template):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
    for container in (tune, install):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    policy = documents["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert not policy.keys() & {"ingress", "egress"}  # no rule: nothing is let through
    labels = documents["Job"]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    server = template["containers"][0]
    assert {"name": "SGLANG_CACHE_DIR", "value": "/cache"} in server["env"]
    assert install["command"][:2] == ["autotune-plan", "install"]
    assert install["command"][-2:] == ["--cache-dir", "/cache"]
    for pod, mounting in ((job, (tune,)), (template, (install, server))):
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for container in mounting for mount in container["volumeMounts"]} <= volumes


@pytest.mark.parametrize(("code", "ends", "packs"), [(0, 0, True), (6, 0, True), (4, 4, False), (130, 130, False)])
def test_the_job_takes_exit_code_6_for_success(cli, deployment, tmp_path, code, ends, packs):
    _, documents = kubernetes(cli, deployment)
    tune = containers(documents)[1]
    program = tmp_path / "autotune-plan"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$1" = bundle ] || exit {code}\n')
    program.chmod(0o755)
    variables = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert subprocess.run(tune["command"], env=variables, check=False).returncode == ends
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0].startswith("run /deployment/deployment.yaml --gpus all")
    assert calls[1:] == (
        ["bundle /deployment/deployment.yaml --cache-dir /bundle/work -o /bundle/it's a bundle.tar.gz"] if packs else []
    )


def test_kubernetes_objects_need_a_deployment_and_an_image(cli, deployment):
    for arguments in (["--image", "i"], ["--for", deployment()]):
        result = cli("install", "b.tar.gz", "--print-k8s", *arguments)
        assert (result.code, "--image IMAGE" in result.err) == (2, True)


@pytest.mark.flashinfer
def test_a_simulated_run_bundled_and_installed(tmp_path):
    """Nothing stands for this machine here: the stamp of the run is compared with FlashInfer's own."""

    def command(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "autotune_planner", *map(str, arguments), "--json"],
            cwd=DATA.parents[1],
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    file = "examples/qwen3-30b-h200-dp8.yaml"
    command("run", file, "--device", "simulated", "--cache-dir", tmp_path / "tuned")
    manifest = command("bundle", file, "--cache-dir", tmp_path / "tuned", "-o", tmp_path / "b.tar.gz")
    # By force, for the GPU that a machine with one has.
    document = command("install", tmp_path / "b.tar.gz", "--cache-dir", tmp_path / "new", "--force")
    assert {problem.split(":")[0] for problem in document["forced_over"]} <= {"gpu"}
    assert set(document["compared"]) >= manifest["metadata"].keys() - {"gpu"}
    installed, tuned = files_below(tmp_path / "new"), files_below(tmp_path / "tuned")
    ranks = [name for name in installed if "rank_" in name]
    assert len(ranks) == 8
    assert all(installed[name] == tuned[name] for name in ranks)
