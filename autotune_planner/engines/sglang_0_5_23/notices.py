"""Warnings where operators are known to be misled. Functions of plain values; None where one does not apply."""

from __future__ import annotations

from autotune_planner.deployment.model import Gpu, Traffic
from autotune_planner.engines.resolved import DEFAULT_CACHE_DIR, Notice

_GB = 1e9


def machine_wide_chunk(given: int, per_rank: int, attn_dp_size: int) -> Notice | None:
    if attn_dp_size == 1 or given <= 0:
        return None
    return Notice(
        "chunk-is-machine-wide",
        "info",
        f"chunked_prefill_size {given} is machine-wide under DP attention: each of {attn_dp_size} ranks prefills "
        f"{per_rank} tokens at a time; max_prefill_tokens is not divided",
    )


def extend_not_tuned(
    *, closed_because: str | None, enabled: bool, ceiling: int, variable: str, planned: bool
) -> Notice | None:
    """Why the server's own prefill buckets stay untuned at start."""
    if closed_because is not None:
        return Notice("extend-skipped", "info", f"the server skips its EXTEND pass: {closed_because}")
    if enabled:
        return None
    return Notice(
        "extend-off",
        "info",
        f"the server's EXTEND pass is off unless {variable}=1; prefill sizes up to {ceiling} tokens per rank"
        + (" are tuned here all the same, and the server loads and hits them" if planned else " stay untuned at start"),
    )


def extend_packed(*, batch: int, per_request: int, ceiling: int) -> Notice | None:
    tokens = batch * per_request
    if tokens <= ceiling:
        return None
    return Notice(
        "extend-packed",
        "warning",
        f"the EXTEND dummy is packed by the request pool: {batch} requests x {per_request} tokens = {tokens}, "
        f"more than the budget of {ceiling}",
    )


def speculative_requests(algorithm: str | None, given: int | None, requests: int, attn_dp_size: int) -> Notice | None:
    if algorithm is None or given is not None:
        return None
    return Notice(
        "speculative-requests",
        "warning",
        f"{algorithm} sets max_running_requests to {requests} for the whole server"
        + (f", {requests // attn_dp_size} per attention-DP rank" if attn_dp_size > 1 else "")
        + ", since none is given",
    )


def capacity_assumed(capacity: int, context_len: int, requests: int) -> Notice:
    return Notice(
        "kv-capacity-assumed",
        "warning",
        f"kv_token_capacity is not given: computed as if a rank held {capacity} KV tokens (8 x the context length of "
        f"{context_len}), so {requests} requests; the server knows it only after loading weights and prints "
        "max_total_num_tokens",
    )


def recurrent_states(requests: int) -> Notice:
    """Source: ``kv_cache_configurator.resolve_max_num_reqs``. The pool is sized by the memory that is left."""
    return Notice(
        "recurrent-states",
        "warning",
        f"each request holds recurrent states of the linear-attention layers: computed for {requests} requests, and "
        "the server caps them by its pool of states, known only after loading weights; where its log says "
        "max_running_requests is capped to N by the mamba state cache, give max_running_requests N here",
    )


def a2a_overflow(rows: int, capacity: int) -> Notice | None:
    """The start-up check does not look at the eager dummy."""
    if rows <= capacity:
        return None
    return Notice(
        "a2a-overflow",
        "error",
        f"the DECODE dummy dispatches {rows} tokens per rank through an A2A workspace for {capacity}: the server "
        "passes its start-up check and then fails an assertion; lower --max-running-requests or raise "
        "SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
    )


def a2a_rows(dummy: str, rows: int, capacity: int) -> Notice | None:
    """The other dummies over the same workspace; ``rows`` are those of one source rank."""
    if rows <= capacity:
        return None
    return Notice(
        "local-rows-buffer",
        "error",
        f"the {dummy} dispatches {rows} tokens per rank through an A2A workspace for {capacity}: the server fails an "
        f"assertion; set SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK={rows}",
    )


