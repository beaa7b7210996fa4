"""The Triton EXTEND attention kernel: its query tile, its compact grid, and the tile budget of the scheduler.

Sources: ``sglang/kernels/ops/attention/extend_attention.py``, ``layers/attention/triton_backend.py``,
``managers/scheduler.py`` and ``managers/schedule_policy.py:PrefillAdder``.
"""

from __future__ import annotations

from autotune_planner.deployment.model import Gpu, Model
from autotune_planner.engines.resolved import Arguments, Derivation, ExtendAttention, Notice, TileBudget
from autotune_planner.engines.sglang_0_5_23 import environment as variables
from autotune_planner.engines.sglang_0_5_23.arguments import ServerArguments
from autotune_planner.engines.sglang_0_5_23.environment import Environment
from autotune_planner.engines.sglang_0_5_23.model import ModelFacts
from autotune_planner.values import dataclass

_OTHER_BACKENDS_BLOCK_M = 64  # scheduler.get_new_batch_prefill: of a backend that does not tell its own
_MLA_HEAD_DIM = 256  # ModelConfig.head_dim of a model with multi-head latent attention


def block_m(q_head_dim: int, gpu: Gpu) -> int:
    """Query rows of one tile. Source: ``_get_block_sizes_for_extend_attention``.

    The value's head dim decides the other block sizes only, and so does the Triton version on gfx950.
    """
    if gpu.vendor == "amd":
        return 128 if _is_gfx95(gpu) and q_head_dim <= 256 else 64
    major, minor = gpu.compute_capability or (0, 0)
    small_shared_memory = major == 12 or (major == 8 and minor in (6, 9))
    if major < 8:
        return 64 if q_head_dim <= 128 else 32
    if major == 10:
        return 64 if q_head_dim <= 256 else 16
    if q_head_dim <= 128:
        return 64 if small_shared_memory else 128
    return 64 if q_head_dim <= 256 else 32


@dataclass(frozen=True)
class HeadDims:
    """Elements of one head as the kernel sees them."""

    q: int
    v: int


def head_dims(model: Model, facts: ModelFacts) -> tuple[HeadDims, HeadDims]:
    """Head dims of a batch without a cached prefix, and of one with: they differ for multi-head latent attention only.

    Without a prefix keys and values are projected up: (nope + rope, v), 192 and 128 for DeepSeek-V3. With one the
    projection is absorbed and the latent cache is read: (lora + rope, lora), 576 and 512.
    Source: ``attention_backend_handler.handle_attention_triton``.
    """
    text = model.text_config
    if facts.is_mla:
        nope, rope, lora, v = (
            int(text.get(name) or 0) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank", "v_head_dim")
        )
        return HeadDims(nope + rope, v), HeadDims(lora + rope, lora)
    dims = HeadDims(facts.head_dim, int(text.get("v_head_dim") or facts.head_dim))
    return dims, dims


def extend_attention(
    gpu: Gpu,
    model: Model,
    facts: ModelFacts,
    arguments: ServerArguments,
    resolved: Arguments,
    environment: Environment,
) -> ExtendAttention:
    """What decides the tiles of one rank. On other prefill backends the figures are those that Triton would have."""
    plain, absorbed = head_dims(model, facts)
    deterministic = arguments.enable_deterministic_inference
    if deterministic:
        plain = absorbed
    return ExtendAttention(
        q_head_dim=plain.q,
        v_head_dim=plain.v,
        block_m=block_m(plain.q, gpu),
        q_head_dim_after_prefix=absorbed.q,
        v_head_dim_after_prefix=absorbed.v,
        block_m_after_prefix=block_m(absorbed.q, gpu),
        after_prefix_up_to=_largest_prefill_graph(facts, resolved),
        runs_prefill=resolved.prefill_attn_backend == "triton",
        compact_grid=f"{_name(gpu)} with triton attention, {variables.COMPACT_EXTEND} on",
        no_compact_grid=_no_compact_grid(gpu, resolved, environment, deterministic=deterministic),
        tile_budget=_tile_budget(gpu, facts, resolved, environment),
        chunk_granule=_chunk_granule(gpu, resolved, environment),
        verify_split_kv_refused=_verify_split_kv_refused(facts, absorbed),
    )


