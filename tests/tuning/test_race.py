"""The race: on streams of samples with a known truth, and through FlashInfer's own tuner on the simulated device."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune_planner.tuning import flashinfer_internals as internals
from autotune_planner.tuning.contexts import tuning_contexts
from autotune_planner.tuning.race import Rules, interleaved, race
from autotune_planner.tuning.simulated import CostModel
from tests.tuning.plans import H200, qwen3_moe, small_plan

FLASHINFER = pytest.mark.flashinfer
RULES = Rules()


class Stream:
    """A stopwatch with a known truth (milliseconds): jitter of single launches, drift per round, rare spikes, inputs.

    ``inputs`` are the factors that the op's cycle of inputs puts on the time, one after another with each launch.
    """

    def __init__(self, truth, *, seed=0, jitter=0.0, drift=0.0, spike=0.0, inputs=(1.0,), failing=()):
        self.truth, self.failing, self.inputs = truth, failing, inputs
        self.random = random.Random(seed)
        self.jitter, self.drift, self.spike = jitter, drift, spike
        self.count, self.clock, self.launches = 0, 1.0, Counter()
        self.rounds = []

    def __call__(self, bursts, launches, *, warm=0, rest_ms=0.0):
        self.rounds.append((list(bursts), launches, warm, rest_ms))
        return [self.burst(tactic, launches, warm) for tactic in bursts]

    def burst(self, tactic, launches, warm):
        if tactic in self.failing:
            return RuntimeError(f"tactic {tactic} does not run")
        times = [self.launch(tactic) for _ in range(warm + launches)]
        self.launches[tactic] += len(times)
        return sum(times[warm:]) / launches

    def launch(self, tactic):
        self.clock *= 1 + self.drift
        factor = self.inputs[self.count % len(self.inputs)]
        self.count += 1
        if self.random.random() < self.spike:
            factor *= 2
        return self.truth[tactic] * factor * self.clock * math.exp(self.random.gauss(0, self.jitter))


def spread_out(best_ms, count=46):
    """Every tactic 4 % from the next, in no order of their numbers; the slowest 1.04 ** 45 = 5.8 times slower."""
    order = random.Random(1).sample(range(count), count)
    return {tactic: best_ms * 1.04**rank for rank, tactic in enumerate(order)}


@pytest.mark.parametrize("best_ms", [0.008, 0.1, 0.3, 1.4])
@pytest.mark.parametrize("cycle", [1, 16])
@pytest.mark.parametrize("seed", range(5))
def test_the_fastest_wins_under_jitter_and_a_clock_that_drifts(best_ms, cycle, seed):
    truth = spread_out(best_ms)
    result = race(range(46), Stream(truth, seed=seed, jitter=0.01, drift=2e-5), cycle=cycle)
    assert truth[result.winner] == min(truth.values())


@pytest.mark.parametrize("seed", range(20))
def test_regret_stays_within_one_percent_where_many_are_close(seed):
    generator = random.Random(seed)
    truth = {tactic: 0.2 * (1 + generator.random() ** 2 * 0.5) for tactic in range(46)}
    result = race(range(46), Stream(truth, seed=seed, jitter=0.005), cycle=16)
    assert truth[result.winner] <= 1.01 * min(truth.values())


@pytest.mark.parametrize("best_ms", [0.05, 0.3])
def test_a_cycle_of_inputs_does_not_decide(best_ms):
    # Inputs differ by 20 % (short) or 3 %, as the routings of few and of many tokens do; the best leads by 1.5 %.
    width = 0.2 if best_ms < RULES.short_ms else 0.03
    inputs = [1 + width * (k * 7 % 16) / 15 for k in range(16)]
    truth = {tactic: best_ms * (1.0 if tactic == 30 else 1.015) for tactic in range(46)}
    result = race(range(46), Stream(truth, jitter=0.002, inputs=inputs), cycle=16)
    assert result.winner == 30


@pytest.mark.parametrize("seed", range(20))
def test_rare_spikes_in_the_final_do_not_decide(seed):
    # One launch in 500 takes twice as long: within a burst of 16 that is 6 %, ten times the tie band.
    truth = {tactic: 0.03 * (1.0 if tactic == 5 else 1.03) for tactic in range(9)}
    result = race(range(9), Stream(truth, seed=seed, jitter=0.003, spike=0.002), cycle=16)
    assert truth[result.winner] <= 1.03 * 0.03 * 1.0001
    assert result.winner == 5 or truth[result.winner] == pytest.approx(0.0309)


@pytest.mark.parametrize("best_ms", [0.03, 0.3])
@pytest.mark.parametrize("cycle", [1, 16])
def test_a_default_that_something_held_up_is_looked_at_again(best_ms, cycle):
    """Its first launch takes twice as long; of the rest none is slowed. It is 1 % behind the best, and said to be."""
    truth = {tactic: best_ms * (1.0 if tactic == 5 else 1.01 if tactic == 0 else 1.5) for tactic in range(9)}

    class HeldUp(Stream):
        def burst(self, tactic, launches, warm):
            value = super().burst(tactic, launches, warm)
            return 2 * value if len(self.rounds) == 1 and tactic == 0 else value

    result = race(range(9), HeldUp(truth), cycle=cycle)
    assert result.winner == 5
    assert result.times[0] == pytest.approx(1.01 * best_ms)


class PowerLimited(Stream):
    """The clock falls by 13 % after 12 ms of kernels and recovers between rounds."""

    def __call__(self, bursts, launches, **how):
        self.busy = 0.0
        return super().__call__(bursts, launches, **how)

    def launch(self, tactic):
        time = super().launch(tactic) * (1.13 if self.busy > 12.0 else 1.0)
        self.busy += time
        return time


@pytest.mark.parametrize("cycle", [1, 16])
@pytest.mark.parametrize("best", range(6))
def test_a_clock_that_falls_within_a_round_does_not_decide(cycle, best):
    # The best leads by 1.5 %, wherever in the order it stands. A round of one burst each of 3 launches and more would
    # take 6 x 4 x 1.3 = 31 ms, of which those that come first would have the better clock.
    truth = {tactic: 1.3 * (1.0 if tactic == best else 1.015) for tactic in range(6)}
    assert race(range(6), PowerLimited(truth, jitter=0.001), cycle=cycle).winner == best


@pytest.mark.parametrize("seed", range(5))
def test_a_round_s_first_launch_that_is_held_up_does_not_drop_a_tactic(seed):
    """After a pause the first long kernel may take 30 % longer: 7 % of a mean of four, more than is let through."""

    class SlowStart(Stream):
        def __call__(self, bursts, launches, **how):
            first, *others = super().__call__(bursts, launches, **how)
            return [1.3 * first if launches == 1 and len(self.rounds) > 1 else first, *others]

    truth = {tactic: 0.3 * (1.0 if tactic == 0 else 1.02) for tactic in range(8)}
    assert race(range(8), SlowStart(truth, seed=seed, jitter=0.001), cycle=16).winner == 0


def test_a_large_kernel_seen_a_tenth_too_slow_at_first_is_looked_at_again():
    class SlowStart(Stream):
        def launch(self, tactic):
            return super().launch(tactic) * (1.1 if not self.launches[tactic] and tactic == 1 else 1.0)

    truth = {0: 2.0, 1: 0.5, 2: 0.51, 3: 0.52}
    assert race(range(4), SlowStart(truth), cycle=16).winner == 1


@pytest.mark.parametrize(("best_ms", "launches"), [(0.003, 112), (0.016, 32), (0.017, 32), (0.02, 16), (0.1, 16)])
def test_bursts_of_small_kernels_are_whole_cycles_of_at_least_0_3_ms(best_ms, launches):
    # 0.3 / 0.003 = 100 launches, so 7 cycles of 16; 0.3 / 0.016 = 18.75 and 0.3 / 0.017 = 17.6, so two; then one
    stream = Stream({0: best_ms, 1: best_ms * 1.004})
    race(range(2), stream, cycle=16)
    _, _, first, *_ = stream.rounds
    assert first[:3] == ([0, 1], launches, 1)


def test_most_tactics_are_launched_once():
    stream = Stream(spread_out(0.3), jitter=0.005)
    result = race(range(46), stream, cycle=16)
    # 1.04 ** 2 is the last ratio within the look's 1.08, so 3 of 46 are looked at again, and the default.
    assert sum(count == 1 for count in stream.launches.values()) >= 42
    assert result.launches == sum(stream.launches.values())
    assert set(result.times) == set(range(46))


@pytest.mark.parametrize("best_ms", [0.008, 0.1, 0.3, 1.4])
def test_what_a_race_spends_is_bounded(best_ms):
    # The worst case: 46 tactics that nothing can tell apart, on the edge of nothing. Looks and a narrowing round of
    # 46 x (1 + 5 + 4) launches, then at most ``final_ms`` and one round that was begun within it.
    stream = Stream(dict.fromkeys(range(46), best_ms), jitter=0.01)
    result = race(range(46), stream, cycle=16)
    one_round = 46 * 17 * best_ms
    assert result.rounds <= RULES.most_rounds
    assert result.busy_ms <= 1.1 * (46 * 10 * best_ms + RULES.final_ms + one_round)


@pytest.mark.parametrize("seed", range(10))
def test_the_default_keeps_its_place_in_a_tie(seed):
    truth = {tactic: 0.2 * (1.0 if tactic == 7 else 1.3) for tactic in range(10)} | {0: 0.2 * 1.001}
    result = race(range(10), Stream(truth, seed=seed, jitter=0.002), cycle=16)
    assert result.winner == 0
    assert result.tied == (0, 7)


@pytest.mark.parametrize("seed", range(10))
def test_the_default_goes_when_it_is_beaten_by_more_than_the_noise(seed):
    truth = {tactic: 0.2 * (1.0 if tactic == 7 else 1.3) for tactic in range(10)} | {0: 0.2 * 1.012}
    result = race(range(10), Stream(truth, seed=seed, jitter=0.002), cycle=16)
    assert result.winner == 7
    assert result.margin == pytest.approx(0.012, abs=0.004)


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(12)), st.integers(0, 1000), st.sampled_from([0.01, 0.3]), st.sampled_from([1, 16]))
def test_separated_tactics_win_in_any_order_with_any_noise(order, seed, best_ms, cycle):
    truth = {tactic: best_ms * 1.02**tactic for tactic in range(12)}
    result = race(order, Stream(truth, seed=seed, jitter=0.004, drift=1e-5), cycle=cycle)
    assert result.winner == 0


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.integers(0, 45), st.floats(0.005, 5.0), min_size=1), st.data())
def test_failing_tactics_are_skipped_and_never_win(truth, data):
    failing = data.draw(st.sets(st.sampled_from(sorted(truth))))
    result = race(sorted(truth), Stream(truth, failing=failing), cycle=16)
    assert set(result.errors) == failing
    assert set(result.times) == set(truth) - failing
    if failing == set(truth):
        assert result.winner is None
        assert result.tied == ()
    else:
        assert truth[result.winner] <= min(truth[tactic] for tactic in result.times) * (1 + RULES.tie) * (1 + 1e-9)


def test_a_tactic_that_fails_later_is_skipped_as_well():
    stream = Stream({0: 0.3, 1: 0.301, 2: 0.302, 3: 0.9})

    def measure(bursts, launches, **kwargs):
        if len(stream.rounds) == 2:
            stream.failing = (0, 1)
        return stream(bursts, launches, **kwargs)

    result = race(range(4), measure, cycle=16)
    assert set(result.errors) == {0, 1}
    assert result.winner == 2


@given(st.integers(1, 50), st.sampled_from([1, 2, 4, 8, 16]))
def test_every_tactic_meets_every_input_of_a_cycle_alike(count, repeats):
    # As many launches per burst as make a cycle of 16 in ``repeats`` bursts; the cycle goes on from burst to burst.
    launches = 16 // repeats
    seen = {tactic: Counter() for tactic in range(count)}
    for number, tactic in enumerate(interleaved(range(count), repeats)):
        for launch in range(launches):
            seen[tactic][(number * launches + launch) % 16] += 1
    assert all(inputs == Counter(range(16)) for inputs in seen.values())


def test_rounds_go_forwards_and_backwards_and_long_kernels_rest():
    stream = Stream({0: 0.302, 1: 0.301, 2: 0.3})
    result = race(range(3), stream, cycle=16)
    look, narrow, first, second, *_ = stream.rounds
    assert look == ([0, 1, 2], 1, 0, 0.0)
    assert narrow == ([0, 1, 2] * 4, 1, 0, 0.0)
    # four slices of 4 launches each; a quarter of the 16 launches that each of the three is about to get is rested
    assert first[:3] == ([0, 1, 2] * 4, 4, 0)
    assert first[3] == pytest.approx(0.25 * 16 * (0.302 + 0.301 + 0.3))
    assert second[0] == [2, 1, 0] * 4
    # 1 is 0.33 % behind the best, within the tie of 0.6 %; 0 is 0.66 % behind
    assert result.winner == 1
    assert result.tied == (1, 2)


@pytest.mark.parametrize("best_ms", [0.01, 0.2, 1.0])
@pytest.mark.parametrize("cycle", [1, 16])
@pytest.mark.parametrize("last", range(1, 8))
def test_tactics_that_fail_in_any_round_never_win(best_ms, cycle, last):
    """All that are still racing fail from one round on: what fell before wins, if anything ever ran."""

    class Failing(Stream):
        def burst(self, tactic, launches, warm):
            failed = len(self.rounds) >= last and tactic in (1, 2)
            return RuntimeError("no longer") if failed else super().burst(tactic, launches, warm)

    truth = {0: 3 * best_ms, 1: best_ms, 2: best_ms * 1.0005, 3: 2.5 * best_ms}
    stream = Failing(truth, jitter=0.003)
    result = race(range(4), stream, cycle=cycle)
    if len(stream.rounds) >= last:
        assert result.errors.keys() <= {1, 2}
        assert result.winner not in result.errors
        assert not result.errors.keys() & result.times.keys()
    assert result.winner is not None


@pytest.mark.parametrize("answer", [0.0, math.nan, math.inf, -1.0])
def test_a_time_that_is_none_is_an_error(answer):
    class Broken(Stream):
        def burst(self, tactic, launches, warm):
            return answer if tactic == 1 else super().burst(tactic, launches, warm)

    result = race(range(3), Broken({0: 0.2, 1: 0.1, 2: 0.15}), cycle=16)
    assert result.winner == 2
    assert f"timed at {answer} ms" in str(result.errors[1])


# Through FlashInfer's own choose_one


@pytest.fixture
def simulated():
    """The simulated device and a tuner of its own; the second element gives the picks, profile by profile."""
    model = CostModel(H200, 0)
    with internals.without_gpu((9, 0), H200.name, model), internals.fresh_tuner() as tuner:
        yield model, tuner


def tune(call, search=race):
    with internals.racing(search) as raced, tuning_contexts(None):
        call.prepare("meta")(8)()
    return raced


@FLASHINFER
def test_tactics_go_into_the_race_in_the_order_of_a_tie(simulated):
    found = []

    def search(places, stopwatch, *, cycle):
        found.append(list(places))
        return race(places, stopwatch, cycle=cycle)

    with internals.racing(search, lambda op: [4, 2] if op.endswith("gemm1") else []) as raced, tuning_contexts(None):
        qwen3_moe(tune_max=1).prepare("meta")(1)()
    first, second = raced
    assert [first.tactics[place] for place in found[0][:4]] == [-1, 4, 2, 0]
    assert [second.tactics[place] for place in found[1]] == list(second.tactics)


@FLASHINFER
def test_this_flashinfer_can_race():
    assert internals.racing_obstacle() is None


@FLASHINFER
@pytest.mark.parametrize("name", ["choose_one", "_profile_single_kernel"])
def test_a_flashinfer_without_a_hook_cannot(monkeypatch, name):
    from flashinfer.autotuner import AutoTuner

    monkeypatch.delattr(AutoTuner, name)
    assert name in internals.racing_obstacle()


@FLASHINFER
def test_a_hook_with_other_parameters_is_not_taken(monkeypatch):
    from flashinfer.tactics_blocklist import TacticsBlocklist

    monkeypatch.setattr(TacticsBlocklist, "filter", lambda self, tactics: tactics)
    assert "TacticsBlocklist.filter" in internals.racing_obstacle()


@FLASHINFER
def test_choose_one_writes_the_winner_under_the_op_s_own_key_and_policy(simulated):
    _, tuner = simulated
    raced = tune(qwen3_moe(tune_max=8))
    # 2 GEMMs x buckets 1, 2, 4, 8; 45 stand-in tactics and the default
    assert len(raced) == len(tuner.profiling_cache) == 8
    assert [one.custom_op for one in raced] == ["trtllm::fused_moe::gemm1"] * 4 + ["trtllm::fused_moe::gemm2"] * 4
    assert all(len(one.tactics) == 46 and one.tactics[0] == -1 for one in raced)
    winners = [one.tactics[one.result.winner] for one in raced]
    assert [tactic for tactic, _ in tuner.profiling_cache.values()] == winners
    policies = set(internals.tuned_keys(tuner).values())
    assert policies == {("cuda_graph_profile_replays", None, "l2_cache_policy", "hot")}


@FLASHINFER
def test_the_winner_is_within_the_tie_of_what_stock_finds(simulated):
    model, tuner = simulated
    call = qwen3_moe(tune_max=64)
    with tuning_contexts(None):
        call.prepare("meta")(8)()
    stock, stock_ms = [value[0] for value in tuner.profiling_cache.values()], model.elapsed_ms
    tuner.clear_cache()
    raced = tune(call)
    race_ms = model.elapsed_ms - stock_ms
    for tactic, one in zip(stock, raced, strict=True):
        times = one.result.times
        assert times[one.result.winner] <= times[one.tactics.index(tactic)] * math.exp(RULES.tie)
    assert race_ms < stock_ms / 7


@FLASHINFER
def test_tactics_that_fail_are_listed_by_flashinfer_as_ever(monkeypatch, simulated):
    from flashinfer.autotuner import AutoTuner

    answer = AutoTuner._profile_single_kernel

    def two_fail(self, runner, inputs, tactic, *args, **kwargs):
        if tactic in (3, 5):
            raise RuntimeError("this algorithm does not support the shape")
        return answer(self, runner, inputs, tactic, *args, **kwargs)

    monkeypatch.setattr(AutoTuner, "_profile_single_kernel", two_fail)
    _, tuner = simulated
    raced = tune(small_plan().units[-1].call)
    assert tuner.stats.failed_tactics == {"fp8_gemm::CublasFp8GemmRunner": {3, 5}}
    assert all(set(one.result.errors) == {one.tactics.index(3), one.tactics.index(5)} for one in raced)


@FLASHINFER
def test_running_out_of_memory_is_flashinfer_s_to_handle(monkeypatch, simulated):
    from flashinfer.autotuner import AutoTuner

    def no_memory(*_, **__):
        raise MemoryError

    monkeypatch.setattr(AutoTuner, "_profile_single_kernel", no_memory)
    _, tuner = simulated
    assert tune(small_plan().units[-1].call) == []
    assert not tuner.profiling_cache


@FLASHINFER
def test_the_tuner_takes_the_race_s_winner_even_where_another_was_timed_faster(simulated):
    def last_wins(places, stopwatch, *, cycle):
        from dataclasses import replace

        return replace(race(places, stopwatch, cycle=cycle), winner=places[-1])

    _, tuner = simulated
    tune(small_plan().units[-1].call, last_wins)
    assert {tactic for tactic, _ in tuner.profiling_cache.values()} == {7}  # 8 stand-in algorithms


@FLASHINFER
def test_a_policy_that_the_stopwatch_does_not_keep_is_left_to_flashinfer(simulated):
    from flashinfer import MeasurementPolicy, autotune_v2

    call = small_plan().units[-1].call
    with (
        internals.racing(race) as raced,
        internals.watched_tuner() as watch,
        autotune_v2(mode="tune", persistent_cache=False, measurement_policy=MeasurementPolicy(cold_l2=True)),
    ):
        call.prepare("meta")(8)()
    assert raced == []
    assert watch.timings == 4 * 9  # buckets 1, 2, 4, 8; 8 stand-in algorithms and the default


@FLASHINFER
def test_only_moe_goes_by_a_cycle_of_inputs(simulated):
    cycles = []

    def noting(places, stopwatch, *, cycle):
        cycles.append(cycle)
        return race(places, stopwatch, cycle=cycle)

    tune(qwen3_moe(tune_max=1), noting)
    tune(small_plan().units[-1].call, noting)
    assert Counter(cycles) == {16: 2, 1: 4}
