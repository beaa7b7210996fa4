"""GPUs: a profile by name, or a mapping that describes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autotune_planner import profiles
from autotune_planner.deployment.fields import shown
from autotune_planner.deployment.model import Gpu
from autotune_planner.deployment.suggestions import nearest_first
from autotune_planner.errors import DeploymentError

if TYPE_CHECKING:
    from autotune_planner.deployment.schema import GpuForm


def load_gpu(gpu: str | Mapping[str, Any]) -> Gpu:
    """A GPU by its name in ``profiles/gpus``, an alias (``H200``) or the driver's name, in any case; or a mapping.

    ``DeploymentError`` for an unknown name (lists the known, nearest first) or a mapping that is not of this form.
    """
    if isinstance(gpu, str):
        return _profile_gpu(gpu)
    from pydantic import ValidationError

    from autotune_planner.deployment.problems import raise_problems
    from autotune_planner.deployment.schema import GpuForm

    try:
        form = GpuForm.model_validate(dict(gpu))
    except ValidationError as error:
        raise_problems(error, {}, within=("gpu",))
    return gpu_of_form(form)


def gpu_of_form(form: GpuForm) -> Gpu:
    return Gpu(
        name=form.name,
        vendor=form.vendor,
        memory_mib=form.memory_mib,
        compute_capability=_capability(form.compute_capability),
        sm_count=form.sm_count,
        arch=form.arch,
    )


def _profile_gpu(name: str) -> Gpu:
    profile = _find_profile(name)
    if profile is None:
        known = nearest_first(name, profiles.names("gpus"))
        raise DeploymentError(
            f"gpu {shown(name)} is not known",
            code="unknown-gpu",
            hint="one of these, nearest first: " + ", ".join(known) + "; or a mapping that describes it",
        )
    content = profiles.load("gpus", profile)
    return Gpu(
        name=content["name"],
        vendor=content["vendor"],
        memory_mib=content["memory_mib"],
        compute_capability=_capability(content["compute_capability"]),
        sm_count=content["sm_count"],
        arch=content.get("arch"),
        profile=profile,
    )


def _find_profile(name: str) -> str | None:
    lowered = name.lower()
    known = profiles.names("gpus")
    by_stem = next((stem for stem in known if stem.lower() == lowered), None)
    likely_first = sorted(known, key=lambda stem: not stem.lower().startswith(lowered))
    return by_stem or next((stem for stem in likely_first if lowered in _other_names(stem)), None)


def _other_names(profile: str) -> set[str]:
    content = profiles.load("gpus", profile)
    return {other.lower() for other in (content["name"], *content["aliases"])}


def _capability(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    major, minor = text.split(".")
    return int(major), int(minor)