def derivations(kernel: ExtendAttention, gpu: Gpu) -> tuple[Derivation, ...]:
    """How each ``BLOCK_M`` of the kernel came about."""
    chains = [("tiles.block_m", kernel.q_head_dim, kernel.block_m)]
    if kernel.q_head_dim_after_prefix != kernel.q_head_dim:
        chains.append(("tiles.block_m_after_prefix", kernel.q_head_dim_after_prefix, kernel.block_m_after_prefix))
    rule = "extend_attention._get_block_sizes_for_extend_attention"
    return tuple(
        Derivation(field, ((f"q head dim {dim}", "model_config"), (_name(gpu), rule)), str(size), "BLOCK_M")
        for field, dim, size in chains
    )


def notices(kernel: ExtendAttention) -> tuple[Notice, ...]:
    """A budget that this release does not keep."""
    budget = kernel.tile_budget
    if budget.tiles <= 0:
        return ()
    if budget.inactive is not None:
        return (
            Notice(
                "tile-budget-inactive", "warning", f"{budget.variable}={budget.tiles} is ignored: {budget.inactive}"
            ),
        )
    return (
        Notice(
            "tile-budget-forgets",
            "warning",
            f"{budget.variable}={budget.tiles} bounds less than it says: this release counts requests that are in the "
            "batch already as 0 tiles (PrefillAdder._admitted_extend_lens reads an attribute that they do not have), "
            "so a batch may have more tiles than the budget",
        ),
    )


def _is_gfx95(gpu: Gpu) -> bool:
    return gpu.vendor == "amd" and "gfx95" in (gpu.arch or "")


def _name(gpu: Gpu) -> str:
    return f"{gpu.name} ({gpu.arch})" if gpu.arch else gpu.name


def _largest_prefill_graph(facts: ModelFacts, resolved: Arguments) -> int:
    """Tokens up to which latent attention is absorbed whatever its prefix: it is captured so."""
    graph = resolved.cuda_graph_prefill
    return graph.max_bs if facts.is_mla and graph.backend != "disabled" else 0


def _no_compact_grid(gpu: Gpu, resolved: Arguments, environment: Environment, *, deterministic: bool) -> str | None:
    """Source: ``extend_attention_fwd``; the one-stage kernel of deterministic mode has the rectangular grid only."""
    backend = resolved.prefill_attn_backend
    if gpu.vendor != "amd":
        return f"{gpu.name} is not an AMD GPU: the kernel launches the compact grid on ROCm only"
    if backend != "triton":
        return (
            f"prefill attention runs in {backend}, which never launches this kernel's grid for prefill; "
            "--attention-backend triton does"
        )
    if deterministic:
        return "deterministic inference runs the one-stage kernel, whose grid is rectangular"
    if not environment.flag(variables.COMPACT_EXTEND, default=True):
        return f"{variables.COMPACT_EXTEND}={environment.get(variables.COMPACT_EXTEND)} turns it off"
    return None


def _tile_budget(gpu: Gpu, facts: ModelFacts, resolved: Arguments, environment: Environment) -> TileBudget:
    """Sources: ``PrefillAdder._check_prefill_tile_budget``; ``BLOCK_M`` as ``TritonAttnBackend`` tells the scheduler,
    by the model's head dim; a pair of two backends tells none."""
    triton = resolved.prefill_attn_backend == resolved.decode_attn_backend == "triton"
    mode = (environment.get(variables.PREFILL_TILE_BUDGET_MODE) or "compact").strip().lower()
    return TileBudget(
        variable=variables.PREFILL_TILE_BUDGET,
        tiles=environment.number(variables.PREFILL_TILE_BUDGET) or 0,
        mode="legacy" if mode == "legacy" else "compact",
        block_m=block_m(_MLA_HEAD_DIM if facts.is_mla else facts.head_dim, gpu) if triton else _OTHER_BACKENDS_BLOCK_M,
        page_size=resolved.page_size,
        counts_earlier=False,
        inactive=None
        if gpu.vendor == "amd"
        else f"{gpu.name} is not an AMD GPU, and the scheduler reads it on ROCm only",
    )


def _chunk_granule(gpu: Gpu, resolved: Arguments, environment: Environment) -> int:
    """Source: ``schedule_policy._use_exact_chunk_fill``: whole pages, except on gfx950."""
    exact = _is_gfx95(gpu) and environment.flag(variables.EXACT_CHUNK_FILL, default=True)
    return 1 if exact else resolved.page_size


def _verify_split_kv_refused(facts: ModelFacts, absorbed: HeadDims) -> str | None:
    """Source: ``verify_splitkv.can_handle``."""
    if absorbed.q == absorbed.v:
        return None
    kind = "latent attention" if facts.is_mla else "attention"
    return f"q_head_dim {absorbed.q} is not v_head_dim {absorbed.v} ({kind}): verification runs the EXTEND kernel"
