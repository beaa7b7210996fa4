"""The simulated device: a seeded cost model in place of a kernel timer.

FlashInfer's real tuner and op code run; only the answer to "how long does this tactic take" comes from here:

    time = launch latency + max(bytes / bandwidth, padded work / peak rate) / efficiency of the tile, times noise

- The roofline (bandwidth, dense peak of the dtype, SM count) is the GPU profile's.
- A tactic's number stands for a tile (rows x columns) and a pipeline depth. Rows are padded to the tile per expert,
  and the last wave of tiles leaves SMs idle, so small M prefers small tiles and large M large ones.
- The default tactic (-1) is a large tile with poor efficiency: good nowhere, as measured on the real GPU.
- Noise is 0.5 % (one standard deviation), drawn from a hash of seed, shapes, GEMM and tactic: the same on every
  machine and in every order of the work.

It predicts nothing about a real GPU. Files made with it say ``gpu: "simulated ..."``, so that no server loads them.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

from autotune_planner import profiles
from autotune_planner.deployment.model import Gpu

_LAUNCH_MS = 0.003
_TILE_ROWS = (16, 64, 128, 256)
_TILE_COLUMNS = (64, 128, 256)
_NOISE = 0.005
_DEFAULT_TILE, _DEFAULT_EFFICIENCY = (256, 256), 0.25
_LAUNCHES = 13  # FlashInfer 0.7.2 runs a tactic 3 times to warm up and 10 times to measure
_DELAY_MS = 5.0  # and a delay kernel before each measurement
_MOE_RUNNERS = ("MoERunner", "CuteDslFusedMoERunner", "CuteDslFusedMoEW4A16Runner")
_GENERIC = {"memory_bandwidth_gbps": 4800, "dense_bf16_tflops": 989, "dense_fp8_tflops": 1979}  # an H200's


@dataclass(frozen=True)
class _Gemm:
    """``groups`` matrices of ``rows x k`` times ``k x n``; ``element_bytes`` of both inputs."""

    groups: int
    rows: float
    n: int
    k: int
    element_bytes: int


class CostModel:
    """Answers FlashInfer's timer. ``elapsed_ms`` is what tuning would have spent on the device so far."""

    def __init__(self, gpu: Gpu, seed: int) -> None:
        figures = profiles.load("gpus", gpu.profile) if gpu.profile else _GENERIC
        self._bytes_per_ms = figures["memory_bandwidth_gbps"] * 1e6
        self._flop_per_ms = {2: figures["dense_bf16_tflops"] * 1e9, 1: figures["dense_fp8_tflops"] * 1e9}
        self._sm_count = gpu.sm_count or 132
        self._seed = seed
        self.elapsed_ms = 0.0

    def __call__(
        self,
        runner: str,
        shapes: tuple[tuple[int, ...], ...],
        tactic: Any,
        gemm: int,
        top_k: int,
        launches: int | None = None,
    ) -> float:
        time = self._time_ms(_gemm_of(runner, shapes, gemm, top_k), tactic) * self._noise(shapes, gemm, tactic)
        self.elapsed_ms += _DELAY_MS + _LAUNCHES * time if launches is None else launches * time
        return time

    def _time_ms(self, gemm: _Gemm, tactic: Any) -> float:
        (tile_rows, tile_columns), efficiency = _tile(tactic)
        tiles_down = math.ceil(gemm.rows / tile_rows)
        tiles = gemm.groups * tiles_down * math.ceil(gemm.n / tile_columns)
        idle = math.ceil(tiles / self._sm_count) * self._sm_count / tiles
        work = 2.0 * gemm.groups * tiles_down * tile_rows * gemm.n * gemm.k * min(idle, 4.0)
        moved = gemm.groups * (gemm.n * gemm.k + gemm.rows * (gemm.k + gemm.n)) * gemm.element_bytes
        ideal = max(moved / self._bytes_per_ms, work / self._flop_per_ms[gemm.element_bytes])
        return _LAUNCH_MS + ideal / efficiency

    def _noise(self, *identity: Any) -> float:
        digest = hashlib.blake2b(repr((self._seed, *identity)).encode(), digest_size=16).digest()
        first, second = (int.from_bytes(digest[i : i + 8], "big") / 2**64 for i in (0, 8))
        normal = math.sqrt(-2 * math.log(1 - first)) * math.cos(2 * math.pi * second)
        return 1 + _NOISE * normal


def _tile(tactic: Any) -> tuple[tuple[int, int], float]:
    """Tile (rows, columns) and pipeline efficiency (0..1) that a tactic number stands for."""
    if not isinstance(tactic, int) or tactic < 0:
        return _DEFAULT_TILE, _DEFAULT_EFFICIENCY
    rows = _TILE_ROWS[tactic % 4]
    columns = _TILE_COLUMNS[tactic // 4 % 3]
    depth = tactic // 12 % 4
    return (rows, columns), 0.55 + 0.08 * depth + 0.0005 * rows


def _gemm_of(runner: str, shapes: tuple[tuple[int, ...], ...], gemm: int, top_k: int) -> _Gemm:
    """A MoE's second GEMM, or its first where the op times them apart; sizes as stored: packed formats are smaller."""
    if runner in _MOE_RUNNERS:
        weights = [shape for shape in shapes if len(shape) == 3]
        experts, n, k = weights[0] if gemm == 1 else weights[1]
        tokens = shapes[0][0] * top_k
        busy = min(experts, tokens)
        return _Gemm(groups=busy, rows=tokens / busy, n=n, k=k, element_bytes=2)
    if len(shapes[0]) == 3:
        batch, rows, k = shapes[0]
        return _Gemm(groups=batch, rows=rows, n=shapes[1][2], k=k, element_bytes=1)
    (rows, k), (first, second) = shapes[:2]
    return _Gemm(groups=1, rows=rows, n=second if first == k else first, k=k, element_bytes=1)
