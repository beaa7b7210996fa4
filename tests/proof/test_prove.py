"""Proofs of simulated caches: what a server would hit passes, and each way of breaking a file is told."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from autotune_planner.cache.timings import WORK_FOLDER
from autotune_planner.errors import NotPossibleHereError
from autotune_planner.proving import prove_cache
from autotune_planner.report.prove_document import prove_document
from tests.proof.simulated import DECODE, DP4, deployment_file, rewrite, tuned

pytestmark = [pytest.mark.flashinfer, pytest.mark.xdist_group("simulated-proof")]

GEMM1, GEMM2 = "trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2"
COLD = ("cuda_graph_profile_replays", 1, "l2_cache_policy", "cold")
TIMINGS = 46  # of a MoE bucket: 45 stand-in tactics and the default


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    return tuned(deployment_file(folder, **DP4), folder / "cache")


@pytest.fixture
def cache(published, tmp_path):
    """A copy of the published cache: its plan, its directory and its rank files."""
    plan, files = published
    root = files[0].parents[5]
    shutil.copytree(root, tmp_path / "cache")
    return plan, tmp_path / "cache", [tmp_path / "cache" / file.relative_to(root) for file in files]


def proof_of(plan, cache_dir, said=None):
    return prove_cache(
        plan,
        cache_dir=str(cache_dir),
        device="simulated",
        run_command="autotune-plan run deployment.yaml",
        said=(lambda text: None) if said is None else said.append,
    )


def by_code(proof, level="problem"):
    return {finding.code: finding for finding in proof.findings if finding.level == level}


def test_what_was_published_is_proved_for_every_rank(cache):
    plan, root, files = cache
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    said = []
    proof = proof_of(plan, root, said)
    assert proof.proved
    assert proof.findings == ()
    (content,) = proof.contents
    assert [file.path for file in content.files] == files
    (process,) = content.processes
    assert process.report.loads == (True,) * 4
    assert process.report.served
    # 16 requests a rank, gathered from 4: M = 64. Buckets 1 .. 64, and 24 between them.
    assert [call.step.m for call in process.report.calls] == [64, 1, 2, 4, 8, 16, 24, 32]
    # A bounded op looks up its 7 buckets, then the call's own, for each of 2 GEMMs.
    assert sum(len(call.hits) for call in process.report.calls) == 8 * 2 * 8
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert len(said) == 1
    assert not Path(said[0].split("log: ")[1]).exists()


def one(custom_op, bucket, **changes):
    """A change of one entry's field."""

    def change(entry):
        own = (entry.key.custom_op, entry.key.bucket) == (custom_op, bucket)
        return replace(entry, **{name: new(getattr(entry, name)) for name, new in changes.items()}) if own else entry

    return change


def top_k(text):
    """The key of a router that chooses 6 experts: extras are (x, weight, output dtype, top_k 8, ...)."""
    assert ", 8, 4, 1, " in text
    return text.replace(", 8, 4, 1, ", ", 6, 4, 1, ")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (one(GEMM1, 32, text=top_k), "the entry of this bucket has other dimensions: extra 3 is 6, asked for 8"),
        (one(GEMM1, 32, policy=lambda policy: COLD), "was measured with 1 cold; the server asks for no-graph hot"),
        (one(GEMM1, 32, runner=lambda runner: "Other"), "its entry names runner Other, the key MoERunner"),
        (lambda entry: None if entry.key.bucket == 32 and entry.key.custom_op == GEMM1 else entry, "no entry"),
    ],
    ids=["key", "policy", "runner", "an entry less"],
)
def test_one_entry_that_the_server_would_tune_again(cache, change, reason):
    plan, root, files = cache
    for file in files:
        rewrite(file, change)
    proof = proof_of(plan, root)
    assert not proof.proved
    (missed,) = proof.contents[0].missed
    assert (missed.custom_op, missed.bucket, missed.timings) == (GEMM1, 32, TIMINGS)
    assert missed.sizes == (64,)  # the first call times it, and the others find it
    assert reason in missed.reason
    assert reason in by_code(proof)["missed"].message


