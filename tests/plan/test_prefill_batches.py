"""Batches of a traffic sample. Expected batches are laid out by hand from the scheduler's rule."""

from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.deployment.traffic import PromptRow
from autotune_planner.plan.prefill_batches import Batch, PrefillLimits, prefill_batches, requests_of

CHUNKED = PrefillLimits(chunk=100, max_tokens=1000, max_requests=10)
OFF = PrefillLimits(chunk=-1, max_tokens=100, max_requests=10)


def batches(lens, limits, prefix=0):
    return list(prefill_batches([(length, prefix) for length in lens], limits))


def test_a_batch_ends_when_the_chunk_is_full():
    assert batches([60, 40, 30], CHUNKED) == [Batch((60, 40)), Batch((30,))]


def test_a_prompt_is_split_where_the_chunk_ends_and_its_rest_opens_the_next_batch():
    assert batches([60, 50, 5], CHUNKED) == [Batch((60, 40)), Batch((10, 5), after_prefix=True)]


def test_a_long_prompt_has_batches_of_its_own():
    # 350 = 100, then 100 and 100 with a prefix, and 50 left for a batch with the next request.
    found = batches([350, 20], CHUNKED)
    assert found == [Batch((100,)), Batch((100,), True, 2), Batch((50, 20), True)]


def test_a_cached_prefix_marks_its_batch():
    found = list(prefill_batches([(10, 0), (10, 7), (80, 0), (5, 0)], CHUNKED))
    assert found == [Batch((10, 10, 80), True), Batch((5,))]


def test_requests_are_charged_and_split_in_pages():
    # 60 is charged as 64; of the 36 tokens left, two pages of 16 are whole: 32. 18 are left.
    pages = PrefillLimits(chunk=100, max_tokens=1000, max_requests=10, granule=16)
    assert batches([60, 50], pages) == [Batch((60, 32)), Batch((18,), True)]
    # 90 is charged as 96: the 4 tokens left hold no page, so the next prompt waits whole.
    assert batches([90, 50], pages) == [Batch((90,)), Batch((50,))]


def test_without_chunks_prompts_stay_whole():
    # 60 + 40 would reach 100; a prompt above the limit has a batch of its own.
    assert batches([60, 40, 30, 500, 1], OFF) == [Batch((60,)), Batch((40, 30)), Batch((500,)), Batch((1,))]


def test_a_batch_holds_no_more_requests_than_the_pool():
    assert batches([1] * 25, CHUNKED) == [Batch((1,) * 10), Batch((1,) * 10), Batch((1,) * 5)]


def test_counts_have_no_order():
    rows = (PromptRow(1000, 0, 1), PromptRow(1, 0, 4))
    # Copies stand at 1/2 for the long one, and at 1/8, 3/8, 5/8, 7/8.
    assert list(requests_of(rows)) == [(1, 0), (1, 0), (1000, 0), (1, 0), (1, 0)]


def test_rows_without_counts_keep_their_order():
    rows = (PromptRow(5), PromptRow(9, 4), PromptRow(3))
    assert list(requests_of(rows)) == [(5, 0), (5, 4), (3, 0)]


def test_the_last_token_is_computed_even_if_it_is_cached():
    assert list(requests_of((PromptRow(9, 9),))) == [(1, 9)]


@given(
    lens=st.lists(st.integers(1, 5000), max_size=40),
    chunk=st.integers(-1, 600),
    max_tokens=st.integers(0, 600),
    max_requests=st.integers(0, 20),
    granule=st.sampled_from((1, 16, 64)),
)
def test_no_token_is_lost_and_no_limit_is_passed(lens, chunk, max_tokens, max_requests, granule):
    found = batches(lens, PrefillLimits(chunk, max_tokens, max_requests, granule))
    assert sum(batch.times * sum(batch.extend_lens) for batch in found) == sum(lens)
    for batch in found:
        assert batch.extend_lens
        assert all(length > 0 for length in batch.extend_lens)
        assert len(batch.extend_lens) <= max(max_requests, 1)
        if chunk > 0:
            assert sum(batch.extend_lens) <= chunk
        else:
            assert len(batch.extend_lens) == 1 or sum(batch.extend_lens) < max_tokens
