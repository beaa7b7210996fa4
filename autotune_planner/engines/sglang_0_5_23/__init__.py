"""Rules of SGLang 0.5.23, one file per topic, each function naming the server's own. ``resolve`` runs them in order."""

from autotune_planner.engines.sglang_0_5_23.resolve import resolve

__all__ = ["resolve"]
