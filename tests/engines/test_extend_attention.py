"""BLOCK_M of the EXTEND kernel, its compact grid and the tile budget: the tables of the release, row by row."""

from dataclasses import replace

import pytest

from autotune_planner.deployment.gpus import load_gpu
from autotune_planner.deployment.model import Deployment, Gpu, Parallel, Traffic
from autotune_planner.deployment.models import model_from_config, profile_model
from autotune_planner.engines import resolve
from autotune_planner.engines.sglang_0_5_23.extend_attention import block_m

TRITON = {"attention_backend": "triton"}
LLAMA = Deployment(
    gpu=load_gpu("MI300X"),
    model=profile_model("llama-3.1-8b"),
    model_path="/models/Llama-3.1-8B",
    flags=TRITON,
    kv_token_capacity=1_000_000,
    traffic=Traffic(extend_lens=(8192, 1, 1, 1)),
)
DEEPSEEK = replace(LLAMA, model=profile_model("deepseek-v3"), model_path="/models/DeepSeek-V3", parallel=Parallel(tp=8))
BUDGET = "SGLANG_PREFILL_TILE_BUDGET"


def nvidia(capability):
    return Gpu("NVIDIA", "nvidia", None, capability, None)


def amd(arch):
    return Gpu("AMD", "amd", None, None, None, arch=arch)


# extend_attention._get_block_sizes_for_extend_attention: head dims 64, 128, 192, 256, 288 and 576.
@pytest.mark.parametrize(
    ("gpu", "sizes"),
    [
        (nvidia((7, 5)), (64, 64, 32, 32, 32, 32)),
        (nvidia((8, 0)), (128, 128, 64, 64, 32, 32)),
        (nvidia((8, 6)), (64, 64, 64, 64, 32, 32)),
        (nvidia((8, 9)), (64, 64, 64, 64, 32, 32)),
        (nvidia((9, 0)), (128, 128, 64, 64, 32, 32)),
        (nvidia((10, 0)), (64, 64, 64, 64, 16, 16)),
        (nvidia((10, 3)), (64, 64, 64, 64, 16, 16)),
        (nvidia((11, 0)), (128, 128, 64, 64, 32, 32)),
        (nvidia((12, 0)), (64, 64, 64, 64, 32, 32)),
        (amd("gfx942"), (64, 64, 64, 64, 64, 64)),
        (amd("gfx950"), (128, 128, 128, 128, 64, 64)),
    ],
    ids=lambda value: value.arch or str(value.compute_capability) if isinstance(value, Gpu) else "",
)
def test_block_m(gpu, sizes):
    assert tuple(block_m(head_dim, gpu) for head_dim in (64, 128, 192, 256, 288, 576)) == sizes


def kernel(deployment=LLAMA, **changes):
    return resolve(replace(deployment, **changes)).extend_attention


def test_head_dims_of_grouped_attention():
    found = kernel()
    assert (found.q_head_dim, found.v_head_dim, found.block_m) == (128, 128, 64)
    assert (found.q_head_dim_after_prefix, found.block_m_after_prefix) == (128, 64)
    assert found.verify_split_kv_refused is None
    assert found.after_prefix_up_to == 0


def test_head_dims_of_latent_attention():
    """DeepSeek-V3: 128 nope + 64 rope and 128 without a prefix; 512 latent + 64 rope and 512 with one."""
    found = kernel(DEEPSEEK, gpu=load_gpu("MI355X"))
    assert (found.q_head_dim, found.v_head_dim, found.block_m) == (192, 128, 128)
    assert (found.q_head_dim_after_prefix, found.v_head_dim_after_prefix, found.block_m_after_prefix) == (576, 512, 64)
    assert found.verify_split_kv_refused == (
        "q_head_dim 576 is not v_head_dim 512 (latent attention): verification runs the EXTEND kernel"
    )


def test_latent_attention_is_absorbed_inside_prefill_graphs():
    # The chunk of 294896 MiB is 16384; prefill graphs of latent attention end at 8192 tokens.
    assert kernel(DEEPSEEK, gpu=load_gpu("MI355X")).after_prefix_up_to == 8192
    without = {**TRITON, "disable_prefill_cuda_graph": True}
    assert kernel(DEEPSEEK, gpu=load_gpu("MI355X"), flags=without).after_prefix_up_to == 0


def test_deterministic_inference_is_absorbed_and_has_no_compact_grid():
    flags = {**TRITON, "enable_deterministic_inference": True}
    found = kernel(DEEPSEEK, gpu=load_gpu("MI355X"), flags=flags)
    assert (found.q_head_dim, found.block_m) == (576, 64)
    assert found.no_compact_grid is not None
    assert "one-stage kernel" in found.no_compact_grid


def test_value_heads_of_another_width():
    config = {**LLAMA.model.config, "v_head_dim": 64}
    found = kernel(model=model_from_config(config))
    assert (found.q_head_dim, found.v_head_dim) == (128, 64)
    assert "q_head_dim 128 is not v_head_dim 64" in (found.verify_split_kv_refused or "")


