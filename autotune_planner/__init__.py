"""Plan and run the FlashInfer kernel autotuning of an LLM server before the server starts.

The Python API is :mod:`autotune_planner.api`.
"""

__version__ = "0.1.0"