def gathered_logits(tokens: int, rows: int | None, vocab_size: int) -> Notice | None:
    """The LM head of a dummy that does not skip it, in bfloat16; ``rows`` None where it is skipped."""
    if rows is None or rows <= tokens:
        return None
    size = 2 * rows * vocab_size / _GB
    return Notice(
        "local-rows-buffer",
        "warning",
        f"the DeepGEMM sweep's logits buffer holds the {tokens} rows of one rank, but the LM head computes the {rows} "
        f"gathered rows of all DP ranks beside it: {size:.1f} GB more; --enable-dp-lm-head keeps them local",
    )


def deep_gemm_list_short(last: int, chunk: int, rows: int) -> Notice | None:
    if rows <= last:
        return None
    return Notice(
        "deep-gemm-list-short",
        "warning",
        f"DeepGEMM's warm-up ends at M = {last}, after the {chunk} tokens of one rank, but the layers see up to {rows} "
        "gathered rows: larger M are compiled while requests wait",
    )


def index_overflow(rows: int | None, top_k: int, intermediate: int) -> Notice | None:
    """``intermediate`` per rank."""
    product = (rows or 0) * top_k * intermediate
    if product < 2**31:
        return None
    return Notice(
        "int32-overflow",
        "warning",
        f"{rows} gathered rows x top-{top_k} x intermediate {intermediate} = {product} elements, at or above 2^31: "
        "kernels that index with 32 bits overflow; lower the chunk per rank",
    )


def bound_clamps(rows: int | None, bound: int | None) -> Notice | None:
    if rows is None or bound is None or rows <= bound:
        return None
    return Notice(
        "moe-bound-clamps",
        "info",
        f"the MoE sees up to {rows} rows, but its buckets end at {bound}: larger sizes reuse that bucket's tactic",
    )


def logits_of_dummy(tokens: int, vocab_size: int) -> Notice | None:
    """The decode dummy's float32 logits, allocated though the LM head is skipped."""
    size = 4 * tokens * vocab_size
    if size < _GB:
        return None
    return Notice(
        "dummy-logits",
        "info",
        f"the DECODE dummy allocates float32 logits of {tokens} x {vocab_size}: {size / _GB:.1f} GB at start; "
        "--max-running-requests lowers it",
    )


def model_path_spelling(model_path: str) -> Notice:
    return Notice(
        "model-path-in-key",
        "info",
        f"the cache key holds the model path as it is typed, {model_path}: another spelling is another cache",
    )


def uneven_shapes(what: str | None) -> Notice | None:
    if what is None:
        return None
    return Notice(
        "shapes-do-not-divide",
        "error",
        f"{what}: not divisible; the server accepts its arguments and then fails when it builds the model; give "
        "parallel sizes that divide it",
    )


def uneven_experts(tp_size: int, ep_size: int) -> Notice | None:
    """The server checks this only when it builds its process groups."""
    if tp_size % ep_size == 0:
        return None
    return Notice(
        "ep-does-not-divide-tp",
        "error",
        f"ep_size {ep_size} does not divide tp_size {tp_size}: the server accepts its arguments and then fails when it "
        "builds its process groups; give an --ep-size that divides --tp-size",
    )


def unreadable_environment(settings: tuple[str, ...]) -> Notice | None:
    if not settings:
        return None
    return Notice(
        "env-value-ignored",
        "warning",
        f"the server cannot read {', '.join(settings)} and takes the default; write 1 or 0 for a switch, digits for a "
        "number",
    )


def cache_not_reused(variable: str) -> Notice:
    return Notice(
        "cache-not-reused",
        "error",
        f"{variable}=0: the server tunes afresh into a file of its own at every start and reads no prepared cache; "
        "leave it out to use this plan",
    )


