"""Environment variables of the server: the deployment file's ``env`` before the process environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune_planner.deployment.model import Deployment
from autotune_planner.engines.sglang_0_5_23.autotune import EXTEND_VARIABLE, extend_enabled
from autotune_planner.errors import DeploymentError


@dataclass(frozen=True)
class Environment:
    """``environ`` is the process environment."""

    deployment: Deployment
    environ: Mapping[str, str]

    def get(self, name: str) -> str | None:
        value = self.deployment.env.get(name)
        return self.environ.get(name) if value is None else value

    def flag(self, name: str) -> bool:
        """A switch that is off by default."""
        return extend_enabled(self.get(name))

    def extend_enabled(self) -> bool:
        """``autotune.extend``, which must not contradict ``env``; else SGLANG_FLASHINFER_AUTOTUNE_EXTEND."""
        stated = self.deployment.autotune_extend
        in_file = self.deployment.env.get(EXTEND_VARIABLE)
        if stated is None:
            return self.flag(EXTEND_VARIABLE)
        if in_file is not None and extend_enabled(in_file) != stated:
            raise DeploymentError(
                f"autotune.extend is {str(stated).lower()}, but env has {EXTEND_VARIABLE}={in_file}",
                code="extend-contradiction",
                where=self.deployment.where("autotune", "extend"),
                hint="keep one of the two",
            )
        return stated
