"""A published file replayed as the server loads it. What serves and what does not is FlashInfer's own contract."""

import json
import re

import pytest

from autotune_planner.cache.merge import merged
from autotune_planner.cache.v1 import entry_of, render_v1
from autotune_planner.engines.resolved import OpUse
from autotune_planner.errors import NotPossibleHereError
from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.proof.replay import Replayed, ReplayReport, Step, replay
from autotune_planner.tuning import flashinfer_internals as internals
from autotune_planner.tuning.flashinfer_internals import Lookup
from autotune_planner.tuning.tune import Options, tune
from tests.tuning.plans import H200, plan_of, qwen3_moe

pytestmark = pytest.mark.flashinfer

GEMM1, GEMM2, LINEAR = "trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2", "fp8_gemm"
MOE_CALL, LINEAR_CALL = qwen3_moe(), BmmFp8(n=4096, k=4096)
CALLS = (MOE_CALL, LINEAR_CALL)
SIZES = (1, 24, 200, 700, 1536, 3000, 6000, 8064, 8192)

# Timings of one missed bucket: the stand-in tactics (45 of a MoE GEMM, 8 of a linear) and the default, which races.
MOE_TIMINGS, LINEAR_TIMINGS = 46, 9
# hybrid(8192) has 21 buckets. A MoE looks up its whole grid, a linear the grid of its M: 1 2 4 8 16 and 24 for M = 24,
# the last under 32.
GRID, GRID_24 = 21, 6


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Content of the file that a simulated run of one MoE and one linear publishes."""
    folder = tmp_path_factory.mktemp("run")
    plan = plan_of(
        OpUse("mlp.experts", MOE_CALL, 4096, None, 4096, 8192),
        OpUse("attn.o_proj", LINEAR_CALL, 3906, None, 3906, 8192),
    )
    tuned = tune(plan, device="simulated", devices=1, work_dir=folder, observer=lambda event: None, options=Options())
    entries = merged(entry_of(text, value) for text, value in tuned.entries.items())
    assert len(entries) == 2 * GRID + GRID
    return json.loads(render_v1(tuned.metadata, entries))


@pytest.fixture
def replayed(tmp_path, monkeypatch):
    """``replayed(content, *sizes)``: replay in a fresh process; ``(report, log text)``."""
    monkeypatch.delenv("FLASHINFER_LOGGING_LEVEL", raising=False)

    def call(content, *sizes):
        path, log = tmp_path / "rank.json", tmp_path / "replay.log"
        path.write_text(json.dumps(content))
        steps = [Step(call, m) for call in CALLS for m in sizes]
        report = replay([str(path)], steps, device="simulated", gpu=H200, log_path=str(log))
        return report, log.read_text()

    return call


def the_key(content, custom_op, bucket):
    (key,) = (
        key for key in content if key.startswith(f"('{custom_op}'") and re.search(rf"\(\((1, )?{bucket}, \d+\), ", key)
    )
    return key


def test_a_published_file_serves_every_size(published, replayed):
    report, _ = replayed(published, *SIZES)
    assert report.loaded
    assert report.served
    assert [call.step for call in report.calls] == [Step(call, m) for call in CALLS for m in SIZES]
    assert all(call.misses == () and call.timings == 0 for call in report.calls)
    assert {hit for call in report.calls for hit in call.hits} == {GEMM1, GEMM2, LINEAR}


def renamed(content, custom_op, bucket, old, new):
    """The entry under another key. Asserts that the key has ``old``."""
    key = the_key(content, custom_op, bucket)
    assert old in key
    return {other.replace(old, new) if other == key else other: value for other, value in content.items()}


def revalued(content, custom_op, bucket, change):
    key = the_key(content, custom_op, bucket)
    return {**content, key: change(content[key])}


def removed(content, custom_op, bucket):
    key = the_key(content, custom_op, bucket)
    return {other: value for other, value in content.items() if other != key}


def stamped(content, **changes):
    metadata = {name: value for name, value in {**content["_metadata"], **changes}.items() if value is not None}
    return {**content, "_metadata": metadata}


def another_policy(value):
    return [*value[:2], ["cuda_graph_profile_replays", 1, "l2_cache_policy", "cold"]]


BROKEN_ENTRIES = {
    # One field of a key: the op asks for another text. top_k 8 -> 6; bfloat16 output -> float16.
    "field of a MoE key": (lambda content: renamed(content, GEMM1, 32, ", 8, 8, 1, ", ", 6, 8, 1, "), GEMM1),
    "field of a linear's key": (lambda content: renamed(content, LINEAR, 8, "torch.bfloat16", "torch.float16"), LINEAR),
    # A runner name that is not the op's: FlashInfer passes over the entry.
    "runner": (lambda content: revalued(content, GEMM2, 32, lambda value: ["Other", *value[1:]]), GEMM2),
    # The policy counts only while tuning, and the server loads the file inside a tuning context.
    "policy of a MoE": (lambda content: revalued(content, GEMM2, 64, another_policy), GEMM2),
    "policy of a linear": (lambda content: revalued(content, LINEAR, 32, another_policy), LINEAR),
    "an entry less": (lambda content: removed(content, LINEAR, 16), LINEAR),
    # A bounded op looks up its whole grid whatever M is, so that a bucket far above 24 is missed too.
    "a large entry less": (lambda content: removed(content, GEMM1, 8192), GEMM1),
}


@pytest.mark.parametrize(("change", "custom_op"), BROKEN_ENTRIES.values(), ids=BROKEN_ENTRIES)
def test_one_broken_entry_is_tuned_again(published, replayed, change, custom_op):
    report, _ = replayed(change(published), 24)
    assert report.loaded
    assert not report.served
    moe, linear = report.calls
    assert moe.misses + linear.misses == (custom_op,)
    assert (moe.timings, linear.timings) == ((0, LINEAR_TIMINGS) if custom_op == LINEAR else (MOE_TIMINGS, 0))


def test_an_entry_that_no_size_asks_for_is_not_missed(published, replayed):
    # A linear is not bounded: M = 24 looks up its own grid only, M = 6000 is served by 8192.
    content = removed(published, LINEAR, 8192)
    report, _ = replayed(content, 24, 6000)
    small, large = report.calls[2:]
    assert (small.misses, small.timings) == ((), 0)
    assert (large.misses, large.timings) == ((LINEAR,), LINEAR_TIMINGS)
    assert not report.served


@pytest.mark.parametrize(
    "changes",
    [{"gpu": "NVIDIA H200"}, {"flashinfer_version": "0.7.1"}, {"cuda_version": None}],
    ids=["another gpu", "another version", "a field less"],
)
def test_another_environment_loads_nothing(published, replayed, changes):
    report, log = replayed(stamped(published, **changes), 24)
    assert not report.loaded
    assert not report.served
    moe, linear = report.calls
    assert (moe.misses.count(GEMM1), moe.misses.count(GEMM2), linear.misses.count(LINEAR)) == (GRID, GRID, GRID_24)
    assert (moe.timings, linear.timings) == (2 * GRID * MOE_TIMINGS, GRID_24 * LINEAR_TIMINGS)
    assert f"{next(iter(changes))}: saved=" in log


def without_policies(content):
    return {key: value if key.startswith("_") else value[:2] for key, value in content.items()}


@pytest.mark.parametrize(
    "change",
    [
        # Files from before 0.7 have no policy: it is read as hot, which all three ops here are.
        without_policies,
        lambda content: stamped(content, gpu="*"),  # the wildcard matches any GPU
        lambda content: {key: value for key, value in content.items() if key != "_metadata"},  # loaded unchecked
        lambda content: {**content, "_generation": "0" * 64},  # a digest that nobody checks on load
        lambda content: {**content, "('another_op', 'R', ((1,),), ())": ["R", 0]},  # more entries are harmless
    ],
    ids=["no policy", "any gpu", "no metadata", "generation", "foreign entry"],
)
def test_what_flashinfer_accepts_is_served(published, replayed, change):
    report, _ = replayed(change(published), 24)
    assert report.served


def test_outside_a_tuning_context_the_policy_does_not_count(published, tmp_path):
    # Serving itself, after the server's autotune: the same entry that is tuned again at start serves there.
    path = tmp_path / "rank.json"
    path.write_text(json.dumps(revalued(published, LINEAR, 32, another_policy)))
    with internals.without_gpu((9, 0), "simulated NVIDIA H200", lambda *_: 1.0), internals.fresh_tuner() as tuner:
        assert tuner.load_configs(str(path))
        with internals.watched_tuner() as watch:
            LINEAR_CALL.prepare("meta")(24)()
    assert (watch.hits, watch.misses, watch.timings) == ([LINEAR], [], 0)


@pytest.mark.parametrize("content", [None, "{"], ids=["no file", "torn file"])
def test_a_file_that_cannot_be_read_is_said_with_the_log(tmp_path, content):
    path, log = tmp_path / "rank.json", tmp_path / "replay.log"
    if content is not None:
        path.write_text(content)
    error = "FileNotFoundError" if content is None else "JSONDecodeError"
    with pytest.raises(NotPossibleHereError, match=f"the replay process failed: {error}: ") as raised:
        replay([str(path)], [Step(LINEAR_CALL, 1)], device="simulated", gpu=H200, log_path=str(log))
    assert raised.value.code == "replay-failed"
    assert raised.value.where == str(log)
    assert "\n" not in raised.value.message
    assert error in log.read_text()


def test_every_lookup_is_told_with_key_policy_and_tactic(published, replayed):
    report, _ = replayed(published, 24)
    (lookup,) = {lookup for lookup in report.calls[1].lookups if lookup.key == the_key(published, LINEAR, 32)}
    assert lookup.hit
    assert lookup.policy == ("cuda_graph_profile_replays", None, "l2_cache_policy", "hot")
    assert lookup.tactic == published[lookup.key][1]
    assert report.metadata == published["_metadata"]


def test_a_tactic_is_offered_or_not_for_the_inputs_of_the_call(published, replayed):
    # The stand-in linear has 8 tactics, 0 to 7. M = 24 looks up 1, 2, 4, 8, 16 for themselves and 32 for its own sake.
    content = revalued(published, LINEAR, 32, lambda value: [value[0], 8, *value[2:]])
    report, _ = replayed(content, 24)
    moe, linear = report.calls
    own = the_key(content, LINEAR, 32)
    assert {lookup.offered for lookup in linear.lookups if lookup.key == own} == {False}
    assert {lookup.offered for lookup in linear.lookups if lookup.key != own} == {None}
    assert {lookup.offered for lookup in moe.lookups} == {None, True}


def test_the_file_of_every_rank_is_loaded(published, tmp_path):
    paths = [tmp_path / f"rank{i}.json" for i in range(3)]
    for path in paths:
        path.write_text(json.dumps(published))
    paths[1].write_text(json.dumps(stamped(published, gpu="NVIDIA H200")))
    names, log = [str(path) for path in paths], str(tmp_path / "replay.log")
    report = replay(names, [Step(LINEAR_CALL, 1)], device="simulated", gpu=H200, log_path=log)
    assert report.loads == (True, False, True)
    assert not report.served
    assert report.calls[0].misses == ()  # made with the first one's entries


def test_another_bound_in_one_process_is_met_as_the_server_meets_it(published, tmp_path):
    # FlashInfer keeps the last bound that was new: after 8192, 64, 8192 a call with M = 3000 looks up bucket 64.
    path = tmp_path / "rank.json"
    path.write_text(json.dumps(published))
    steps = [Step(qwen3_moe(tune_max=bound), 3000, "eager") for bound in (8192, 64, 8192)]
    report = replay([str(path)], steps, device="simulated", gpu=H200, log_path=str(tmp_path / "replay.log"))
    assert [
        [lookup.key == the_key(published, op, bucket) for lookup, op in zip(call.lookups, (GEMM1, GEMM2), strict=True)]
        for call, bucket in zip(report.calls, (3072, 64, 64), strict=True)
    ] == [[True, True]] * 3


@pytest.mark.parametrize(
    ("loads", "lookup", "served"),
    [
        ((True, True), Lookup(LINEAR, "key", (), True, 3), True),
        ((True, True), Lookup(LINEAR, "key", (), False), False),
        ((True, True), Lookup(LINEAR, "key", (), False, timings=9), False),
        ((True, False), Lookup(LINEAR, "key", (), True, 3), False),
    ],
)
def test_served_means_loaded_hit_and_not_timed(loads, lookup, served):
    hit = Replayed(Step(LINEAR_CALL, 1), (Lookup(LINEAR, "key", (), True, 3),))
    report = ReplayReport(loads, {}, (hit, Replayed(Step(LINEAR_CALL, 2), (lookup,))))
    assert report.served is served
