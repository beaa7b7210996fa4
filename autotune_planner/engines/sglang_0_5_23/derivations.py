"""How the main numbers came about, for ``--explain``."""

from __future__ import annotations

from autotune_planner.engines.resolved import Arguments, Derivation, Runtime
from autotune_planner.engines.sglang_0_5_23.arguments import ServerArguments

Step = tuple[str, str]


def derivations(
    given: ServerArguments,
    *,
    default_chunk: int,
    resolved: Arguments,
    runtime: Runtime,
    token_capacity: int,
    capacity_given: bool,
    context_len: int,
) -> tuple[Derivation, ...]:
    """Chains of (text, source) from a flag or a default to a value."""
    chunk = _chunk(given, default_chunk)
    if resolved.attn_dp_size > 1:
        chunk.append((f"/ attn_dp {resolved.attn_dp_size}", "parallel_hook.handle_data_parallelism"))
    buffer = [*chunk, (str(resolved.chunked_prefill_size), "per rank")]
    buffer.append(("max_prefill_buffer_tokens", "runtime_context.max_prefill_buffer_tokens"))
    if resolved.max_prefill_buffer_tokens == 0:
        buffer.append((f"max_prefill_tokens {resolved.max_prefill_tokens}", "chunked prefill is off"))
    requests = _requests(given, resolved, token_capacity, capacity_given, context_len)
    eager = [*requests, (str(runtime.max_running_requests_per_dp_worker), "per DP worker")]
    if runtime.require_mlp_sync:
        eager.append((f"aligned to attn_tp {resolved.attn_tp_size}", "utils.common.get_eager_max_batch_size"))
    decode = [*eager, (f"x {runtime.decode_num_tokens_per_req} tokens", "EagerRunner._autotune_buffers")]
    values = [
        ("resolved.chunked_prefill_size", chunk, resolved.chunked_prefill_size),
        ("resolved.autotune_extend_ceiling", buffer, resolved.autotune_extend_ceiling),
        ("runtime.max_running_requests_per_dp_worker", requests, runtime.max_running_requests_per_dp_worker),
        ("runtime.eager_max_bs", eager, runtime.eager_max_bs),
        ("runtime.decode_autotune_tokens", decode, runtime.decode_autotune_tokens),
    ]
    return tuple(Derivation(field, tuple(steps), str(value)) for field, steps, value in values)


def _chunk(given: ServerArguments, default: int) -> list[Step]:
    if given.chunked_prefill_size is not None:
        return [(f"--chunked-prefill-size {given.chunked_prefill_size}", "flag")]
    return [(f"{default} by GPU memory", "memory_hook.handle_gpu_memory_settings")]


def _requests(
    given: ServerArguments, resolved: Arguments, capacity: int, capacity_given: bool, context_len: int
) -> list[Step]:
    rule = "kv_cache_configurator.resolve_max_num_reqs"
    known = "kv_token_capacity" if capacity_given else "assumed: 8 x context length"
    half = (f"at most half of {capacity} KV tokens", known)
    if given.max_running_requests is not None:
        steps = [(f"--max-running-requests {given.max_running_requests}", "flag")]
    elif resolved.max_running_requests is not None:
        steps = [(f"{resolved.max_running_requests} for speculation", "speculative_hook")]
    else:
        return [(f"{capacity} KV tokens / context {context_len} x 512, 2048 to 4096", rule), half]
    if resolved.attn_dp_size > 1:
        steps.append((f"/ attn_dp {resolved.attn_dp_size}", rule))
    return [*steps, half]
