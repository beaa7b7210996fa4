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
    "mxfp8": ("mxfp8", "humming", _ONLINE),
    "w4afp8": ("w4afp8", "humming", _ONLINE),
    "compressed-tensors": (
        "compressed-tensors",
        "w8a8_int8",
        "w8a8_fp8",
        "auto-round-int8",
        "humming",
        _ONLINE,
    ),
    "awq": ("awq", "awq_marlin", "moe_wna16", "humming", _ONLINE),
    "gptq": ("gptq_marlin", "moe_wna16", "humming", _ONLINE),
    "bitsandbytes": ("bitsandbytes", "humming", _ONLINE),
}
_MODELOPT = {"FP8": "modelopt_fp8", "MXFP8": "mxfp8"}
_NVFP4_LAYERS = {"NVFP4", "W4A16_NVFP4"}
_SOURCE = "model_config.ModelConfig._verify_quantization"


def checkpoint_quantization(model: ModelFacts) -> str | None:
    """The server's name of a checkpoint's quantization. Source: ``ModelConfig._parse_quant_hf_config``."""
    if model.quant_method != "modelopt":
        return model.quant_method
    algo = model.quant_algo or ""
    if algo == "MIXED_PRECISION":
        return "modelopt_mixed" if model.quant_layer_algos & _NVFP4_LAYERS else "w4afp8"
    return "modelopt_fp4" if "FP4" in algo else _MODELOPT.get(algo)


def declared_quantization(model: ModelFacts) -> str | None:
    """What a model's overrides read, and put into the server's argument: nothing of ``hf_quant_config.json``.

    Source: ``utils/common.get_quantization_config``.
    """
    return checkpoint_quantization(model) if model.quant_in_config else None


def argument(flag: str | None) -> str | None:
    """The argument after resolution: ``unquant`` stands for none. Source: ``serving_hook``."""
    return None if flag == "unquant" else flag


def model_quantization(flag: str | None, checkpoint: str | None) -> str | None:
    """The model's quantization. A ModelOpt checkpoint keeps its own whatever the flag says, but for requantization.

    Source: ``ModelConfig._verify_quantization``.
    """
    flag = argument(flag)
    if flag is None:
        return checkpoint
    requantized = flag == _ONLINE or (flag, checkpoint) == ("nvfp4_online", "modelopt_fp8")
    if checkpoint is not None and checkpoint.startswith("modelopt") and not requantized:
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
