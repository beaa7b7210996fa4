"""What the released server does at start with the cache files of one tensor-parallel group, a process for each rank.

    python -m tests.oracle.load_gate GPU MODELS < row > ranks

``GPU``, ``MODELS`` and the row are those of ``tests.oracle.server``; SGLANG_CACHE_DIR of the row's ``env`` holds the
files. Each rank enters the server's own autotune context over a process group of gloo: it compares the ranks' digests,
keeps or deletes its file, loads it into FlashInfer's tuner and saves it at the end. Nothing is tuned in between.
Printed for each rank: ``path`` and ``digest`` of its file, whether it was ``kept``, and how many entries FlashInfer
``loaded``.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from flashinfer.autotuner import AutoTuner, _collect_metadata

from tests.oracle import server, stand_ins
from tests.oracle.server import flashinfer_autotune


def enter(tp: int, size: int, row: dict[str, Any], rendezvous: str) -> dict[str, Any]:
    """One rank's start, up to what a first forward pass would find."""
    os.environ.update(row["env"])
    typed = {server.local(argument): argument for argument in row["args"]}
    server_args = server.parsed([server.local(argument) for argument in row["args"]])
    server_args.resolve_once()
    server.publish_rank(server_args, typed, tp=tp, pp=0, dp=None)
    torch.version.cuda = stand_ins.BUILT_FOR  # it is part of the stamp
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=tp, world_size=size)
    group = SimpleNamespace(world_size=size, cpu_group=torch.distributed.group.WORLD)
    server.get_parallel().override_permanently(tp_group=group)
    model_config = server.ModelConfig.from_server_args(server_args)
    runner = SimpleNamespace(
        device="cuda",
        dtype=model_config.dtype,
        model_config=model_config,
        is_draft_worker=False,
        forward_stream=mock.MagicMock(),
    )
    path = flashinfer_autotune.flashinfer_autotune_cache_path(runner)
    digest = flashinfer_autotune._autotune_cache_digest(path, _collect_metadata())
    streams = SimpleNamespace(stream=lambda stream: contextlib.nullcontext())
    with (
        mock.patch.object(torch, "get_device_module", return_value=streams),
        mock.patch.object(torch.cuda, "current_stream"),
        flashinfer_autotune.flashinfer_autotune_context(runner, run_lm_head=False),
    ):
        return {
            "path": str(path),
            "digest": digest,
            "kept": path.is_file(),
            "loaded": len(AutoTuner.get()._file_configs),
        }


def main() -> None:
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    row = json.load(sys.stdin)
    size = int(row["args"][row["args"].index("--tp-size") + 1])
    with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("fork").Pool(size) as pool:
        rendezvous = str(Path(folder, "ranks"))
        ranks = pool.starmap(enter, [(tp, size, row, rendezvous) for tp in range(size)], chunksize=1)
    json.dump(ranks, results)


if __name__ == "__main__":
    main()
