"""Tensors as values: name, shape, dtype, bytes. So an op's memory is known without torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from autotune_planner.values import dataclass

ITEM_BYTES = {
    "int64": 8,
    "int32": 4,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "uint8": 1,
    "bool": 1,
}
_FLOAT32 = 4


@dataclass(frozen=True)
class TensorSpec:
    """``shape`` in elements, ``dtype`` by torch's name without its prefix."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]


WORKSPACE = TensorSpec("workspace", (40 << 20,), "uint8")  # gemm/gemm_base.py:DEFAULT_WORKSPACE_SIZE, one a process


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def empty_of(spec: TensorSpec, device: str) -> Any:
    """An uninitialised torch tensor."""
    import torch

    return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device=device)


def bytes_of(tensors: Iterable[TensorSpec]) -> int:
    return sum(tensor.bytes for tensor in tensors)


def random_fill_peak(tensors: Iterable[TensorSpec]) -> int:
    """Peak bytes while FlashInfer's tuner makes ``tensors`` one after another.

    Each is drawn in float32, scaled into a second float32 tensor and only then cast. Source: FlashInfer 0.7.2,
    ``autotuner/initializers.py:_rand_scaled``.
    """
    made, peak = 0, 0
    for tensor in tensors:
        peak = max(peak, made + 2 * _FLOAT32 * tensor.elements)
        made += tensor.bytes
    return peak
