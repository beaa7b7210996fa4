"""What a cache gains, on the simulated device: its cost model's times of the tactics that the cache names."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.benching import bench_cache
from autotune_planner.cache.v1 import read_v1
from autotune_planner.engines.resolved import OpUse
from autotune_planner.errors import CacheFileError, NotPossibleHereError, UsageError
from autotune_planner.proof.bench import PassLeftOut, measured_sizes, weights_at
from autotune_planner.proof.whole_op import ROUNDS
from autotune_planner.tuning.simulated import CostModel
from tests.proof.simulated import DECODE, DP4, deployment_file, rewrite, tuned
from tests.tuning.plans import H200, qwen3_moe

GEMM1, GEMM2 = "trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2"


def use(decode=None, prefill=None, tune_max=8192):
    return OpUse("mlp.experts", qwen3_moe(tune_max=tune_max), decode, None, decode, prefill)


@pytest.mark.parametrize(
    ("op", "asked", "sizes"),
    [
        # Decode of 300: buckets 1 .. 256 and 512, which no batch fills.
        (use(decode=300), None, (1, 2, 4, 8, 16, 32, 64, 128, 256, 300)),
        # A chunk of 1000 beside it: buckets 512, 768, and 1024 clipped.
        (use(decode=300, prefill=1000), None, (1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 512, 768, 1000)),
        # The bound of 64 serves all that is above it; the largest size is measured too.
        (use(prefill=1000, tune_max=64), None, (1, 2, 4, 8, 16, 32, 64, 1000)),
        (use(decode=300), (1024, 64, 64, 1), (1, 64)),
        (use(decode=300), (1024,), ()),
    ],
)
def test_production_sizes(op, asked, sizes):
    assert measured_sizes(op, asked) == sizes


def test_weights_go_to_the_next_size_that_was_measured():
    # 512 and 256 to 512, 16 to 64, and 4096, above all, to the largest.
    weights = {16: 0.1, 256: 0.2, 512: 0.3, 4096: 0.4}
    assert weights_at(weights, [64, 512, 1024]) == pytest.approx({64: 0.1, 512: 0.5, 1024: 0.4})


@given(
    st.dictionaries(st.integers(1, 8192), st.floats(0, 1), min_size=1),
    st.lists(st.integers(1, 8192), min_size=1, unique=True).map(sorted),
)
def test_no_weight_is_lost(weights, sizes):
    placed = weights_at(weights, sizes)
    assert list(placed) == sizes
    assert sum(placed.values()) == pytest.approx(sum(weights.values()))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    return tuned(deployment_file(folder, **DP4), folder / "cache")


def measured(plan, cache_dir, **how):
    options = {"against": None, "sizes": None, "device": "simulated", "said": lambda text: None, **how}
    return bench_cache(plan, cache_dir=str(cache_dir), run_command="autotune-plan run FILE", **options)


@pytest.mark.flashinfer
def test_times_are_those_of_the_tactics_that_the_cache_names(published):
    """The whole op is both GEMMs. The cost model is asked here for the very tactics of the file."""
    plan, files = published
    result = measured(plan, files[0].parents[5], sizes=(16, 64))
    call = plan.resolved.ops[0].call
    experts, hidden, width = 128, 2048, 768 // 4
    tactics = {(entry.key.custom_op, entry.key.bucket): entry.tactic for entry in read_v1(files[0]).entries}
    for size in result.sizes:
        shapes = ((size.m, hidden), (experts, 2 * width, hidden), (0,), (experts, hidden, width), (0,))

        def expected(first, second, shapes=shapes):
            model = CostModel(H200, 0)
            return 1e3 * sum(
                model("MoERunner", shapes, tactic, gemm, 8, None) for gemm, tactic in ((1, first), (2, second))
            )

        picks = tactics[GEMM1, size.m], tactics[GEMM2, size.m]
        assert size.call == call
        assert dict(size.tactics["ours"]) == {GEMM1: picks[0], GEMM2: picks[1]}
        assert dict(size.tactics["fallback"]) == {GEMM1: -1, GEMM2: -1}
        # Samples have 0.5 % of noise; of 31 the median is within 0.5 % of the middle.
        assert size.times["ours"].median == pytest.approx(expected(*picks), rel=0.005)
        assert size.times["fallback"].median == pytest.approx(expected(-1, -1), rel=0.005)
        (gain,) = size.gains
        assert gain.over == "fallback"
        assert gain.verdict == "faster"
        assert gain.ratio.median == pytest.approx(expected(-1, -1) / expected(*picks), rel=0.01)


@pytest.mark.flashinfer
def test_both_passes_are_weighted_by_production(published):
    """Decode: 16 requests on 4 ranks, 64 rows, all 7 buckets alike. Prefill: half of all is full chunks of 64 rows."""
    plan, files = published
    result = measured(plan, files[0].parents[5])
    assert {size.m for size in result.sizes} == {1, 2, 4, 8, 16, 32, 64}
    assert [(found.phase, found.l2) for found in result.passes] == [
        ("decode", "hot"),
        ("decode", "cold"),
        ("extend", "hot"),
        ("extend", "cold"),
    ]
    hot = {size.m: size.times["ours"].median for size in result.sizes if size.l2 == "hot"}
    decode, _, extend, _ = (found.times["ours"].median for found in result.passes)
    assert decode == pytest.approx(sum(hot.values()) / 7, rel=0.005)
    assert extend == pytest.approx(0.5 * hot[64] + 0.5 * (sum(hot.values()) - hot[64]) / 6, rel=0.005)


@pytest.mark.flashinfer
def test_a_pass_of_which_sizes_are_missing_has_no_figures(published):
    """Both passes meet the buckets 1, 2, 4 .. 64: M = 64 alone says nothing of the other 6."""
    plan, files = published
    result = measured(plan, files[0].parents[5], sizes=(64,))
    assert result.passes == ()
    assert result.passes_left_out == (PassLeftOut("decode", 1, 7), PassLeftOut("extend", 1, 7))


@pytest.mark.flashinfer
def test_sizes_that_leave_none_out_are_as_those_of_production(published):
    plan, files = published
    result = measured(plan, files[0].parents[5], sizes=(1, 2, 4, 8, 16, 24, 32, 64))
    assert len(result.passes) == 4
    assert result.passes_left_out == ()


@pytest.mark.flashinfer
def test_the_same_tactics_are_no_gain(published, tmp_path):
    plan, files = published
    for file in files:
        path = tmp_path / "cache" / file.relative_to(files[0].parents[5])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.read_bytes())
        rewrite(path, lambda entry: replace(entry, tactic=-1))
    result = measured(plan, tmp_path / "cache", against=files[0])
    for size in result.sizes:
        over = {gain.over: gain for gain in size.gains}
        assert over["fallback"].verdict == "no measurable gain"
        assert over["stock"].verdict == "slower"  # the file with the picks stands for stock's
    assert {gain.verdict for found in result.passes for gain in found.gains if gain.over == "fallback"} == {
        "no measurable gain"
    }


@pytest.mark.flashinfer
@pytest.mark.parametrize("above", [None, 0, 5], ids=["file", "its directory", "cache directory"])
def test_stock_s_cache(published, above):
    plan, files = published
    against = files[0] if above is None else files[0].parents[above]
    result = measured(plan, files[0].parents[5], against=against, sizes=(64,))
    assert Path(result.against) == files[0]
    assert {gain.verdict for size in result.sizes for gain in size.gains if gain.over == "stock"} == {
        "no measurable gain"
    }


@pytest.mark.flashinfer
def test_every_bound_of_a_decode_worker(tmp_path):
    """M = 7 looks up bucket 8 and M = 1 bucket 1, whichever comes first in a process."""
    plan, files = tuned(deployment_file(tmp_path, **DECODE), tmp_path / "cache")
    tactics = {(entry.key.custom_op, entry.key.bucket): entry.tactic for entry in read_v1(files[0]).entries}
    result = measured(plan, tmp_path / "cache")
    assert {size.m: dict(size.tactics["ours"])[GEMM1] for size in result.sizes} == {
        m: tactics[GEMM1, bucket] for m, bucket in ((1, 1), (2, 2), (4, 4), (7, 8))
    }


@pytest.mark.flashinfer
def test_what_cannot_be_measured(published, tmp_path):
    plan, files = published
    with pytest.raises(CacheFileError, match="no rank has a cache file"):
        measured(plan, tmp_path)
    with pytest.raises(UsageError, match=r"^this deployment calls no op with more than 64 tokens"):
        measured(plan, tmp_path, sizes=(65, 1024))
    with pytest.raises(UsageError, match="does not exist") as raised:
        measured(plan, files[0].parents[5], against=tmp_path / "nothing.json")
    assert "--against takes a cache" in raised.value.hint
    mine = tmp_path / "README.md"
    mine.write_text("# Not a cache")
    with pytest.raises(CacheFileError) as raised:
        measured(plan, files[0].parents[5], against=mine)
    assert "delete" not in raised.value.hint
    assert "--against takes a cache" in raised.value.hint
    foreign = tmp_path / "foreign.json"
    foreign.write_text(files[0].read_text().replace("simulated NVIDIA H200", "NVIDIA H200"))
    with pytest.raises(CacheFileError, match="another environment") as raised:
        measured(plan, files[0].parents[5], against=foreign)
    assert raised.value.where == str(foreign)
    for number, file in enumerate(files[:2]):
        path = tmp_path / "cache" / file.relative_to(files[0].parents[5])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.read_bytes().replace(b'"_generation"', b'"_generation%d"' % number))
    with pytest.raises(CacheFileError, match="ranks differ"):
        measured(plan, tmp_path / "cache")


def test_nothing_to_measure():
    plan = SimpleNamespace(resolved=SimpleNamespace(ops=(), no_autotune_reason="it is switched off"))
    with pytest.raises(NotPossibleHereError, match="switched off"):
        measured(plan, "cache")


def test_samples_are_enough_for_an_interval():
    # Of 31 samples the 10th smallest and largest bound it: 2 P(Bin(31, 1/2) < 10) = 0.0294, with 11 it is 0.0708.
    assert ROUNDS == 31
