"""Coverage of sizes by entries. Buckets are section 3 of FlashInfer's contract, as measured with 0.7.2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.cache.coverage import Demand, cover, demands_of, loaded
from autotune_planner.cache.production import prefill_shares
from autotune_planner.cache.v1 import Entry
from autotune_planner.deployment.model import Decode, Speculative, Traffic
from autotune_planner.engines import resolve
from autotune_planner.plan.buckets import bucket_of
from autotune_planner.plan.plan import WorkUnit, make_plan
from autotune_planner.tuning.keys import PlannedKey
from tests.engines.truth import deployment_of, row

HOT = ("cuda_graph_profile_replays", None, "l2_cache_policy", "hot")
COLD = ("cuda_graph_profile_replays", 1, "l2_cache_policy", "cold")


def key_text(bucket: int, *, width: int = 64, op: str = "op", extras: str | None = "(torch.bfloat16,)") -> str:
    fields = [repr(op), "'R'", f"(({bucket}, {width}), (8, {width}))"]
    return f"({', '.join(fields if extras is None else [*fields, extras])})"


def demand(
    largest: int, *, bound: int | None = None, at_start: Any = (), policy: tuple[Any, ...] = HOT, bucket: Any = None
) -> Demand:
    """Keys of every bucket that M = 1..largest reaches; the server's own passes tune those of ``at_start``."""
    lookup = bucket or (lambda m: bucket_of(m, bound))
    reached = {lookup(m) for m in range(1, largest + 1)}
    keys = {b: PlannedKey(key_text(b), policy, b in at_start) for b in reached}
    return Demand("op", "layer", "N64", "extend", largest, bound, lookup, keys)


def entries(*texts: str, policy: tuple[Any, ...] | None = HOT) -> dict[str, Entry]:
    return loaded(Entry(text, "R", 3, policy) for text in texts)


def spans(wanted: Demand, held: dict[str, Entry]) -> list[tuple[int, int, int, str]]:
    (found,) = cover([wanted], held)
    return [(span.first, span.last, span.bucket, span.state) for span in found.spans]


def gaps(wanted: Demand, held: dict[str, Entry]) -> list[tuple[int, int, str]]:
    (found,) = cover([wanted], held)
    return [(gap.first, gap.last, gap.state) for gap in found.gaps()]


def test_buckets_round_up_and_the_bound_clamps() -> None:
    held = entries(*map(key_text, (1, 2, 4, 8)))
    assert spans(demand(20, bound=8), held) == [
        (1, 1, 1, "tuned"),
        (2, 2, 2, "tuned"),
        (3, 4, 4, "tuned"),
        (5, 8, 8, "tuned"),
        (9, 20, 8, "clamped"),
    ]


def test_an_op_without_a_bound_does_not_clamp() -> None:
    assert spans(demand(20), entries(*map(key_text, (1, 2, 4, 8)))) == [
        (1, 1, 1, "tuned"),
        (2, 2, 2, "tuned"),
        (3, 4, 4, "tuned"),
        (5, 8, 8, "tuned"),
        (9, 16, 16, "fallback"),
        (17, 20, 32, "fallback"),
    ]


def test_a_custom_bucket_list_rounds_down() -> None:
    """FlashInfer's ``tuning_buckets`` without ``round_up``: 24 rows (8 requests x 3) are looked up under 16, not 32."""
    grid = (1, 2, 4, 8, 16, 32)

    def floor(m: int) -> int:
        return max(bucket for bucket in grid if bucket <= m)

    (found,) = cover([demand(40, bucket=floor)], entries(*map(key_text, (16, 32))))
    assert (found.state_of(24), found.state_of(15), found.state_of(33)) == ("tuned", "fallback", "tuned")
    assert [(span.first, span.last) for span in found.spans if span.bucket == 16] == [(16, 31)]
    (up,) = cover([demand(40)], entries(key_text(16)))
    assert up.state_of(24) == "fallback"


@pytest.mark.parametrize(("bound", "top"), [(1000, 1000), (5000, 5000), (8184, 8184)])
def test_an_off_grid_bound_asks_for_its_own_key(bound: int, top: int) -> None:
    """SGLang's CUTLASS MoE caps its mapper at the bound: an entry of the grid size above it always misses."""
    on_grid = bucket_of(top, None)
    below = [key_text(b) for b in demand(bound, bound=bound).keys if b != top]
    last = max(b for b in demand(bound, bound=bound).keys if b != top)
    assert gaps(demand(bound, bound=bound), entries(*below, key_text(on_grid))) == [(last + 1, bound, "fallback")]
    assert gaps(demand(bound, bound=bound), entries(*below, key_text(top))) == []


