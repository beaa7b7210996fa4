"""A child process that runs FlashInfer: its output in a log file, on a GPU or on the simulated device."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from autotune_planner.deployment.model import Gpu
from autotune_planner.tuning import flashinfer_internals as internals
from autotune_planner.tuning.devices import SIMULATED


@contextlib.contextmanager
def flashinfer_child(log_path: str, gpu: Gpu, timer: internals.Timer | None) -> Iterator[str]:
    """Set this process up for FlashInfer and give the torch device of its tensors.

    stdout and stderr, compiled code included, go to the log file for good. ``timer`` answers on the simulated device;
    None is a real GPU.
    """
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    internals.import_flashinfer(quiet=False)
    internals.keep_tqdm_in_process()
    if timer is None:
        yield "cuda"
        return
    assert gpu.compute_capability is not None
    with internals.without_gpu(gpu.compute_capability, f"{SIMULATED} {gpu.name}", timer):
        yield "meta"
