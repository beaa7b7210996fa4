"""``check`` from the command line: exit codes, the whole text and the document."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from autotune_planner import checking, planning
from autotune_planner.cache.keys import parse_key
from autotune_planner.cache.sglang_layout import cache_directory, rank_file_name
from autotune_planner.cache.v1 import Entry, read_v1
from autotune_planner.deployment.load import load_deployment
from autotune_planner.tuning.keys import PlannedKey
from tests.cache.journals import record, write_journal
from tests.cli.conftest import ROOT

DATA = Path(__file__).parents[1] / "data"
PUBLISHED = {
    "qwen3-30b-h200-tp1": DATA / "h200" / "published_qwen3-30b-h200-tp1.json",
    "llama-8b-fp8-h200-tp1": DATA / "h200" / "published_llama-8b-fp8-h200-tp1.json",
}
QWEN = "qwen3-30b-h200-tp1"
H200 = json.loads(PUBLISHED[QWEN].read_text())["_metadata"]


def deployment_file(example):
    return f"examples/{example}.yaml"


def install(example, root, source=None):
    """The published file under the names that the example's ranks open below ``root``."""
    place = planning.plan(load_deployment(ROOT / deployment_file(example)), {}).resolved.cache_place
    directory = cache_directory(replace(place, cache_dir=str(root)))
    directory.mkdir(parents=True)
    for rank in place.ranks:
        shutil.copy(source or PUBLISHED[example], directory / rank_file_name(rank))
    return directory


@pytest.fixture
def environment(tmp_path):
    """An env.json of the machine that the published files were made on, with fields changed."""

    def write(**changes):
        path = tmp_path / "env.json"
        path.write_text(json.dumps({"schema": "autotune-plan/doctor@1", "metadata": {**H200, **changes}}))
        return path

    return write


@pytest.fixture
def without_flashinfer(monkeypatch):
    """This machine has the published files' environment, and the keys of a plan are theirs."""

    def answer(plan):
        keys = {}
        for path in PUBLISHED.values():
            for entry in read_v1(path).entries:
                key = parse_key(entry.text)
                keys[key.custom_op, key.bucket, key.profile[1]] = PlannedKey(entry.text, entry.policy, True)
        found = {}
        for unit in plan.units:
            call = unit.call
            weight = (1, call.k, call.n) if unit.custom_op == "fp8_gemm" else (128, 1536, 2048)
            found[unit] = (keys[unit.custom_op, unit.bucket, weight],)
        return dict(H200), found

    monkeypatch.setattr(checking, "stamp_and_keys", answer)


@pytest.mark.flashinfer
@pytest.mark.parametrize("example", PUBLISHED)
def test_published_on_the_h200_and_used_by_its_server(cli, environment, tmp_path, example):
    """The files that a run on an H200 published, against that machine's environment: exit code 0."""
    install(example, tmp_path / "cache")
    result = cli("check", deployment_file(example), "--cache-dir", tmp_path / "cache", "--env", environment())
    assert result.code == 0
    shown = (result.out + result.err).replace(str(tmp_path), "TMP")
    assert shown == (DATA / "golden" / f"check_{example}.txt").read_text()


@pytest.mark.flashinfer
def test_what_a_simulated_run_wrote(cli, deployment, environment, tmp_path):
    """Four ranks under DP attention: ignored as it is, and complete once it is stamped as a real GPU's."""
    chunk = "{chunked_prefill_size: 64}"  # 16 a rank; the MoE's bound is 16 x 4 gathered rows
    file = deployment(parallel="{tp: 4, dp: 4, dp_attention: true}", prefill=chunk)
    cache = tmp_path / "cache"
    assert cli("run", file, "--device", "simulated", "--cache-dir", cache).code == 0
    paths = list(cache.glob("flashinfer/autotune/*/*/*/rank_*.json"))
    assert len(paths) == 4
    content = json.loads(paths[0].read_text())
    env = environment(**{**content["_metadata"], "gpu": "NVIDIA H200"})
    result = cli("check", file, "--cache-dir", cache, "--env", env)
    assert result.code == 5
    assert "[simulated-file]" in result.out
    content["_metadata"]["gpu"] = "NVIDIA H200"
    del content["_generation"]
    for path in paths:
        path.write_text(json.dumps(content))
    result = cli("check", file, "--cache-dir", cache, "--env", env)
    assert (result.code, result.err) == (0, "")
    # Gathered rows up to 4096 x 4, of which those above the bound are clamped.
    assert "DECODE    16384     64    16320               -          -" in result.out


def test_on_this_machine(cli, without_flashinfer, tmp_path):
    install(QWEN, tmp_path)
    result = cli("check", deployment_file(QWEN), "--cache-dir", tmp_path)
    assert (result.code, result.err) == (0, "")
    assert "will use this cache" in result.out