def test_a_mapper_that_drops_at_its_bound() -> None:
    """FlashInfer does not clamp powers of two: with a bound of 100, M = 70 has bucket 128 and M = 100 bucket 100."""
    held = entries(*map(key_text, (1, 2, 4, 8, 16, 32, 64, 100)))
    assert spans(demand(200, bound=100), held)[-3:] == [
        (65, 99, 128, "fallback"),
        (100, 100, 100, "tuned"),
        (101, 200, 100, "clamped"),
    ]


def test_what_the_server_tunes_at_start_and_what_falls_back() -> None:
    wanted = demand(16, at_start=(1, 2, 4))
    assert gaps(wanted, {}) == [(1, 4, "at_start"), (5, 16, "fallback")]
    assert gaps(wanted, entries(key_text(2))) == [(1, 1, "at_start"), (3, 4, "at_start"), (5, 16, "fallback")]


def test_all_dimensions_of_the_key_count() -> None:
    """Sparse MLA decode: entries (24, 128) do not cover (24, 384)."""
    asked = key_text(24, width=384)
    wanted = Demand("op", "mla", "W384", "decode", 24, 24, lambda m: 24, {24: PlannedKey(asked, HOT, False)})
    (found,) = cover([wanted], entries(key_text(24, width=128)))
    (gap,) = found.gaps()
    assert (gap.first, gap.last, gap.state) == (1, 24, "fallback")
    assert "input 0 is (24, 128), asked for (24, 384)" in gap.reason
    assert cover([wanted], entries(asked))[0].gaps() == ()


@pytest.mark.parametrize(
    ("held", "says"),
    [
        ({}, "nothing is loaded"),
        (entries(key_text(8)), "no entry of this bucket"),
        (entries(key_text(4, op="other")), "no entry of this op"),
        (entries(key_text(4, extras=None)), "a key of 3 elements"),
        (entries(key_text(4, extras="(torch.float16,)")), "extra 0 is torch.float16, asked for torch.bfloat16"),
        (entries(key_text(4, extras="(torch.bfloat16, 1)")), "2 extras, asked for 1"),
        (entries("not a key"), "no entry of this op"),
        ({key_text(4): Entry(key_text(4), "S", 3, HOT)}, "its entry names runner S, the key R"),
        (loaded([Entry(key_text(4), "CudnnFp8GemmRunner", 3, HOT)]), "nothing is loaded"),
    ],
)
def test_a_miss_is_explained(held: dict[str, Entry], says: str) -> None:
    wanted = replace(demand(4), keys={4: PlannedKey(key_text(4), HOT, False)})
    assert says in cover([wanted], held)[0].spans[-1].reason


@pytest.mark.parametrize(
    ("asked", "held", "at_start", "state"),
    [
        (HOT, HOT, True, "tuned"),
        (COLD, COLD, True, "tuned"),
        (COLD, HOT, True, "at_start"),
        # Without a policy an entry counts as hot L2: enough for the CUTLASS MoE, not for trtllm-gen.
        (HOT, None, True, "tuned"),
        (COLD, None, True, "at_start"),
        # Replay does not look at policies: a size that no pass of the server tunes is served all the same.
        (COLD, None, False, "tuned"),
        (COLD, HOT, False, "tuned"),
        (HOT, (*HOT, "policy_version", 2), True, "at_start"),
    ],
)
def test_policies(asked: tuple[Any, ...], held: tuple[Any, ...] | None, at_start: bool, state: str) -> None:
    wanted = demand(1, policy=asked, at_start=(1,) if at_start else ())
    assert spans(wanted, entries(key_text(1), policy=held)) == [(1, 1, 1, state)]


