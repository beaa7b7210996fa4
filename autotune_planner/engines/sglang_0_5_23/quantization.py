"""What ``--quantization`` and the checkpoint make together. Source: ``configs/model_config.ModelConfig``.

The argument as the server keeps it is part of its cache key; the model's own quantization decides the ops.
"""

from __future__ import annotations

from autotune_planner.engines.sglang_0_5_23.model import ModelFacts
from autotune_planner.engines.sglang_0_5_23.rejection import rejected

_ONLINE = "quark_mxfp4"  # requantizes any checkpoint
_NOT_REGISTERED = ("gptq", "mlx_q4", "mlx_q8")
_COMPATIBLE = {
    "fp8": ("fp8", "modelopt_fp4", "nvfp4_online", "humming", _ONLINE),
    "mxfp4": ("mxfp4", _ONLINE),
}
_SOURCE = "model_config.ModelConfig._verify_quantization"


def checkpoint_quantization(model: ModelFacts) -> str | None:
    """The server's name of a checkpoint's quantization. Source: ``ModelConfig._parse_quant_hf_config``."""
    if model.quant_method != "modelopt":
        return model.quant_method
    algo = (model.quant_algo or "").upper()
    if "FP4" in algo:
        return "modelopt_fp4"
    return "modelopt_mixed" if algo == "MIXED_PRECISION" else "modelopt_fp8"


def argument(flag: str | None) -> str | None:
    """The argument after resolution: ``unquant`` stands for none. Source: ``serving_hook``."""
    return None if flag == "unquant" else flag


def model_quantization(flag: str | None, checkpoint: str | None) -> str | None:
    """The model's quantization. A ModelOpt checkpoint keeps its own whatever the flag says.

    Source: ``ModelConfig._verify_quantization``.
    """
    flag = argument(flag)
    if flag is None:
        return checkpoint
    if checkpoint is not None and checkpoint.startswith("modelopt") and flag != _ONLINE:
        return checkpoint
    return flag


def check(flag: str | None, checkpoint: str | None, capability_major: int) -> None:
    """Source: ``ModelConfig._verify_quantization``."""
    flag = argument(flag)
    if flag is None:
        return
    if flag not in _COMPATIBLE.get(checkpoint or "", (flag,)) or (flag, checkpoint) == ("nvfp4_online", "modelopt_fp4"):
        raise rejected(
            "--quantization",
            f"{flag} does not match the checkpoint, which is in {checkpoint}",
            "leave --quantization out: the server reads it from the checkpoint",
            source=_SOURCE,
        )
    if flag == "nvfp4_online" and capability_major != 10:
        raise rejected(
            "--quantization", "nvfp4_online needs SM100", "another --quantization, or leave it out", source=_SOURCE
        )
    if checkpoint is None and flag in _NOT_REGISTERED:
        raise rejected(
            "--quantization",
            f"{flag} is a choice of the flag but not a registered method on NVIDIA GPUs",
            "leave --quantization out",
            source=_SOURCE,
        )
