"""Plan and run the FlashInfer kernel autotuning of an LLM server before the server starts.

The Python API is that of :mod:`autotune_planner.api`, imported when it is first asked for: the commands start faster
without it.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from autotune_planner.api import (
        Bench,
        Checked,
        Deployment,
        Plan,
        Proof,
        RunOutcome,
        bench,
        check,
        load_deployment,
        plan,
        prove,
        tune,
    )

__all__ = ["Bench", "Checked", "Deployment", "Plan", "Proof", "RunOutcome", "__version__", "bench", "check",
           "load_deployment", "plan", "prove", "tune"]  # fmt: skip


class _Package(ModuleType):
    """``plan`` is the function of the API; importing the subpackage of that name would put a module in its place.

    Names of the subpackage are still imported from it: ``from autotune_planner.plan.plan import Plan``.
    """

    def __getattr__(self, name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from autotune_planner import api

        return getattr(api, name)

    def __setattr__(self, name: str, value: object) -> None:
        if not (name == "plan" and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
