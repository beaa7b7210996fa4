"""Faults planted in tactics, so that what a run does about them can be shown: on the simulated device and on a GPU.

``AUTOTUNE_PLAN_PLANTED_FAULTS`` is a JSON list of ``{"custom_op", "tactic", "fault", "bucket"}``; ``bucket`` null or
left out is every bucket. Nothing is planted without it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from typing import Any, Literal

from autotune_planner.errors import UsageError
from autotune_planner.values import dataclass

VARIABLE = "AUTOTUNE_PLAN_PLANTED_FAULTS"

Kind = Literal["crash", "hang", "out of memory", "error", "nan"]
_KINDS = ("crash", "hang", "out of memory", "error", "nan")
_BAD_INDEX = 1 << 40


@dataclass(frozen=True)
class PlantedFault:
    """``tactic`` of ``custom_op`` fails in ``bucket`` (None: in all). "nan" makes its output not finite."""

    custom_op: str
    tactic: Any
    fault: Kind
    bucket: int | None = None

    def hits(self, custom_op: str, tactic: Any, bucket: int) -> bool:
        same = (custom_op, tactic) == (self.custom_op, self.tactic)
        return same and self.bucket in (None, bucket)


def planted_faults(environ: Mapping[str, str]) -> tuple[PlantedFault, ...]:
    """``UsageError`` where the variable is not of its form."""
    text = environ.get(VARIABLE)
    if not text:
        return ()
    try:
        items = json.loads(text)
        faults = tuple(PlantedFault(**item) for item in items) if isinstance(items, list) else None
    except (ValueError, TypeError):
        faults = None
    if faults is None or any(fault.fault not in _KINDS for fault in faults):
        raise UsageError(
            f"{VARIABLE} is not a list of planted faults",
            code="planted-faults",
            where=VARIABLE,
            hint='unset it, or [{"custom_op": "fp8_gemm", "tactic": 3, "fault": "crash"}]',
        )
    return faults


def suffer(fault: PlantedFault, device: str) -> None:
    """What the tactic does when it is launched; "nan" does nothing here."""
    if fault.fault == "error":
        raise RuntimeError("planted: this tactic does not support the shape")
    if fault.fault == "out of memory":
        raise MemoryError("planted: out of memory")
    if fault.fault == "hang":
        _hang(device)
    elif fault.fault == "crash":
        _crash(device)


def _crash(device: str) -> None:
    """On a GPU an access out of bounds, which loses the context; else a segmentation fault."""
    if device != "cuda":
        os.kill(os.getpid(), signal.SIGSEGV)
    import torch

    torch.zeros(1, device=device)[torch.tensor([_BAD_INDEX], device=device)]
    torch.cuda.synchronize()


def _hang(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda._sleep(1 << 62)
        torch.cuda.synchronize()
    while True:
        time.sleep(3600)