def no_capture_sizes(alignment: int) -> Notice:
    return Notice(
        "no-capture-sizes",
        "error",
        f"no decode batch size can be captured (alignment {alignment}): the server fails when it captures CUDA graphs; "
        "give --cuda-graph-bs-decode sizes that fit, or --disable-decode-cuda-graph",
    )


def attention_fails(
    *,
    prefill: str | None,
    decode: str | None,
    capability: tuple[int, int] | None,
    is_mla: bool,
    autotuned: bool,
) -> Notice | None:
    """A phase's backend that passes every check of the arguments and fails at start, built or in the DECODE dummy.

    Sources: ``layers/attention/attention_registry``, the function of each backend; each backend's
    ``get_cuda_graph_seq_len_fill_value``, which ``base_runner._alloc_dummy_decode_buffers`` calls.
    """
    if capability is None:
        return None
    major = capability[0]
    why = {
        "fa3": None if major == 9 or (major == 8 and not is_mla) else "runs on SM90, and without MLA on SM80 to SM89",
        "trtllm_mla": None if is_mla else "is for models with MLA",
        "cutedsl_mla": None if is_mla else "is for models with MLA",
        "trtllm_mha": "is for models without MLA" if is_mla else None,
        "hpc_ops": "is for models without MLA" if is_mla else None,
    }
    no_dummy = "runs no dummy batch, and the server autotunes with one" if autotuned else None
    of_decode = {**why, "torch_native": no_dummy, "flex_attention": no_dummy}
    for backend, reason in ((prefill, why.get(prefill or "")), (decode, of_decode.get(decode or ""))):
        if reason is not None:
            return Notice(
                "attention-fails",
                "error",
                f"the attention backend {backend} {reason}: the server fails at start; give another "
                "--attention-backend, --prefill-attention-backend or --decode-attention-backend",
            )
    return None


def relative_cache_dir(cache_dir: str) -> Notice | None:
    """The server neither expands ``~`` nor makes the path absolute."""
    if cache_dir.startswith("/") or cache_dir == DEFAULT_CACHE_DIR:
        return None
    return Notice(
        "cache-dir-relative",
        "warning",
        f"SGLANG_CACHE_DIR={cache_dir} is taken as it is, below the server's working directory (a ~ is a folder of "
        "that name): give an absolute path",
    )


def unplanned(what: str | None) -> Notice | None:
    if what is None:
        return None
    return Notice("op-not-planned", "warning", f"the server tunes {what}, which this version does not plan")


def impossible_memory(fraction: float) -> Notice | None:
    """The server resolves any number; its memory pool then has no room, or more than there is."""
    if 0 < fraction < 1:
        return None
    return Notice(
        "memory-fraction-impossible",
        "error",
        f"mem_fraction_static is {fraction:g}: the server accepts it and then fails when it allocates its memory pool; "
        "lower the chunk or give --mem-fraction-static between 0 and 1",
    )


def unmodelled(flags: tuple[str, ...]) -> Notice | None:
    if not flags:
        return None
    return Notice(
        "flags-not-modelled",
        "warning",
        f"{', '.join(flags)}: the server's numbers depend on this by rules that the plan does not know; compare with "
        "the server's log before you rely on it",
    )


def ignored(flags: tuple[str, ...]) -> Notice | None:
    if not flags:
        return None
    return Notice("flags-without-effect", "info", f"flags that do not matter to the plan: {', '.join(flags)}")


def amd(gpu: Gpu, traffic: Traffic) -> Notice | None:
    if gpu.vendor != "amd":
        return None
    sample = "" if traffic != Traffic() else "; add a sample of its requests: traffic: {extend_lens: [8192, 1]}"
    return Notice(
        "amd-tiles-only",
        "warning",
        f"{gpu.name}: FlashInfer does not run on AMD GPUs, so nothing is tuned and no cache is read; only the tiles of "
        f"EXTEND attention are judged, and the other numbers are by rules of NVIDIA GPUs{sample}",
    )
