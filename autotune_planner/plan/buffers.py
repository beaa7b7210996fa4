"""The static buffers of the server's dummy runs: name, shape, dtype, bytes, host or device.

Source: SGLang 0.5.23, ``model_executor/runner/base_runner.py:_allocate_decode_buffers``. One set is allocated for each
pass and sliced by its run; nothing is allocated inside the dummy forward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from autotune_planner.engines.resolved import Resolved

_ITEM_BYTES = {"int64": 8, "int32": 4, "float32": 4, "float16": 2, "bfloat16": 2, "bool": 1}
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
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


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
