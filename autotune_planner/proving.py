"""``prove`` as a function: a plan and a device become what its server's ranks hit and miss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autotune_planner import pipeline
from autotune_planner.errors import NotPossibleHereError
from autotune_planner.plan.plan import Plan
from autotune_planner.proof.prove import Proof, prove
from autotune_planner.tuning.devices import DeviceKind, require_flashinfer
from autotune_planner.tuning.flashinfer_internals import installed_version


def prove_cache(
    plan: Plan, *, cache_dir: str | None, device: DeviceKind, run_command: str, said: Callable[[str], None]
) -> Proof:
    """Prove the cache of a plan's server with the FlashInfer of this machine; nothing is written there.

    ``cache_dir`` stands for SGLANG_CACHE_DIR. ``NotPossibleHereError`` without the deployment's GPU (on ``cuda``) and
    without FlashInfer.
    """
    if plan.resolved.gpu.vendor == "amd":
        raise NotPossibleHereError(
            f"there is nothing to prove: {plan.resolved.no_autotune_reason}",
            code="nothing-to-prove",
            hint="autotune-plan compute",
        )
    place = plan.resolved.cache_place
    if plan.units:
        release = plan.resolved.release
        # The one that is installed is what the server of this machine has: the path follows it.
        version = require_flashinfer(release.flashinfer_version, release.name, installed_version())
        place = replace(place, flashinfer_version=version)
        pipeline.choose_devices(plan, device, 1)
    return prove(
        plan,
        replace(place, cache_dir=cache_dir or place.cache_dir),
        device=device,
        run_command=run_command,
        said=said,
    )
