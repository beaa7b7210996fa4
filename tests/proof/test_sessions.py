"""Which calls a proof makes. Sizes are those of the issue, clipped by hand to what each deployment reaches."""

import pytest

from autotune_planner.deployment.load import load_deployment
from autotune_planner.planning import plan
from autotune_planner.proof.sessions import OFF_BUCKET, call_at, sessions

# FlashInfer's hybrid buckets up to 8192.
POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
GRID = (*POWERS, 512, 768, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 8192)


MOE = {"model": "qwen3-30b-a3b", "moe": "{runner_backend: flashinfer_cutlass}", "kv_token_capacity": 1000000}
FP8 = {"model": "llama-3.1-8b-fp8"}
DECODE = {**MOE, "disaggregation": "decode", "decode": "{max_running_requests: 300}"}


@pytest.fixture
def planned(tmp_path):
    """``planned(**fields)``: the plan of a deployment on one H200, or on as many as ``parallel`` says."""

    def write(**fields):
        path = tmp_path / "deployment.yaml"
        lines = {"gpu": "H200", "engine_version": "0.5.23", "model_path": "/models/m", **fields}
        path.write_text("".join(f"{name}: {value}\n" for name, value in lines.items()))
        return plan(load_deployment(path), {})

    return write


def sizes_of(session, label=None):
    return [step.m for step in session.steps if label is None or step.call.label == label]


def test_a_worker_of_one_bound_is_one_process(planned):
    # A million KV tokens allow 4096 requests, the DECODE dummy, which comes first; a chunk has 8192 tokens.
    (session,) = sessions(planned(**MOE))
    assert sizes_of(session)[0] == 4096
    assert sorted(sizes_of(session)) == sorted({*GRID, *OFF_BUCKET})
    assert {step.stage for step in session.steps} == {"start"}


def test_sizes_that_are_not_reached_are_left_out(planned):
    # Chunks of 2048 tokens, 300 requests: of the sizes above 2048 none is left.
    (session,) = sessions(planned(**FP8, prefill="{chunked_prefill_size: 2048}", decode="{max_running_requests: 300}"))
    for label in ("N6144 K4096", "N4096 K4096", "N28672 K4096", "N4096 K14336"):
        sizes = sizes_of(session, label)
        assert sizes[0] == 300
        assert sorted(sizes) == sorted({*(m for m in GRID if m <= 2048), 24, 200, 300, 700, 1536})


def test_the_gathered_rows_of_all_dp_ranks_are_reached(planned):
    # 4096 requests on each of 8 ranks: the MoE sees 32768 rows, its buckets end at 8192.
    (session,) = sessions(planned(**MOE, parallel="{tp: 8, dp: 8, dp_attention: true}"))
    assert sizes_of(session)[0] == 4096 * 8
    assert sorted(sizes_of(session)) == sorted({*GRID, *OFF_BUCKET, 32768})


def test_a_decode_worker_is_a_process_for_each_m_and_one_in_the_order_of_the_server(planned):
    # 300 requests: buckets 1 .. 256, and 512 clipped to 300; 24 and 200 are off the buckets.
    *serving, order = sessions(planned(**DECODE))
    assert [sizes_of(session) for session in serving] == [[m] for m in (300, 1, 2, 4, 8, 16, 24, 32, 64, 128, 200, 256)]
    bounds = {step.m: step.call.tune_max for session in serving for step in session.steps}
    assert (bounds[300], bounds[200], bounds[24], bounds[1]) == (512, 256, 32, 1)
    assert order.purpose == "capture order"
    start, capture, eager = (
        [step.m for step in order.steps if step.stage == stage] for stage in ("start", "capture", "eager")
    )
    assert start == [300]
    assert capture == sorted(capture, reverse=True)
    assert (capture[0], capture[-1]) == (256, 1)  # an H200 captures up to 256 requests by itself
    assert eager == [300, 200, 24]


def test_graphs_of_a_dp_rank_are_captured_with_the_rows_of_all(planned):
    # Graphs of 4, 2 and 1 requests on each of 4 ranks: the MoE sees 16, 8 and 4 rows.
    fields = {**DECODE, "decode": "{max_running_requests: 1200, cuda_graph_bs_decode: [1, 2, 4]}"}
    *_, order = sessions(planned(**fields, parallel="{tp: 4, dp: 4, dp_attention: true}"))
    assert [step.m for step in order.steps if step.stage == "capture"] == [16, 8, 4]


@pytest.mark.parametrize("m", [1, 24, 8192])
def test_only_a_decode_worker_changes_its_bound(planned, m):
    resolved = planned(**MOE).resolved
    (use,) = resolved.ops
    assert call_at(resolved, use.call, m) is use.call


def test_without_graphs_there_is_no_order_to_show(planned):
    found = sessions(planned(**DECODE, flags="{disable_cuda_graph: true}"))
    assert {session.purpose for session in found} == {"serving"}