def other(tactic):
    """Another tactic that GEMM 1 has, 0 to 44."""
    return (tactic + 1) % 45


def test_a_changed_tactic_does_not_fit_the_digest(cache):
    plan, root, files = cache
    for file in files:
        rewrite(file, one(GEMM1, 32, tactic=other), fitting=False)
    proof = proof_of(plan, root)
    assert not proof.proved
    assert proof.contents[0].missed == ()  # it is a hit
    assert "_generation" in by_code(proof)["edited-file"].message


def test_a_changed_tactic_with_a_digest_that_fits_is_not_in_the_journal(cache):
    plan, root, files = cache
    for file in files:
        rewrite(file, one(GEMM1, 32, tactic=other))
    proof = proof_of(plan, root)
    assert list(by_code(proof)) == ["entry-not-recorded"]
    assert f"{GEMM1} M = 32 tactic" in by_code(proof)["entry-not-recorded"].message
    shutil.rmtree(files[0].parent / WORK_FOLDER)  # and without a journal nobody can tell
    assert proof_of(plan, root).proved


def test_a_tactic_that_the_op_does_not_have(cache):
    # GEMM 1 has the stand-in tactics 0 to 44, GEMM 2 those from 45 on.
    plan, root, files = cache
    shutil.rmtree(files[0].parent / WORK_FOLDER)
    for file in files:
        rewrite(file, one(GEMM1, 32, tactic=lambda tactic: 45))
    proof = proof_of(plan, root)
    assert list(by_code(proof)) == ["tactic-not-offered"]
    assert f"{GEMM1} M = 32 tactic 45" in by_code(proof)["tactic-not-offered"].message


def test_one_rank_with_another_file(cache):
    plan, root, files = cache
    rewrite(files[2], one(GEMM2, 8, policy=lambda policy: COLD))
    proof = proof_of(plan, root)
    assert set(by_code(proof)) == {"ranks-differ", "missed"}
    assert [[file.path for file in content.files] for content in proof.contents] == [
        [files[0], files[1], files[3]],
        [files[2]],
    ]
    assert [len(content.missed) for content in proof.contents] == [0, 1]


@pytest.mark.parametrize(
    ("ranks", "content", "codes"),
    [
        (range(4), None, {"no-file"}),
        (range(4), b"{", {"damaged-file"}),
        ([1], None, {"ranks-differ"}),
        (range(4), b'{"_last_updated_at": 1}', {"damaged-file"}),
    ],
    ids=["no file", "torn files", "one rank without", "a note that FlashInfer takes for an entry"],
)
def test_files_that_cannot_be_loaded(cache, ranks, content, codes):
    plan, root, files = cache
    for rank in ranks:
        files[rank].unlink() if content is None else files[rank].write_bytes(content)
    proof = proof_of(plan, root)
    assert set(by_code(proof)) == codes
    assert not proof.proved


def test_files_of_another_environment_are_refused(cache):
    """As a file that was tuned on the real GPU is on the simulated one."""
    plan, root, files = cache
    for file in files:
        file.write_text(file.read_text().replace("simulated NVIDIA H200", "NVIDIA H200"))
    proof = proof_of(plan, root)
    assert not proof.contents[0].loaded
    assert {"other-gpu-file", "missed"} <= set(by_code(proof))
    assert {missed.reason for missed in proof.contents[0].missed} == {"nothing is loaded"}
    assert len(proof.contents[0].missed) == 14  # 2 GEMMs x 7 buckets
    assert {missed.sizes for missed in proof.contents[0].missed} == {(64,)}  # a bounded op looks up all at its first M
    # A run for this GPU would end at these files too.
    assert by_code(proof)["missed"].hint.endswith("into a directory of its own: autotune-plan run FILE --cache-dir DIR")
    # 8 sizes, each 7 buckets and its own, for 2 GEMMs: what the process timed a moment before is no hit of the file.
    assert prove_document(proof)["totals"] == {"hits": 0, "misses": 128, "timings": 14 * TIMINGS}


