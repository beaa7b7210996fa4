"""Tiles in ``compute``: the worked example of the reference, on AMD and on NVIDIA, from a list and from a file."""

import json

import pytest

EXAMPLE = "examples/llama-8b-mi300x-tiles.yaml"
MIXED = "{extend_lens: [8192, 1, 1, 1]}"
AMD = "{name: AMD Instinct MI350X, vendor: amd, arch: gfx950, memory_mib: 294896}"


@pytest.fixture
def llama(deployment):
    """A Llama 3.1 8B with triton attention: head dim 128."""

    def write(**changes):
        given = {"model": "llama-3.1-8b", "moe": None, "flags": "{attention_backend: triton}", **changes}
        return deployment(**given)

    return write


def tiles(cli, path):
    return document(cli, path)["tiles"]


def document(cli, path):
    result = cli("compute", path, "--json")
    assert result.code == 0
    return json.loads(result.out)


def counts(tiles):
    kinds = ("legacy", "compact", "saved", "launched")
    return tuple(tiles[f"{kind}_q_tiles_per_head"] for kind in kinds)


@pytest.mark.parametrize(
    ("gpu", "block_m", "expected"),
    [
        # gfx942: 64 rows a tile, 4 x 128 against 128 + 3; gfx950 and Hopper: 128 rows, 4 x 64 against 64 + 3.
        ("MI300X", 64, (512, 131, 381, 131)),
        (AMD, 128, (256, 67, 189, 67)),
        ("H200", 128, (256, 67, 189, 256)),
        ("B200", 64, (512, 131, 381, 512)),
    ],
)
def test_mixed_prefill(cli, llama, gpu, block_m, expected):
    found = tiles(cli, llama(gpu=gpu, traffic=MIXED))
    assert found["block_m"] == block_m
    assert counts(found) == expected
    assert found["saved_q_tile_ratio"] == expected[2] / expected[0]
    assert found["batches"] == 1
    assert found["request_count"] == 4


def test_the_compact_grid_is_used_on_amd_and_said_not_to_be_on_nvidia(cli, llama):
    amd = tiles(cli, llama(gpu="MI300X", traffic=MIXED))["compact_grid"]
    assert amd["applies"]
    nvidia = tiles(cli, llama(traffic=MIXED))["compact_grid"]
    assert nvidia == {
        "applies": False,
        "batches": 0,
        "reason": "NVIDIA H200 is not an AMD GPU: the kernel launches the compact grid on ROCm only",
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"flags": None}, "prefill attention runs in aiter"),
        ({"env": "{SGLANG_TRITON_COMPACT_EXTEND_ATTENTION: 0}"}, "SGLANG_TRITON_COMPACT_EXTEND_ATTENTION=0"),
        ({"traffic": "{extend_lens: [8192]}"}, "a batch of one request"),
        ({"traffic": "{extend_lens: [64, 64]}"}, "nothing is saved"),
    ],
)
def test_why_the_compact_grid_is_not_used(cli, llama, changes, reason):
    found = tiles(cli, llama(**{"gpu": "MI300X", "traffic": MIXED, **changes}))["compact_grid"]
    assert not found["applies"]
    assert found["reason"].startswith(reason)


def test_deepseek_has_tiles_of_128_rows_on_gfx950(cli, deployment):
    """Head dim 192 (128 nope + 64 rope) without a cached prefix, in a batch above the largest prefill graph of 8192."""
    path = deployment(
        gpu="MI355X",
        model="deepseek-v3",
        moe=None,
        parallel="{tp: 8}",
        flags="{attention_backend: triton}",
        traffic=MIXED,
    )
    found = tiles(cli, path)
    assert (found["q_head_dim"], found["v_head_dim"], found["block_m"]) == (192, 128, 128)
    assert (found["q_head_dim_after_prefix"], found["v_head_dim_after_prefix"]) == (576, 512)
    assert counts(found) == (256, 67, 189, 67)
    assert found["verify_split_kv_refused"].startswith("q_head_dim 576 is not v_head_dim 512")


