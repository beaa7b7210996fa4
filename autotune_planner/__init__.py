"""Plan and run the FlashInfer kernel autotuning of an LLM server before the server starts."""

__version__ = "0.1.0"