def test_files_that_a_run_replaces_name_the_run(cache):
    plan, root, files = cache
    for file in files:
        file.write_text(file.read_text().replace('"cudnn_version": "', '"cudnn_version": "9'))
    assert by_code(proof_of(plan, root))["missed"].hint == "autotune-plan run deployment.yaml"


def edited(file):
    rewrite(file, one(GEMM1, 32, tactic=other), fitting=False)


def of_another_cudnn(file):
    file.write_text(file.read_text().replace('"cudnn_version": "', '"cudnn_version": "9'))


@pytest.mark.parametrize(("change", "code"), [(edited, "edited-file"), (of_another_cudnn, "stamp-stuck")])
def test_the_run_that_is_advised_writes_the_file_again(cache, tmp_path, change, code):
    """From the journal: the bytes are those of the first run, and the plain run is what the finding says."""
    plan, root, files = cache
    before = files[0].read_bytes()
    for file in files:
        change(file)
    assert by_code(proof_of(plan, root))[code].hint.endswith("autotune-plan run deployment.yaml")
    assert tuned(deployment_file(tmp_path, **DP4), root)[1] == files
    assert files[0].read_bytes() == before


def test_amd_is_not_possible_here(cache):
    plan, root, _ = cache
    gpu = replace(plan.resolved.gpu, vendor="amd")
    amd = replace(plan, units=(), resolved=replace(plan.resolved, gpu=gpu, no_autotune_reason="not on AMD GPUs"))
    with pytest.raises(NotPossibleHereError, match="nothing to prove: not on AMD GPUs"):
        proof_of(amd, root)


def test_a_decode_worker_and_the_server_s_own_defect(tmp_path):
    """7 requests, graphs of 4, 2 and 1: an eager batch of 7 comes after them, and its bound of 8 is an old one."""
    plan, _ = tuned(deployment_file(tmp_path, **DECODE), tmp_path / "cache")
    proof = proof_of(plan, tmp_path / "cache")
    assert proof.proved
    *serving, order = proof.contents[0].processes
    assert [[call.step.m for call in process.report.calls] for process in serving] == [[7], [1], [2], [4]]
    assert [(call.step.m, call.step.stage) for call in order.report.calls] == [
        (7, "start"),
        (4, "capture"),
        (2, "capture"),
        (1, "capture"),
        (7, "eager"),
    ]
    stuck = by_code(proof, "note")["server-bound-stuck"]
    assert "eager decode at M = 7 looks up bucket 1" in stuck.message
    assert "known defect of the server" in stuck.message
    assert stuck.hint is not None


def test_a_server_that_reads_no_cache(tmp_path):
    file = deployment_file(tmp_path, **{**DP4, "flags": "{disable_flashinfer_autotune: true}"})
    plan = planned(file)
    proof = proof_of(plan, tmp_path)
    assert list(by_code(proof)) == ["not-read"]
    assert proof.contents == ()


def test_calls_that_are_not_known_cannot_be_proved(tmp_path):
    plan = planned(deployment_file(tmp_path, **DP4))
    notice = replace(plan.resolved.notices[0], code="op-not-planned", message="it also tunes an unknown op")
    unknown = replace(plan, ops=(), units=(), resolved=replace(plan.resolved, notices=(notice,), ops=()))
    with pytest.raises(NotPossibleHereError, match="unknown op") as raised:
        proof_of(unknown, tmp_path)
    assert raised.value.code == "op-not-planned"


def planned(file):
    from autotune_planner.deployment.load import load_deployment
    from autotune_planner.planning import plan

    return plan(load_deployment(file), {})
