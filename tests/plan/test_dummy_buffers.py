"""The dummy sets against those that the real server allocated, and section (h) of its sizing rules."""

import pytest

from autotune_planner.engines import resolve
from autotune_planner.plan.buffers import DummyShape, decode_buffers, dummy_buffers, extend_buffers, total_bytes
from autotune_planner.plan.workspaces import a2a_workspace
from tests.engines.truth import deployment_of, row, rows

ALLOCATED = [
    found
    for found in rows()
    if "error" not in found and "_autotune_buffers" in found["resolved"].get("runtime", {}).get("real", {})
]


@pytest.mark.parametrize("found", ALLOCATED, ids=lambda found: found["id"])
def test_the_decode_set_equals_the_servers(found):
    runtime = found["resolved"]["runtime"]
    buffers = decode_buffers(resolve(deployment_of(found, runtime["assumed_token_capacity"])))
    ours = {buffer.name: [list(buffer.shape), buffer.dtype] for buffer in buffers}
    assert ours == runtime["real"]["_autotune_buffers"]
    assert total_bytes(buffers, "cuda") == runtime["real"]["_autotune_buffers.gpu_bytes"]


def test_there_are_many_of_them():
    assert len(ALLOCATED) > 200


def test_the_extend_set_has_no_logits_and_a_mask_of_its_own():
    # B200 packs: Qwen3-30B-A3B, 16384 tokens over a pool of 4096 requests: 4 tokens each. Mask: (bs + T) x 4 elements.
    shape = DummyShape(
        4096, 4, 2048, 151936, "bfloat16", 1, logits=False, expert_parallel=False, pipeline_parallel=False
    )
    buffers = {buffer.name: buffer for buffer in dummy_buffers(shape)}
    assert "next_token_logits_buffer" not in buffers
    assert buffers["custom_mask"].shape == ((4096 + 16384) * 4,)
    tokens, batch = 16384, 4096
    # 24T + 24T + T*H*2 + 16bs + mask + 8G
    expected = 48 * tokens + tokens * 2048 * 2 + 16 * batch + (batch + tokens) * 4 + 8
    assert total_bytes(tuple(buffers.values()), "cuda") == expected
    assert total_bytes(tuple(buffers.values()), "cpu") == 8 * batch


def test_no_extend_set_where_the_gate_is_closed():
    # 4096 tokens per rank are not more than the 4096 requests of the DECODE pass.
    assert extend_buffers(resolve(deployment_of(row("dpa8-H200-32768")))) == ()


def test_a2a_workspace_to_the_byte():
    # ep 8, M 4096, H 2048, k 8, no EPLB. Auxiliary: 72 -> 128, + 32 -> 256, + 32 -> 384, + 88 x 4096 = 360832 twice.
    workspace = a2a_workspace(ep=8, tokens=4096, hidden_size=2048, top_k=8)
    assert 384 + 2 * 88 * 4096 + 8 * 4096 * (2 * 2048 + 8 * 8) + 8 * 4096 * 2 * 2048 == 271_253_888
    assert workspace.bytes == 271_253_888
