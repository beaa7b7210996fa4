"""Environment variables of the server: the deployment file's ``env`` before the process environment.

As the server does (``environ.EnvField.get``), a value that cannot be parsed counts as not set.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune_planner.deployment.model import Deployment
from autotune_planner.errors import DeploymentError
from autotune_planner.values import dataclass

EXTEND = "SGLANG_FLASHINFER_AUTOTUNE_EXTEND"
REUSE_CACHE = "SGLANG_FLASHINFER_AUTOTUNE_CACHE"
FUSED_FINALIZE = "SGLANG_FLASHINFER_MOE_FUSED_FINALIZE"
DEFERRED_FINALIZE = "SGLANG_ENABLE_MOE_DEFERRED_FINALIZE"
DEFERRED_FINALIZE_ROWS = "SGLANG_MOE_DEFERRED_FINALIZE_MAX_TOKENS"
NVFP4_W4A16 = "SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16"
NVFP4_DISPATCH = "SGLANG_MOE_NVFP4_DISPATCH"
SHARED_EXPERT_TP1 = "SGLANG_SHARED_EXPERT_TP1"
DISPATCH_TOKENS = "SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
CACHE_DIR = "SGLANG_CACHE_DIR"
DEEPGEMM = "SGLANG_ENABLE_JIT_DEEPGEMM"
DEEPGEMM_PRECOMPILE = "SGLANG_JIT_DEEPGEMM_PRECOMPILE"
DEEPGEMM_FAST = "SGLANG_JIT_DEEPGEMM_FAST_WARMUP"
DEEPGEMM_PP = "SGLANG_PP_PARALLEL_DEEPGEMM_WARMUP"
COMPACT_EXTEND = "SGLANG_TRITON_COMPACT_EXTEND_ATTENTION"
EXACT_CHUNK_FILL = "SGLANG_EXACT_CHUNK_FILL"
PREFILL_TILE_BUDGET = "SGLANG_PREFILL_TILE_BUDGET"
PREFILL_TILE_BUDGET_MODE = "SGLANG_PREFILL_TILE_BUDGET_MODE"

_DEEPGEMM = (DEEPGEMM, DEEPGEMM_PRECOMPILE, DEEPGEMM_FAST, DEEPGEMM_PP)
_BOOLEANS = {"true": True, "1": True, "yes": True, "y": True, "false": False, "0": False, "no": False, "n": False}


def boolean(text: str) -> bool | None:
    """Source: ``environ.EnvBool``; None for anything else, " 1" and "on" included."""
    return _BOOLEANS.get(text.lower())


def integer(text: str) -> int | None:
    """Source: ``environ.EnvInt``."""
    try:
        return int(text)
    except ValueError:
        return None


@dataclass(frozen=True)
class Environment:
    """``environ`` is the process environment."""

    deployment: Deployment
    environ: Mapping[str, str]

    def get(self, name: str) -> str | None:
        value = self.deployment.env.get(name)
        return self.environ.get(name) if value is None else value

    def text(self, name: str, *, default: str) -> str:
        """As it is set, the empty text too."""
        value = self.get(name)
        return default if value is None else value

    def flag(self, name: str, *, default: bool = False) -> bool:
        text = self.get(name)
        value = None if text is None else boolean(text)
        return default if value is None else value

    def number(self, name: str) -> int | None:
        text = self.get(name)
        return None if text is None else integer(text)

    def extend_enabled(self) -> bool:
        """``autotune.extend``, which must not contradict ``env``; else SGLANG_FLASHINFER_AUTOTUNE_EXTEND, off."""
        stated = self.deployment.autotune_extend
        in_file = self.deployment.env.get(EXTEND)
        if stated is None:
            return self.flag(EXTEND)
        if in_file is not None and (boolean(in_file) or False) != stated:
            raise DeploymentError(
                f"autotune.extend is {str(stated).lower()}, but env has {EXTEND}={in_file}",
                code="extend-contradiction",
                where=self.deployment.where("autotune", "extend"),
                hint="keep one of the two",
            )
        return stated

    def unreadable(self) -> tuple[str, ...]:
        """``NAME=value`` of the variables that the server warns of and ignores."""
        switches = (EXTEND, REUSE_CACHE, FUSED_FINALIZE, COMPACT_EXTEND, EXACT_CHUNK_FILL, *_DEEPGEMM)
        booleans = [name for name in switches if boolean(self.get(name) or "0") is None]
        numbers = [name for name in (DISPATCH_TOKENS, PREFILL_TILE_BUDGET) if integer(self.get(name) or "0") is None]
        return tuple(f"{name}={self.get(name)}" for name in (*booleans, *numbers))