@pytest.mark.parametrize("gpu", ["MI300X", "MI355X"])
def test_the_compact_grid_of_triton_on_amd(gpu):
    assert kernel(gpu=load_gpu(gpu)).no_compact_grid is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu": load_gpu("H200")}, "NVIDIA H200 is not an AMD GPU: the kernel launches the compact grid on ROCm only"),
        ({"flags": {}}, "prefill attention runs in aiter"),
        (
            {"env": {"SGLANG_TRITON_COMPACT_EXTEND_ATTENTION": "0"}},
            "SGLANG_TRITON_COMPACT_EXTEND_ATTENTION=0 turns it off",
        ),
    ],
)
def test_why_there_is_no_compact_grid(changes, reason):
    assert kernel(**changes).no_compact_grid.startswith(reason)


def test_other_backends_run_kernels_of_their_own():
    assert kernel().runs_prefill
    assert not kernel(flags={}).runs_prefill
    assert not kernel(gpu=load_gpu("H200"), flags={}).runs_prefill


@pytest.mark.parametrize("switch", ["1", "true", "on"])  # a value that cannot be parsed leaves the default: on
def test_the_switch_is_on_by_default(switch):
    assert kernel(env={"SGLANG_TRITON_COMPACT_EXTEND_ATTENTION": switch}).no_compact_grid is None


# DeepSeek-V3 has 128 key and value heads: 128 and 16 of a rank run in aiter, others in triton.
@pytest.mark.parametrize(
    ("model", "tp", "backend"),
    [
        ("llama-3.1-8b", 1, "aiter"),
        ("gpt-oss-120b", 1, "aiter"),
        ("deepseek-v3", 8, "aiter"),
        ("deepseek-v3", 4, "triton"),
    ],
)
def test_default_backend_on_amd(model, tp, backend):
    found = resolve(replace(LLAMA, model=profile_model(model), flags={}, parallel=Parallel(tp=tp)))
    assert found.arguments.prefill_attn_backend == backend


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 64),
        ({"gpu": load_gpu("MI355X")}, 128),
        ({"gpu": load_gpu("MI355X"), "flags": {}}, 64),  # aiter tells none
        ({"gpu": load_gpu("MI355X"), "flags": {"prefill_attention_backend": "triton"}}, 64),  # nor does a pair
    ],
)
def test_block_m_of_the_budget(changes, expected):
    assert kernel(**changes).tile_budget.block_m == expected


def test_the_scheduler_counts_latent_attention_by_a_head_dim_of_256():
    found = kernel(DEEPSEEK, gpu=load_gpu("MI355X"))
    assert found.tile_budget.block_m == 128


@pytest.mark.parametrize(
    ("env", "tiles", "mode"),
    [
        ({}, 0, "compact"),
        ({BUDGET: "200"}, 200, "compact"),
        ({BUDGET: "200", f"{BUDGET}_MODE": " Legacy "}, 200, "legacy"),
        ({BUDGET: "200", f"{BUDGET}_MODE": "other"}, 200, "compact"),
        ({BUDGET: "many"}, 0, "compact"),
    ],
)
def test_the_budget_of_the_environment(env, tiles, mode):
    budget = kernel(env=env).tile_budget
    assert (budget.tiles, budget.mode) == (tiles, mode)


@pytest.mark.parametrize(("gpu", "code"), [("MI300X", "tile-budget-forgets"), ("H200", "tile-budget-inactive")])
def test_what_a_budget_is_warned_of(gpu, code):
    found = resolve(replace(LLAMA, gpu=load_gpu(gpu), env={BUDGET: "200"}))
    assert code in [notice.code for notice in found.notices]
    assert (found.extend_attention.tile_budget.inactive is None) == (gpu == "MI300X")


def test_prompts_are_split_at_pages_except_on_gfx950():
    paged = {**TRITON, "page_size": 64}
    assert kernel(flags=paged).chunk_granule == 64
    assert kernel(flags=paged, gpu=load_gpu("MI355X")).chunk_granule == 1
    assert kernel(flags=paged, gpu=load_gpu("MI355X"), env={"SGLANG_EXACT_CHUNK_FILL": "0"}).chunk_granule == 64


def test_amd_is_judged_for_tiles_only():
    found = resolve(LLAMA)
    assert found.ops == ()
    assert found.no_autotune_reason == "FlashInfer does not run on AMD GPUs"
    assert [notice.code for notice in found.notices if notice.level == "warning"] == ["amd-tiles-only"]
    # ROCm reports gfx942 as 9.4: not a Hopper.
    hopper_like = replace(load_gpu("MI300X"), compute_capability=(9, 4))
    assert resolve(replace(LLAMA, gpu=hopper_like, flags={})).arguments.attention_backend == "aiter"
