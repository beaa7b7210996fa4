"""The static buffers of the server's dummy runs: name, shape, dtype, bytes, host or device.

Source: SGLang 0.5.23, ``model_executor/runner/base_runner.py:_allocate_decode_buffers``. One set is allocated for each
pass and sliced by its run; nothing is allocated inside the dummy forward.
"""

from __future__ import annotations

import math
from typing import Literal

from autotune_planner.engines.resolved import Resolved
from autotune_planner.ops.tensors import ITEM_BYTES
from autotune_planner.values import dataclass

_SEQ_LEN_FILL = 1  # tokens that each dummy sequence is said to hold
_MROPE_AXES = 3


@dataclass(frozen=True)
class Buffer:
    """``shape`` in elements; ``device`` is where it lives."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: Literal["cuda", "cpu"] = "cuda"

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class DummyShape:
    """What a set is sized by. ``dp_ranks`` is the length of the token-count lists, 1 without an MLP gather."""

    batch_size: int
    tokens_per_request: int
    hidden_size: int
    vocab_size: int
    dtype: str
    dp_ranks: int
    logits: bool
    expert_parallel: bool
    pipeline_parallel: bool

    @property
    def tokens(self) -> int:
        return self.batch_size * self.tokens_per_request


def dummy_buffers(shape: DummyShape) -> tuple[Buffer, ...]:
    """One dummy set, in the server's order."""
    batch, tokens, hidden = shape.batch_size, shape.tokens, shape.hidden_size
    buffers = [
        Buffer("input_ids", (tokens,), "int64"),
        Buffer("input_embeds", (tokens, hidden), shape.dtype),
        Buffer("req_pool_indices", (batch,), "int64"),
        Buffer("seq_lens", (batch,), "int64"),
        Buffer("seq_lens_cpu", (batch,), "int64", "cpu"),
        Buffer("out_cache_loc", (tokens,), "int64"),
        Buffer("positions", (tokens,), "int64"),
        Buffer("mrope_positions", (_MROPE_AXES, tokens), "int64"),
        Buffer("custom_mask", ((batch * _SEQ_LEN_FILL + tokens) * shape.tokens_per_request,), "bool"),
    ]
    if shape.logits:
        buffers.append(Buffer("next_token_logits_buffer", (tokens, shape.vocab_size), "float32"))
    if shape.expert_parallel:
        buffers.append(Buffer("num_token_non_padded", (1,), "int32"))
    buffers += [
        Buffer("global_num_tokens_gpu", (shape.dp_ranks,), "int32"),
        Buffer("global_num_tokens_for_logprob_gpu", (shape.dp_ranks,), "int32"),
    ]
    if shape.pipeline_parallel:
        buffers += [
            Buffer("pp_proxy_tensors.hidden_states", (tokens, hidden), shape.dtype),
            Buffer("pp_proxy_tensors.residual", (tokens, hidden), shape.dtype),
        ]
    return tuple(buffers)


def decode_buffers(resolved: Resolved) -> tuple[Buffer, ...]:
    """The set of the DECODE pass: with the LM head's logits, though the head is skipped, and always with the drafted
    tokens, also where a PD-prefill target runs one token a request."""
    runtime = resolved.runtime
    return dummy_buffers(_shape(resolved, runtime.eager_max_bs, runtime.decode_num_tokens_per_req, logits=True))


def extend_buffers(resolved: Resolved) -> tuple[Buffer, ...]:
    """The set of the EXTEND pass if it is enabled; empty where a gate closes it."""
    extend = resolved.runtime.extend_pass_if_enabled
    if extend is None:
        return ()
    return dummy_buffers(
        _shape(resolved, extend.max_bs, extend.num_tokens_per_req, logits=extend.allocate_logits_buffer)
    )


def sweep_buffers(resolved: Resolved) -> tuple[Buffer, ...]:
    """The one set of the pipeline-parallel DeepGEMM sweep, of its largest batch and with logits; empty without it.

    Source: ``deep_gemm_wrapper/compile_utils.pp_parallel_deep_gemm_warmup``.
    """
    for warmup in resolved.warmups:
        if warmup.name == "deep_gemm_pp" and warmup.run:
            return dummy_buffers(_shape(resolved, warmup.m[-1], 1, logits=True))
    return ()


@dataclass(frozen=True)
class BufferUse:
    """Which set a pass slices, and which sets are allocated while it runs.

    Sets: ``decode``, ``extend``, ``deep_gemm_pp``, and ``cuda_graph``, the buffers of the draft model's graph runners.
    """

    pass_name: str
    set: str
    alive: tuple[str, ...]


def buffer_uses(resolved: Resolved) -> tuple[BufferUse, ...]:
    """Passes that run, in the server's order.

    One function runs the first three and holds the DECODE set to its end, so it lies beside the others; the EXTEND set
    is released before the next pass. The draft model is tuned later, while its graphs are captured. Source:
    ``base_runner._warmup`` and ``flashinfer_autotune.maybe_flashinfer_autotune_extend``.
    """
    running = {decision.name for decision in resolved.passes if decision.run}
    decode = ("decode",) if "decode" in running else ()
    uses = [BufferUse("decode", "decode", decode)] if decode else []
    if "extend" in running:
        uses.append(BufferUse("extend", "extend", (*decode, "extend")))
    if sweep_buffers(resolved):
        uses.append(BufferUse("deep_gemm_pp", "deep_gemm_pp", (*decode, "deep_gemm_pp")))
    if "draft" in running:
        uses.append(BufferUse("draft", "cuda_graph", ("cuda_graph",)))
    return tuple(uses)


def total_bytes(buffers: tuple[Buffer, ...], device: Literal["cuda", "cpu"]) -> int:
    return sum(buffer.bytes for buffer in buffers if buffer.device == device)


def _shape(resolved: Resolved, batch_size: int, tokens_per_request: int, *, logits: bool) -> DummyShape:
    arguments, runtime = resolved.arguments, resolved.runtime
    return DummyShape(
        batch_size=batch_size,
        tokens_per_request=tokens_per_request,
        hidden_size=resolved.hidden_size,
        vocab_size=resolved.vocab_size,
        dtype=resolved.dtype.removeprefix("torch."),
        dp_ranks=arguments.num_dp_ranks if runtime.require_mlp_tp_gather else 1,
        logits=logits,
        expert_parallel=arguments.moe_ep_size > 1,
        pipeline_parallel=arguments.pp_size > 1,
    )
