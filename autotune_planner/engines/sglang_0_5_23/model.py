"""What the server reads of a model's configuration. Source: ``configs/model_config.py:ModelConfig``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune_planner import profiles
from autotune_planner.deployment.model import Model
from autotune_planner.engines.sglang_0_5_23 import architectures
from autotune_planner.engines.sglang_0_5_23.arguments import PROFILE
from autotune_planner.engines.sglang_0_5_23.config_form import check_config
from autotune_planner.values import dataclass

_DTYPES = {
    "half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "float32": "float32",
}
_CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
_SPARSE_PAGE = 64  # tokens, for each pooled group of index keys
_EMBEDDING_SUFFIXES = ("Model", "ForSequenceClassification", "ForRewardModel", "RewardModel")


@dataclass(frozen=True)
class Latent:
    """Dimensions of multi-head latent attention; ``q_rank`` 0 where queries are not compressed."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int


@dataclass(frozen=True)
class ModelFacts:
    """Figures of one model: sizes in elements, ``context_len`` in tokens. Counts are 0 where a model has no MoE."""

    architecture: str
    config_class: str
    dtype: str
    hidden_size: int
    vocab_size: int
    context_len: int
    longest_context: int  # tokens: what the model itself allows
    is_multimodal: bool
    is_mla: bool
    sparse_page_size: int | None  # tokens; None without DeepSeek sparse attention
    is_generation: bool
    has_attention_sinks: bool
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    num_experts: int
    top_k: int
    moe_intermediate_size: int
    shared_experts: int
    shared_intermediate: int  # of all shared experts together; 0 without
    shared_module: str  # their module's name
    dense_layers: tuple[int, ...]  # of a model with experts: layers without
    renormalizes: bool  # the router, over the chosen experts
    router_bias: bool  # a bias corrects its scores
    latent: Latent | None
    quant_method: str | None  # of the checkpoint, by its own name
    quant_algo: str | None  # of a ModelOpt checkpoint
    quant_in_config: bool  # not only in a file beside config.json: the server's argument takes just this over
    quant_layers: tuple[tuple[str, str], ...]  # (module, algorithm) of a ModelOpt checkpoint of mixed precision
    quant_layer_algos: frozenset[str]  # those algorithms
    quant_expert_algos: frozenset[str]  # those of its experts
    quant_int4_groups: bool  # compressed-tensors, 4-bit integers in groups of 32: Kimi-K2 Thinking and K2.5
    weight_block: tuple[int, ...] | None  # rows and columns of weights that share a scale
    not_quantized: tuple[str, ...]  # patterns of its module names, such as "lm_head" and "model.layers.*.mlp.gate"


