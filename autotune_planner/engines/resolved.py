"""What a server release makes of a deployment: the value between ``engines/`` and ``plan/``.

Names are the server's own. :class:`Arguments` and :class:`Runtime` are the ``resolved`` and ``runtime`` objects of
``autotune-plan/plan@1``; their field order is the order of the JSON.
"""

from __future__ import annotations

from typing import Literal

from autotune_planner.deployment.model import Gpu, Model, Traffic
from autotune_planner.ops.base import OpCall
from autotune_planner.values import dataclass

Level = Literal["info", "warning", "error"]


@dataclass(frozen=True)
class EngineRelease:
    """A server release and the FlashInfer release that it pins (part of its cache path)."""

    name: str
    version: str
    flashinfer_version: str


@dataclass(frozen=True)
class CudaGraph:
    """``cuda_graph_decode`` / ``cuda_graph_prefill``: sizes stay filled in when the backend is ``disabled``."""

    backend: str
    max_bs: int
    bs: tuple[int, ...]


@dataclass(frozen=True)
class Arguments:
    """Server arguments after resolution, per rank where the server divides them."""

    chunked_prefill_size: int
    max_prefill_tokens: int
    max_prefill_buffer_tokens: int
    autotune_extend_ceiling: int
    tp_size: int
    dp_size: int
    attn_dp_size: int
    attn_tp_size: int
    ep_size: int
    moe_ep_size: int
    moe_tp_size: int
    moe_dense_tp_size: int | None
    pp_size: int
    num_dp_ranks: int
    attn_dp_enabled: bool
    speculative_algorithm: str | None
    speculative_num_steps: int | None
    speculative_eagle_topk: int | None
    speculative_num_draft_tokens: int | None
    disaggregation_mode: str  # "null", "prefill", "decode"
    moe_runner_backend: str
    moe_a2a_backend: str
    attention_backend: str | None
    prefill_attn_backend: str | None
    decode_attn_backend: str | None
    page_size: int
    quantization: str | None
    mem_fraction_static: float
    max_running_requests: int | None
    flashinfer_a2a_max_dispatch_tokens_per_rank: int
    cuda_graph_decode: CudaGraph
    cuda_graph_prefill: CudaGraph


@dataclass(frozen=True)
class ExtendShape:
    """The EXTEND dummy if it ran: ``extend_pass_if_enabled``. Tokens are ``max_bs * num_tokens_per_req``."""

    max_bs: int
    num_tokens_per_req: int
    allocate_logits_buffer: bool
    run_lm_head: bool
    extend_num_tokens_per_req_arg: int | None


@dataclass(frozen=True)
class Runtime:
    """Values that the server computes while its runners are built. Sizes are per rank, in requests or tokens."""

    require_mlp_tp_gather: bool
    require_attn_tp_gather: bool
    require_gathered_buffer: bool
    require_mlp_sync: bool
    cuda_graph_bs_alignment: int
    capture_bs: tuple[int, ...] | None  # None: no size can be captured, the server fails there
    max_running_requests_per_dp_worker: int
    eager_max_bs: int
    decode_num_tokens_per_req: int
    decode_autotune_bs: int
    decode_autotune_tokens_per_req: int
    decode_autotune_tokens: int
    dummy_global_num_tokens: tuple[int, ...] | None
    should_run_flashinfer_autotune: bool
    cutlass_tune_max_num_tokens_for_decode_dummy: int | None
    extend_pass_if_enabled: ExtendShape | None


@dataclass(frozen=True)
class PassDecision:
    """One autotune pass of the server: whether it runs at start, why, and with how many tokens.

    ``tokens_per_rank`` is ``batch_size * tokens_per_request``; ``moe_rows`` is what one rank's MoE sees (gathered rows
    under DP attention). Sizes are None where the pass has no shape at all. ``global_num_tokens`` is the list that the
    dummy announces: the tokens of every DP rank before an MLP-TP gather, its own before an attention-TP gather, None
    where nothing is gathered; ``dp_buffer_rows`` is its sum, the rows of the gather's buffer.
    """

    name: Literal["decode", "extend", "draft"]
    run: bool
    reason: str
    batch_size: int | None
    tokens_per_request: int | None
    tokens_per_rank: int | None
    moe_rows: int | None
    global_num_tokens: tuple[int, ...] | None = None
    dp_buffer_rows: int | None = None


@dataclass(frozen=True)
class Warmup:
    """A kernel warm-up of the server at start, and whether it runs.

    ``m`` are the sizes in tokens, ascending, empty where it does not run: those that DeepGEMM compiles, or the batches
    of the pipeline-parallel sweep, which runs each in every mode of ``modes``. ``logits_rows`` are those that the LM
    head computes in the sweep's largest batch.
    """

    name: Literal["deep_gemm", "deep_gemm_pp"]
    run: bool
    reason: str
    m: tuple[int, ...] = ()
    modes: tuple[Literal["DECODE", "EXTEND"], ...] = ()
    logits_rows: int | None = None


