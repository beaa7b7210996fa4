"""In which format each layer's weights are: the checkpoint's, unless the layer is left out of it by name.

Sources: ``layers/quantization/modelopt_quant.py`` (``is_layer_excluded``, ``ModelOptMixedPrecisionConfig``),
``layers/quantization/utils.is_layer_skipped`` and the quantization configs' ``get_quant_method``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from autotune_planner.engines.sglang_0_5_23.model import ModelFacts

Format = Literal["bf16", "fp8", "fp8_block", "mxfp8", "nvfp4", "w4a16_nvfp4", "mxfp4", "int4", "other"]

_BY_NAME: dict[str | None, Format] = {
    None: "bf16",
    "modelopt_fp8": "fp8",
    "modelopt_fp4": "nvfp4",
    "nvfp4_online": "nvfp4",
    "mxfp8": "mxfp8",
    "mxfp4": "mxfp4",
}
_ALGOS: dict[str, Format] = {"FP8": "fp8", "MXFP8": "mxfp8", "NVFP4": "nvfp4", "W4A16_NVFP4": "w4a16_nvfp4"}
_SHARDS = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
}
_FUSED = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")


def format_of(model: ModelFacts, quantization: str | None, module: str, layers: Iterable[int]) -> Format:
    """Format of one module of the decoder, such as ``mlp.experts``, in the first of ``layers`` that has it quantized.

    ``quantization`` is the model's by the server's name. bf16 where every layer leaves the module out.
    """
    for layer in layers:
        name = f"model.layers.{layer}.{module}"
        if not _left_out(model.not_quantized, name):
            return _format(model, quantization, name)
    return "bf16"


def _format(model: ModelFacts, quantization: str | None, name: str) -> Format:
    if quantization == "modelopt_mixed":
        return _mixed(model, name)
    if quantization == "nvfp4_online" and ".experts" not in name:
        return "bf16"  # quantized at loading: only the experts
    if quantization == "mxfp4" and ".experts" not in name:
        return "bf16"
    if quantization == "fp8":
        return "fp8_block" if model.weight_block else "other"
    if quantization == "compressed-tensors":
        return "int4" if model.quant_int4_groups and ".experts" in name else "other"
    return _BY_NAME.get(quantization, "other")


def _mixed(model: ModelFacts, name: str) -> Format:
    """A layer's own algorithm, its shards' if it is fused, or that of any module inside it."""
    base, _, last = name.rpartition(".")
    wanted = (name, *(f"{base}.{shard}" for shard in _SHARDS.get(last, ())))
    for module, algo in model.quant_layers:
        known = module.removeprefix("language_model.")
        if known in wanted or known.startswith(f"{name}."):
            return _ALGOS.get(algo, "other")
    return "bf16"


def _left_out(patterns: tuple[str, ...], name: str) -> bool:
    """Whether patterns leave a module out: its whole name, a part of it, every shard of it, or what it was fused of."""
    base, _, last = name.rpartition(".")
    shards = [f"{base}.{shard}" for shard in _SHARDS.get(last, ())]
    if any(_matches(pattern, name) for pattern in patterns):
        return True
    if shards and all(any(_matches(pattern, shard) for pattern in patterns) for shard in shards):
        return True
    tails = (pattern.rsplit(".", 1)[-1] for pattern in patterns)
    return any(tail in _FUSED and tail in last for tail in tails)


def _matches(pattern: str, name: str) -> bool:
    compiled = _compiled(pattern.removeprefix("language_model."))
    return any(compiled.fullmatch(part) for part in (name, *name.split(".")))


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", ".*"))