@given(
    largest=st.integers(1, 3000),
    bound=st.one_of(st.none(), st.integers(1, 3000)),
    held=st.sets(st.sampled_from([1, 2, 4, 8, 16, 32, 64, 100, 128, 256, 512, 768, 1000, 1024, 2048, 3072])),
    at_start=st.sets(st.sampled_from([1, 4, 64, 256, 1024])),
)
def test_every_size_has_the_state_of_its_own_key(
    largest: int, bound: int | None, held: set[int], at_start: set[int]
) -> None:
    """Against a lookup of every M by itself."""
    (found,) = cover([demand(largest, bound=bound, at_start=at_start)], entries(*map(key_text, held)))
    assert found.spans[0].first == 1
    assert found.spans[-1].last == largest
    for before, after in zip(found.spans, found.spans[1:], strict=False):
        assert after.first == before.last + 1
    for m in range(1, largest + 1):
        bucket = bucket_of(m, bound)
        served = "clamped" if bound is not None and m > bound else "tuned"
        assert found.state_of(m) == (served if bucket in held else "at_start" if bucket in at_start else "fallback")
    assert sum(found.sizes().values()) == largest


# Plans: Qwen3-30B-A3B on H200.


def planned(identity: str, **changes: Any) -> Any:
    """A plan of a truth row and stand-in keys of its units, one text for each; the DECODE pass tunes all."""
    deployment = replace(deployment_of(row(identity, "keys-sglang-0.5.23.jsonl")), **changes)
    plan = make_plan(resolve(deployment))
    keys: dict[WorkUnit, tuple[PlannedKey, ...]] = {
        unit: (PlannedKey(key_text(unit.bucket, op=unit.custom_op), HOT, True),) for unit in plan.units
    }
    return plan, keys


def test_demands_of_a_plan() -> None:
    """dpa8: gathered rows 4096 x 8 in both passes, the CUTLASS bound is min(8192, 1024 x 8)."""
    plan, keys = planned("q30-h200-dpa8")
    found = demands_of(plan, keys)
    assert [(d.custom_op[-5:], d.phase, d.largest, d.bound) for d in found] == [
        ("gemm1", "decode", 32768, 8192),
        ("gemm1", "extend", 8192, 8192),
        ("gemm2", "decode", 32768, 8192),
        ("gemm2", "extend", 8192, 8192),
    ]
    assert all(len(d.keys) == 21 for d in found)
    covered = cover(found, entries(*(key.key for of_unit in keys.values() for key in of_unit)))
    assert covered[0].sizes() == {"tuned": 8192, "clamped": 32768 - 8192, "at_start": 0, "fallback": 0}
    assert all(item.gaps() == () for item in covered)


def test_speculative_rows_are_requests_times_draft_tokens() -> None:
    """512 requests x 6 draft tokens are 3072 rows of DECODE: entries up to 512 leave 513..3072."""
    plan, keys = planned(
        "q30-h200-tp2",
        speculative=Speculative("EAGLE", num_steps=5, eagle_topk=1, num_draft_tokens=6),
        decode=Decode(max_running_requests=512),
    )
    decode = [found for found in demands_of(plan, keys) if found.phase == "decode"]
    assert [found.largest for found in decode] == [3072, 3072]
    held = entries(*(key.key for unit, of_unit in keys.items() if unit.bucket <= 512 for key in of_unit))
    for found in cover(decode, held):
        assert [(gap.first, gap.last, gap.state) for gap in found.gaps()] == [(513, 3072, "at_start")]


def test_share_of_production_tokens() -> None:
    """Prompts of 6000, 3000 and 100 tokens in chunks of 8192: batches of 8192 (6000 + 2192) and 908 (808 + 100).

    Entries up to bucket 1024 serve 908 of the 9100 tokens; 8192 falls to the server's own pass.
    """
    plan, keys = planned("q30-h200-tp2", traffic=Traffic(extend_lens=(6000, 3000, 100)))
    small = entries(*(key.key for unit, of_unit in keys.items() if unit.bucket <= 1024 for key in of_unit))
    covered = cover(demands_of(plan, keys), small)
    passes = [(found.demand.custom_op[-5:], found.demand.phase) for found in covered]
    shares = dict(zip(passes, prefill_shares(plan.resolved, covered), strict=True))
    assert shares["gemm1", "decode"] is None
    share = shares["gemm1", "extend"]
    assert share is not None
    assert share["tuned"] == pytest.approx(908 / 9100)
    assert share["at_start"] == pytest.approx(8192 / 9100)


def test_no_share_without_traffic() -> None:
    plan, keys = planned("q30-h200-tp2")
    covered = cover(demands_of(plan, keys), {})
    assert prefill_shares(plan.resolved, covered) == [None] * len(covered)