@pytest.mark.parametrize(
    ("budget", "compact", "legacy"),
    [
        (130, 3, 1),  # 128, 129, 130, 131 against 128, 256
        (131, 4, 1),
        (256, 4, 2),
    ],
)
def test_a_tile_budget(cli, llama, budget, compact, legacy):
    env = f"{{SGLANG_PREFILL_TILE_BUDGET: {budget}}}"
    found = document(cli, llama(gpu="MI300X", traffic=MIXED, env=env))
    admission = found["tiles"]["admission"]
    assert (admission["active"], admission["budget"], admission["mode"]) == (True, budget, "compact")
    assert (admission["compact_requests"], admission["legacy_requests"]) == (compact, legacy)
    assert admission["release_requests"] == 4  # each of the short ones has 1 tile, and only that is counted
    assert "tile-budget-forgets" in {warning["code"] for warning in found["warnings"]}


def test_without_a_budget_every_request_is_admitted(cli, llama):
    admission = tiles(cli, llama(gpu="MI300X", traffic=MIXED))["admission"]
    assert not admission["active"]
    assert (admission["budget"], admission["compact_requests"], admission["legacy_requests"]) == (0, 4, 4)


def test_a_histogram_is_cut_into_chunks_of_a_rank(cli, llama, tmp_path):
    """Chunk 16384 over 2 attention-DP ranks: 8192. Batches [8192 of 10000] and [1808, 1, 1]: 128, then 3 x 29 against
    29 + 1 + 1."""
    (tmp_path / "lens.csv").write_text("prompt_len,cached_len\n12000,2000\n1,0\n100,99\n")
    path = llama(
        gpu="MI300X",
        parallel="{tp: 2, dp: 2, dp_attention: true}",
        prefill="{chunked_prefill_size: 16384}",
        traffic="{histogram: lens.csv}",
    )
    found = tiles(cli, path)
    assert found["source"] == "histogram"
    assert (found["batches"], found["request_count"], found["sum_extend_len"]) == (2, 4, 10002)
    assert counts(found) == (128 + 87, 128 + 31, 56, 128 + 31)
    assert found["mean_saved_q_tile_ratio"] == pytest.approx((0 + 56 / 87) / 2)


def test_a_wrong_row_of_the_histogram_is_an_error_of_the_deployment(cli, llama, tmp_path):
    (tmp_path / "lens.csv").write_text("prompt_len,cached_len\n8192,0\nlong,0\n")
    path = llama(traffic="{histogram: lens.csv}")
    result = cli("compute", path, "--json")
    assert result.code == 3
    assert json.loads(result.out)["where"] == f"{tmp_path / 'lens.csv'}:3"
    assert json.loads(result.out)["message"] == 'prompt_len is "long"; it takes a whole number'


def test_no_traffic_no_tiles(cli, llama):
    path = llama()
    assert tiles(cli, path) is None
    assert "Query tiles" not in cli("compute", path).out


def test_the_section_for_people(cli):
    shown = cli("compute", EXAMPLE)
    assert shown.code == 0
    for line in (
        "BLOCK_M (query / value head dim)  64 (128 / 128)",
        "legacy (rectangular) tiles        512",
        "compact tiles                     131",
        "saved                             381 (74.4%)",
        "requests it admits                4 of 4 by compact tiles, 1 by legacy tiles",
    ):
        assert line in shown.out
    assert "Passes" not in shown.out
    assert "Cache" not in shown.out


def test_amd_has_tiles_and_nothing_else(cli):
    found = document(cli, EXAMPLE)
    assert found["ops"] == []
    assert found["cache_files"] == []
    assert found["runtime"]["flashinfer_autotune_cache_path"] is None
    assert not any(decision["run"] for decision in found["passes"])
    assert "amd-tiles-only" in {warning["code"] for warning in found["warnings"]}


def test_run_on_amd_has_nothing_to_tune(cli, tmp_path):
    result = cli("run", EXAMPLE, "--cache-dir", tmp_path / "cache")
    assert result.code == 0
    assert result.out == "Nothing to tune: FlashInfer does not run on AMD GPUs\n"
    assert not (tmp_path / "cache").exists()


@pytest.mark.flashinfer
def test_amd_has_no_keys(cli):
    assert json.loads(cli("compute", EXAMPLE, "--keys", "--json").out)["keys"] == []
