"""FlashInfer's tuning contexts as SGLang enters them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from autotune_planner.plan.plan import WorkUnit


@contextlib.contextmanager
def tuning_contexts(unit: WorkUnit | None) -> Iterator[None]:
    """Tune inside the contexts of SGLang 0.5.23, ``runner/flashinfer_autotune.py:flashinfer_autotune_context``.

    The second context makes the default tactic (-1) race as a candidate. With a ``unit``, only its custom op and its
    bucket are profiled: a custom bucket list rounds down unless ``round_up`` is given.
    """
    from flashinfer import autotune_v2
    from flashinfer.autotuner import autotune

    narrowed = contextlib.nullcontext()
    if unit is not None:
        others = set(unit.call.custom_ops) - {unit.custom_op}
        narrowed = autotune(True, tuning_buckets=(unit.bucket,), round_up=True, skip_ops=others)
    with autotune(True, cache=None), autotune_v2(mode="tune", persistent_cache=False), narrowed:
        yield