@dataclass(frozen=True)
class OpUse:
    """One op that the deployment reaches, and the token counts M at which one rank calls it.

    ``decode_pass_rows`` and ``extend_pass_rows`` are what the server's own passes send (None: the pass does not run or
    does not reach the op); ``decode_rows`` and ``prefill_rows`` are the largest M of production in that phase (None:
    this worker never does it). All in tokens as the op sees them. ``note`` says why the server leaves it untuned.
    """

    layer: str
    call: OpCall
    decode_pass_rows: int | None
    extend_pass_rows: int | None
    decode_rows: int | None
    prefill_rows: int | None
    note: str | None = None


@dataclass(frozen=True)
class UnseenOp:
    """Something of a forward that is not tuned, and why."""

    layer: str
    what: str
    reason: str


@dataclass(frozen=True)
class TileBudget:
    """Admission of a prefill batch by its query tiles. ``tiles`` of 0 or less is off.

    ``inactive`` is why this server does not enforce a budget, None where it does. ``counts_earlier`` is False where the
    release counts requests that are in the batch already as empty; ``page_size`` (tokens) is what it charges them in.
    """

    variable: str
    tiles: int
    mode: Literal["compact", "legacy"]
    block_m: int
    page_size: int
    counts_earlier: bool
    inactive: str | None


@dataclass(frozen=True)
class ExtendAttention:
    """The ragged EXTEND attention kernel of one rank: head dims in elements, ``BLOCK_M`` in query rows.

    The second set is that of batches with a cached prefix, and of batches of at most ``after_prefix_up_to`` tokens; it
    differs for absorbed multi-head latent attention only. ``runs_prefill`` is False where prefill attention runs in
    another backend's kernel. ``no_compact_grid`` is why the compact grid is never
    launched; where it is None, ``compact_grid`` says what allows it. ``chunk_granule`` (tokens) is what a prompt is
    split at. ``verify_split_kv_refused`` is why the split-KV fast path of verification refuses this model.
    """

    q_head_dim: int
    v_head_dim: int
    block_m: int
    q_head_dim_after_prefix: int
    v_head_dim_after_prefix: int
    block_m_after_prefix: int
    after_prefix_up_to: int
    runs_prefill: bool
    compact_grid: str
    no_compact_grid: str | None
    tile_budget: TileBudget
    chunk_granule: int
    verify_split_kv_refused: str | None


@dataclass(frozen=True)
class Rank:
    tp: int
    pp: int
    dp: int


DEFAULT_CACHE_DIR = "~/.cache/sglang"  # the only place whose ~ the server expands


@dataclass(frozen=True)
class CachePlace:
    """Where the server looks: inputs of its cache path, hashed and joined by ``cache.sglang_layout``."""

    cache_dir: str  # $SGLANG_CACHE_DIR as it is set, or DEFAULT_CACHE_DIR
    flashinfer_version: str
    compute_capability: tuple[int, int]
    key_parts: tuple[str, ...]  # joined by "|" and hashed
    ranks: tuple[Rank, ...]


@dataclass(frozen=True)
class Derivation:
    """How one number came about: ``--chunked-prefill-size 32768 (flag) -> / attn_dp 4 (rule) -> 8192``.

    ``field`` is the JSON name (``resolved.chunked_prefill_size``); each step is (text, source), the source being
    "flag", "default" or ``module.function`` of the release, empty for a value in between. ``label`` is the value's
    common name, such as EXTEND budget.
    """

    field: str
    steps: tuple[tuple[str, str], ...]
    value: str
    label: str = ""


@dataclass(frozen=True)
class Notice:
    """A warning of the plan: ``code`` is stable and kebab-case."""

    code: str
    level: Level
    message: str


@dataclass(frozen=True)
class Resolved:
    release: EngineRelease
    gpu: Gpu
    model: Model
    model_path: str
    dtype: str  # "torch.bfloat16"
    hidden_size: int
    vocab_size: int
    arguments: Arguments
    runtime: Runtime
    passes: tuple[PassDecision, ...]
    warmups: tuple[Warmup, ...]
    no_autotune_reason: str | None  # why the server neither tunes nor reads a cache; None where it does
    ops: tuple[OpUse, ...]
    unseen_ops: tuple[UnseenOp, ...]
    extend_attention: ExtendAttention
    traffic: Traffic
    cache_place: CachePlace
    derivations: tuple[Derivation, ...]
    notices: tuple[Notice, ...]

    def noticed(self, code: str) -> str | None:
        """The message of the notice with this code; None where there is none."""
        return next((notice.message for notice in self.notices if notice.code == code), None)

    @property
    def unplanned(self) -> str | None:
        """What the server tunes at start and no plan here knows."""
        return self.noticed("op-not-planned")