def changed_key(content, key):
    return {k.replace("(1, 2048)", "(1, 4096)") if k == key else k: value for k, value in content.items()}


def changed_value(place, value):
    return lambda content, key: {**content, key: [*content[key][:place], value, *content[key][place + 1 :]]}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (changed_key, "tuned-at-start"),
        (changed_value(2, ["cuda_graph_profile_replays", 1, "l2_cache_policy", "cold"]), "tuned-at-start"),
        (changed_value(1, 7), "edited-file"),
        (lambda content, key: {**content, "_metadata": {**H200, "cublas_version": "13.2.0"}}, "stamp-stuck"),
    ],
    ids=["key", "policy", "tactic", "metadata"],
)
def test_one_broken_field_exits_5(cli, without_flashinfer, tmp_path, change, code):
    (file,) = install(QWEN, tmp_path).iterdir()
    content = json.loads(file.read_text())
    key = next(key for key in content if "((1, 2048)" in key)
    file.write_text(json.dumps(change(content, key)))
    result = cli("check", deployment_file(QWEN), "--cache-dir", tmp_path)
    assert result.code == 5
    assert f"[{code}]" in result.out
    assert json.loads(file.read_text()) == change(content, key)


def test_an_edited_file_is_said_to_be_loaded(cli, without_flashinfer, tmp_path):
    """FlashInfer 0.7.2 takes ``_generation`` out of what it reads and compares it with nothing."""
    (file,) = install(QWEN, tmp_path).iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), "_generation": "0" * 64}))
    result = cli("check", deployment_file(QWEN), "--cache-dir", tmp_path)
    assert result.code == 5
    assert "[edited-file]" in result.out
    last = result.out.splitlines()[-1]
    assert last == "The server loads this cache, but it was edited after it was published: 1 problem"
    document = json.loads(cli("check", deployment_file(QWEN), "--cache-dir", tmp_path, "--json").out)
    assert (document["used"], document["files"][0]["fate"]) == (False, "loads")
    file.write_text(json.dumps({**json.loads(file.read_text()), "_metadata": {**H200, "gpu": "NVIDIA H100"}}))
    result = cli("check", deployment_file(QWEN), "--cache-dir", tmp_path)
    assert result.out.splitlines()[-1].startswith("The server will not use this cache as it is")


def test_a_damaged_tactic_exits_5_without_a_generation(cli, without_flashinfer, tmp_path):
    (file,) = install(QWEN, tmp_path).iterdir()
    content = json.loads(file.read_text())
    del content["_generation"]
    key = next(key for key in content if "((1, 2048)" in key)
    file.write_text(json.dumps(changed_value(1, "a")(content, key)))
    result = cli("check", deployment_file(QWEN), "--cache-dir", tmp_path)
    assert result.code == 5
    assert "[damaged-tactic]" in result.out
    assert f"try: autotune-plan run {deployment_file(QWEN)} --cache-dir {tmp_path}\n" in result.out
    # One of a sound form, which no run beside it measured: the file had 38 there.
    file.write_text(json.dumps(changed_value(1, 7)(content, key)))
    assert cli("check", deployment_file(QWEN), "--cache-dir", tmp_path).code == 0
    write_journal(file.parent, record(Entry(key, "MoERunner", 38, None), H200, {38: 10.0, 12: 11.0, -1: 20.0}))
    result = cli("check", deployment_file(QWEN), "--cache-dir", tmp_path)
    assert (result.code, "[damaged-tactic]" in result.out) == (5, True)


def test_a_file_that_cannot_be_read(cli, without_flashinfer, tmp_path, unreadable):
    (file,) = install(QWEN, tmp_path).iterdir()
    unreadable(file)
    result = cli("check", deployment_file(QWEN), "--cache-dir", tmp_path)
    assert result.code == 5
    assert f"try: make it readable: chmod a+r {file}" in result.out
    assert "delete" not in result.out


def test_the_document(cli, without_flashinfer, environment, tmp_path):
    directory = install(QWEN, tmp_path / "cache")
    result = cli(
        "check", deployment_file(QWEN), "--cache-dir", tmp_path / "cache", "--env", environment(cudnn_version="92101"),
        "--json",
    )  # fmt: skip
    document = json.loads(result.out)
    assert (result.code, document["schema"], document["used"]) == (5, "autotune-plan/check@1", False)
    assert document["place"]["directory"] == str(directory)
    assert document["place"]["hash"] == directory.name
    assert document["place"]["hash_of"]["model_path"] == "/models/Qwen3-30B-A3B"
    (file,) = document["files"]
    assert (file["fate"], file["entries"], file["stamp"]["outcome"]) == ("ignored", 42, "stuck")
    fields = {field["field"]: (field["saved"], field["current"], field["match"]) for field in file["stamp"]["fields"]}
    assert fields["cudnn_version"] == ("91900", "92101", "hard")
    assert fields["gpu"] == ("NVIDIA H200", "NVIDIA H200", "equal")
    (served,) = document["coverage"]
    extend = next(op for op in served["ops"] if op["custom_op"].endswith("gemm1") and op["phase"] == "extend")
    assert extend["sizes"] == {"tuned": 0, "clamped": 0, "at_start": 8192, "fallback": 0}
    assert len(extend["spans"]) == 21
    assert [(gap["first"], gap["last"], gap["state"]) for gap in extend["gaps"]] == [(1, 8192, "at_start")]
    assert [finding["code"] for finding in document["findings"]] == ["stamp-stuck"]


