"""The server's checks of flags that a plan does not compute with: a line that the server refuses is no plan.

One file per topic. Left out are checks of the machine that the server runs on, which is another one: files that must
exist (certificates, adapters, watermark settings, decrypted configurations, ``--quantization-param-path``), InfiniBand
devices, free ports, and packages and plugins that must be installed (``--enable-http2``, ``--enable-amd-monokernel``,
``--enable-nvidia-megakernel``, ``--model-config-parser``).
"""

from __future__ import annotations

from autotune_planner.engines.sglang_0_5_23.checks import caches, drafts, experts, lora, models, ranks, serving, workers
from autotune_planner.engines.sglang_0_5_23.checks.subject import Subject

_TOPICS = (models, ranks, experts, caches, drafts, lora, workers, serving)


def check(subject: Subject) -> None:
    """``DeploymentError`` for the first rule that a deployment breaks, with flag, rule and what to write instead."""
    for topic in _TOPICS:
        topic.check(subject)