def model_facts(model: Model, dtype_flag: str, context_length_flag: int | None) -> ModelFacts:
    """Facts of a Hugging Face configuration, by the server's own look-ups. ``DeploymentError`` for a damaged one."""
    check_config(model)
    config, text = model.config, model.text_config
    quantization = dict(model.quantization_config or {})
    heads = int(text.get("num_attention_heads") or 1)
    hidden = int(text["hidden_size"])
    experts = _first(text, "num_experts", "n_routed_experts", "num_local_experts")
    architecture = model.architecture
    algos = _layer_algos(quantization)
    return ModelFacts(
        architecture=architecture,
        config_class=_config_class(str(config.get("model_type", ""))),
        dtype=_dtype(config, text, dtype_flag, quantization),
        hidden_size=hidden,
        vocab_size=int(text["vocab_size"]),
        context_len=context_length_flag or _context_length(text),
        longest_context=_context_length(text),
        is_multimodal="vision_config" in config or "audio_config" in config,
        is_mla=architecture in architectures.LATENT_ATTENTION and text.get("kv_lora_rank") is not None,
        sparse_page_size=_sparse_page_size(architecture, text),
        is_generation=not architecture.endswith(_EMBEDDING_SUFFIXES),
        has_attention_sinks=architecture == "GptOssForCausalLM",
        num_layers=int(text.get("num_hidden_layers") or 0),
        num_heads=heads,
        num_kv_heads=int(text.get("num_key_value_heads") or heads),
        head_dim=int(text.get("head_dim") or hidden // heads),
        intermediate_size=int(text.get("intermediate_size") or 0),
        num_experts=experts,
        top_k=_first(text, "num_experts_per_tok", "moe_topk") if experts else 0,
        moe_intermediate_size=_first(text, "moe_intermediate_size", "intermediate_size") if experts else 0,
        shared_experts=int(text.get("n_shared_experts") or 0),
        shared_intermediate=_shared_intermediate(text),
        shared_module="shared_expert" if text.get("shared_expert_intermediate_size") else "shared_experts",
        dense_layers=_dense_layers(text) if experts else (),
        renormalizes=bool(text.get("norm_topk_prob", True)),
        router_bias=text.get("topk_method") == "noaux_tc" or architecture == "Glm4MoeForCausalLM",
        latent=_latent(text),
        quant_method=quantization.get("quant_method"),
        quant_algo=quantization.get("quant_algo"),
        quant_in_config=any(part.get("quantization_config") for part in (config, text)),
        quant_layers=tuple(algos.items()),
        quant_layer_algos=frozenset(algos.values()),
        quant_expert_algos=frozenset(algo for layer, algo in algos.items() if ".experts" in layer),
        quant_int4_groups=_int4_groups(quantization),
        weight_block=_weight_block(quantization),
        not_quantized=_not_quantized(quantization),
    )


def _first(config: Any, *names: str) -> int:
    for name in names:
        if config.get(name):
            return int(config[name])
    return 0


def _sparse_page_size(architecture: str, text: Any) -> int | None:
    """Pages of DeepSeek sparse attention. Sources: ``model_config.is_deepseek_dsa``,
    ``model_overrides/deepseek_v2._deepseek_family_overrides``."""
    if architecture not in architectures.SPARSE_ATTENTION or text.get("index_topk") is None:
        return None
    return _SPARSE_PAGE * int(text.get("index_kpool") or 1)


def _shared_intermediate(text: Any) -> int:
    """Sources: ``deepseek_v2.DeepseekV2MoE``, ``qwen2_moe.Qwen2MoeSparseMoeBlock``."""
    if text.get("shared_expert_intermediate_size"):
        return int(text["shared_expert_intermediate_size"])
    return int(text.get("n_shared_experts") or 0) * int(text.get("moe_intermediate_size") or 0)


def _dense_layers(text: Any) -> tuple[int, ...]:
    """Sources: ``deepseek_v2._is_layer_sparse``, ``qwen2_moe`` (``mlp_only_layers``, ``decoder_sparse_step``)."""
    layers = range(int(text.get("num_hidden_layers") or 0))
    first, every = int(text.get("first_k_dense_replace") or 0), int(text.get("moe_layer_freq") or 1)
    only, step = tuple(text.get("mlp_only_layers") or ()), int(text.get("decoder_sparse_step") or 1)
    return tuple(
        layer
        for layer in layers
        if layer < first or layer % every or layer in only or (step > 1 and (layer + 1) % step)
    )


def _latent(text: Any) -> Latent | None:
    if not text.get("kv_lora_rank"):
        return None
    names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return Latent(*(int(text.get(name) or 0) for name in names))


def _weight_block(quantization: dict[str, Any]) -> tuple[int, ...] | None:
    block = quantization.get("weight_block_size")
    return tuple(map(int, block)) if isinstance(block, list | tuple) and block else None


def _not_quantized(quantization: dict[str, Any]) -> tuple[str, ...]:
    """By every name that checkpoints have for it."""
    names = ("ignore", "modules_to_not_convert", "ignored_layers")
    return tuple(dict.fromkeys(str(one) for name in names for one in quantization.get(name) or ()))


def _layer_algos(quantization: dict[str, Any]) -> dict[str, str]:
    layers = quantization.get("quantized_layers")
    found = layers.items() if isinstance(layers, Mapping) else ()
    return {str(name): str(layer.get("quant_algo")).upper() for name, layer in found if isinstance(layer, Mapping)}


def _int4_groups(quantization: dict[str, Any]) -> bool:
    """Source: ``overrides._deepseek_moe_quant_resolution``."""
    groups = quantization.get("config_groups")
    group = groups.get("group_0") if isinstance(groups, Mapping) else None
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if quantization.get("quant_method") != "compressed-tensors" or not isinstance(weights, Mapping):
        return False
    wanted = {"num_bits": 4, "group_size": 32, "strategy": "group", "type": "int"}
    return all(weights.get(name) == value for name, value in wanted.items())


def _context_length(text: Any) -> int:
    """Source: ``utils/hf_transformers/common.get_context_length``."""
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    factor = scaling.get("factor", 1)
    if "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3":
        factor = 1
    for key in _CONTEXT_KEYS:
        if text.get(key) is not None:
            return int(factor * text[key])
    return 2048


def _dtype(config: Any, text: Any, flag: str, quantization: dict[str, Any]) -> str:
    """Source: ``configs/model_config._get_and_verify_dtype``; gpt-oss in MXFP4 runs in bfloat16 whatever the flag says
    (``arg_groups/model_overrides/gpt_oss.py``)."""
    if quantization.get("quant_method") == "mxfp4" and "GptOssForCausalLM" in (config.get("architectures") or ()):
        return "bfloat16"
    if flag != "auto":
        return _DTYPES[flag]
    stated = text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
    found = _DTYPES.get(str(stated), "float32")
    if found != "float32":
        return found
    return "bfloat16" if str(config.get("model_type", "")).startswith("gemma") else "float16"


def _config_class(model_type: str) -> str:
    """Class that transformers builds for a ``model_type``; by its naming rule where the table has none."""
    known = profiles.load("engines", PROFILE)["hf_config_classes"]
    named = "".join(part.capitalize() for part in model_type.split("_")) + "Config"
    return str(known.get(model_type, named))