def test_a_server_generated_file_leaves_prefill_to_the_fallback(cli, monkeypatch, tmp_path):
    """Llama-3.1-8B FP8: the server's own DECODE pass of 300 requests tunes 10 buckets; 513..8192 fall back."""
    example = "llama-8b-fp8-h200-tp1"
    source = tmp_path / "server.json"
    content = json.loads(PUBLISHED[example].read_text())
    del content["_generation"]
    source.write_text(json.dumps({k: v for k, v in content.items() if k.startswith("_") or parse_key(k).bucket <= 512}))
    install(example, tmp_path / "cache", source)

    def answer(plan):
        keys = {(parse_key(k).bucket, parse_key(k).profile[1]): k for k in content if not k.startswith("_")}
        policy = ("cuda_graph_profile_replays", None, "l2_cache_policy", "hot")
        return dict(H200), {
            unit: (PlannedKey(keys[unit.bucket, (1, unit.call.k, unit.call.n)], policy, unit.bucket <= 512),)
            for unit in plan.units
        }

    monkeypatch.setattr(checking, "stamp_and_keys", answer)
    result = cli("check", deployment_file(example), "--cache-dir", tmp_path / "cache")
    assert result.code == 5
    assert result.out.count("EXTEND M 513..8192 falls back: no entry of this bucket") == 4
    assert f"try: autotune-plan run {deployment_file(example)} --cache-dir {tmp_path / 'cache'}" in result.out


def test_share_of_production(cli, without_flashinfer, deployment, tmp_path):
    """Prompts of 4096 and 4096 tokens fill one chunk of 8192; the file ends at bucket 4096."""
    file = deployment(traffic="{extend_lens: [4096, 4096, 100]}")
    source = tmp_path / "source.json"
    content = json.loads(PUBLISHED[QWEN].read_text())
    source.write_text(
        json.dumps({k: v for k, v in content.items() if k.startswith("_") or parse_key(k).bucket <= 4096})
    )
    install(QWEN, tmp_path / "cache", source)
    result = cli("check", file, "--cache-dir", tmp_path / "cache")
    assert "trtllm::fused_moe::gemm1 mlp.experts: 1.2% tuned, 98.8% tuned at start" in result.out


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"schema": "autotune-plan/plan@1"}',
                                     '{"schema": "autotune-plan/doctor@1", "metadata": null}'])  # fmt: skip
def test_an_environment_that_is_none(cli, without_flashinfer, tmp_path, content):
    path = tmp_path / "env.json"
    if content is not None:
        path.write_text(content)
    result = cli("check", deployment_file(QWEN), "--env", path)
    assert (result.code, result.out) == (2, "")
    assert "autotune-plan doctor --json > env.json" in result.err


def test_nothing_is_made_where_nothing_is(cli, without_flashinfer, tmp_path):
    result = cli("check", deployment_file(QWEN), "--cache-dir", tmp_path / "nowhere")
    assert result.code == 5
    assert "is not there" in result.out
    assert not (tmp_path / "nowhere").exists()


def test_another_model_path_is_pointed_to(cli, without_flashinfer, deployment, tmp_path):
    directory = install(QWEN, tmp_path)
    result = cli("check", deployment(model_path="/mnt/Qwen3-30B-A3B"), "--cache-dir", tmp_path)
    assert result.code == 5
    assert str(directory) in result.out


def test_a_deployment_that_the_server_refuses(cli, without_flashinfer, deployment):
    result = cli("check", deployment(parallel="{tp: 8, ep: 2}"))
    assert (result.code, result.out) == (3, "")


def test_a_slip_is_no_directory(cli):
    result = cli("check", deployment_file(QWEN), "--cache-dir", "")
    assert (result.code, result.out) == (2, "")
    assert "--cache-dir DIR" in result.err


def test_no_flags_of_the_server(cli):
    assert cli("check", deployment_file(QWEN), "--", "--tp", "2").code == 2


def test_an_amd_gpu_reads_no_cache(cli, without_flashinfer, deployment):
    result = cli("check", deployment(gpu="MI300X", moe=None, flags="{attention_backend: triton}"))
    assert result.code == 5
    assert "reads no cache" in result.out
