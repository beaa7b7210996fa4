"""Attention backend and page size. Sources: ``arg_groups/model_override_base.get_default_attn_backend``,
``arg_groups/model_overrides/*``, ``arg_groups/overrides.py``."""

from __future__ import annotations

from dataclasses import replace

from autotune_planner import profiles
from autotune_planner.engines.sglang_0_5_23 import architectures, linear_attention
from autotune_planner.engines.sglang_0_5_23.arguments import PROFILE, ServerArguments
from autotune_planner.engines.sglang_0_5_23.model import ModelFacts
from autotune_planner.engines.sglang_0_5_23.rejection import rejected
from autotune_planner.values import dataclass

Capability = tuple[int, int]

_OLD_NAMES = {"compressed": "dsv4", "tokenspeed_mla": "cutedsl_mla"}
_MLA_CACHE_TYPES = {
    "trtllm_mla": ("fp8_e4m3", "bf16", "auto"),
    "cutedsl_mla": ("fp8_e4m3", "bf16", "bfloat16", "auto"),
}
_NVFP4_PREFILL = {"fp8_e4m3": "flashinfer", "nvfp4": "trtllm_mha"}
_SINKS = ("triton", "trtllm_mha", "fa3", "fa4", "ascend", "intel_amx", "intel_xpu", "aiter")
_DETERMINISTIC = ("ascend", "fa3", "fa4", "flashinfer", "intel_xpu", "triton")
_ABSORBED_MLA = (
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "MistralLarge3ForCausalLM",
    "PixtralForConditionalGeneration",
    "GlmMoeDsaForCausalLM",
    "Glm4MoeLiteForCausalLM",
)


@dataclass(frozen=True)
class Attention:
    """``base`` is ``--attention-backend``; a phase of its own falls back to it. Page size in tokens."""

    base: str | None
    prefill_override: str | None
    decode_override: str | None
    page_size: int

    @property
    def prefill(self) -> str | None:
        return self.prefill_override or self.base

    @property
    def decode(self) -> str | None:
        return self.decode_override or self.base

    @property
    def backends(self) -> tuple[str | None, ...]:
        return (self.base, self.prefill_override, self.decode_override)


def resolve_attention(
    arguments: ServerArguments,
    model: ModelFacts,
    capability: Capability | None,
    memory_mib: int | None,
    *,
    hip: bool = False,
) -> Attention:
    """Backends and page size in the server's order: model defaults, deterministic mode, general default, page rules."""
    prefill = arguments.prefill_attention_backend
    attention = Attention(
        _renamed(arguments.attention_backend),
        "trtllm_mla" if prefill == "tokenspeed_mla" else _renamed(prefill),
        _renamed(arguments.decode_attention_backend),
        1 if arguments.page_size is None else arguments.page_size,
    )
    attention = _model_default(attention, arguments, model, capability, memory_mib, hip=hip)
    linear_attention.check_state_cache(
        arguments, model, attention_backend=attention.base, page_size=attention.page_size
    )
    _check_sinks(attention, model)
    if arguments.enable_deterministic_inference:
        attention = replace(attention, base=attention.base or _deterministic(model, capability))
        _check_deterministic(attention.base, model, capability)
    if arguments.kv_cache_dtype == "nvfp4":
        attention = _for_nvfp4_cache(attention, arguments.prefill_kv_cache_dequant_dtype, _major(capability))
    if attention.prefill_override and attention.prefill_override == attention.decode_override:
        attention = replace(attention, base=attention.prefill_override)
    if attention.base is None:
        attention = replace(attention, base=_default(arguments, model, capability, hip=hip))
    attention = replace(attention, page_size=_page_size(attention, arguments.speculative_draft_attention_backend))
    _check_architecture(attention, capability)
    if "cutedsl_mla" in attention.backends and attention.prefill_override is None:
        attention = replace(attention, prefill_override="trtllm_mla")
    _check_kv_cache_dtype(attention, _cache_type(arguments, model, capability), capability)
    _check_other_modes(attention, arguments)
    linear_attention.check_kernels(arguments, _major(capability))
    if attention.base == "fa3" and arguments.kv_cache_dtype == "fp8_e5m2":
        attention = replace(attention, base="triton")
    narrow = (arguments.speculative_eagle_topk or 0) <= 1
    if "fa4" in attention.backends and narrow and not model.is_mla and _major(capability) == 10:
        attention = replace(attention, page_size=128)
    pages = (64, 128, 16, 32) if model.is_mla else (64, 128)
    if "intel_xpu" in (attention.prefill, attention.decode) and attention.page_size not in pages:
        attention = replace(attention, page_size=128)
    return attention


def _for_nvfp4_cache(attention: Attention, input_type: str, major: int) -> Attention:
    """One prefill backend for each type that prefill reads, one decode backend.

    Source: ``kv_cache_hook.handle_nvfp4_prefill_kv_dequant_dtype``.
    """
    source = "kv_cache_hook.handle_nvfp4_prefill_kv_dequant_dtype"
    given = attention.prefill_override or attention.base
    if input_type == "auto":
        if given not in (None, *_NVFP4_PREFILL.values()):
            allowed = " or ".join(_NVFP4_PREFILL.values())
            rule = f"prefill from an nvfp4 cache needs {allowed}, got {given}"
            raise rejected("--kv-cache-dtype", rule, "--kv-cache-dtype auto", source=source)
        named = next((name for name, backend in _NVFP4_PREFILL.items() if backend == given), None)
        input_type = named or ("nvfp4" if major == 10 else "fp8_e4m3")
    if input_type == "nvfp4" and major != 10:
        option = "--prefill-kv-cache-dequant-dtype"
        raise rejected("--kv-cache-dtype", "prefill in NVFP4 needs SM100", f"{option} fp8_e4m3", source=source)
    backend = _NVFP4_PREFILL[input_type]
    for flag, chosen, needed in (
        ("--prefill-attention-backend", attention.prefill_override, backend),
        ("--decode-attention-backend", attention.decode_override, "trtllm_mha"),
    ):
        if chosen not in (None, needed):
            raise rejected(flag, f"an nvfp4 cache needs {needed}, got {chosen}", f"leave {flag} out", source=source)
    return replace(attention, prefill_override=backend, decode_override="trtllm_mha")


def deterministic_policy(arguments: ServerArguments) -> ServerArguments:
    """On-policy training wants the same numbers as its trainer. Source:
    ``attention_hook.handle_deterministic_inference``."""
    if arguments.rl_on_policy_target is None:
        return arguments
    return replace(arguments, enable_deterministic_inference=True)


def packs_extend_dummy(prefill_backend: str | None) -> bool:
    """Whether an EXTEND dummy is packed into the request pool. Source: ``extend_dummy_seqs_capped_by_req_pool`` of the
    backend classes; a split pair takes its prefill backend's."""
    return prefill_backend in profiles.load("engines", PROFILE)["packed_extend_backends"]


def _major(capability: Capability | None) -> int:
    return capability[0] if capability else 0


def _model_default(
    attention: Attention,
    arguments: ServerArguments,
    model: ModelFacts,
    capability: Capability | None,
    memory_mib: int | None,
    *,
    hip: bool,
) -> Attention:
    unset = attention.backends == (None, None, None)
    major = _major(capability)
    if model.sparse_page_size is not None:
        return replace(attention, base="dsa" if unset else attention.base, page_size=model.sparse_page_size)
    if model.architecture in architectures.QWEN3_HYBRID and major == 10 and attention.base is None:
        return _hybrid_default(attention, arguments, model, capability)
    if model.architecture == "GptOssForCausalLM" and unset:
        return replace(attention, base={10: "trtllm_mha", 9: "fa3"}.get(major, "aiter" if hip else "triton"))
    if model.architecture in architectures.DEEPSEEK and unset and major == 10:
        return replace(attention, base="trtllm_mla")
    large_hopper = major == 9 and memory_mib is not None and memory_mib >= 61440
    undecided = attention.base is None and attention.decode_override is None
    if model.config_class.startswith("Qwen3VL") and large_hopper and undecided:
        return replace(attention, decode_override="flashinfer")
    return attention


def _hybrid_default(
    attention: Attention, arguments: ServerArguments, model: ModelFacts, capability: Capability | None
) -> Attention:
    """TensorRT-LLM's attention needs pages, which a radix cache without snapshots of the states does not have. The page
    size that was asked for is not kept. Source: ``model_overrides/qwen3_5._qwen3_5_hybrid_overrides``."""
    paged = (
        linear_attention.radix_cache_off(arguments)
        or arguments.speculative_algorithm is not None
        or linear_attention.keeps_snapshots(arguments)
    )
    if paged and _default(arguments, model, capability, hip=False) == "trtllm_mha":
        return replace(attention, base="trtllm_mha", page_size=64)
    return replace(attention, base="triton", page_size=1)


def _deterministic(model: ModelFacts, capability: Capability | None) -> str:
    """Source: ``overrides._deterministic_attention_backend``."""
    if _major(capability) not in (10, 12):
        return "fa3"
    return "triton" if model.architecture in _ABSORBED_MLA else "flashinfer"


def _check_deterministic(base: str | None, model: ModelFacts, capability: Capability | None) -> None:
    """Source: ``attention_hook.handle_deterministic_inference``."""
    without_mla = ("flashinfer",) if model.architecture in _ABSORBED_MLA else ()
    allowed = [name for name in _DETERMINISTIC if name not in without_mla]
    if base not in allowed:
        raise rejected(
            "--attention-backend",
            f"{base} is not deterministic; deterministic inference needs one of {', '.join(allowed)}",
            f"--attention-backend {allowed[-1]}",
            source="attention_hook.handle_deterministic_inference",
        )
    if base == "fa4" and model.architecture in _ABSORBED_MLA and _major(capability) not in (10, 11):
        raise rejected(
            "--attention-backend",
            "deterministic fa4 with multi-head latent attention needs SM100 or SM110",
            "--attention-backend triton",
            source="attention_hook.handle_deterministic_inference",
        )


def _check_sinks(attention: Attention, model: ModelFacts) -> None:
    """gpt-oss needs a backend with attention sinks, named for both phases before any default is filled in.

    Source: ``model_hook.handle_model_specific_adjustments``.
    """
    if not model.has_attention_sinks:
        return
    for flag, backend in (("prefill", attention.prefill), ("decode", attention.decode)):
        if backend not in _SINKS:
            raise rejected(
                f"--{flag}-attention-backend",
                f"{model.architecture} needs a backend with attention sinks ({', '.join(_SINKS)}), got {backend}",
                "--attention-backend triton",
                source="model_hook.handle_model_specific_adjustments",
            )


def _default(arguments: ServerArguments, model: ModelFacts, capability: Capability | None, *, hip: bool) -> str:
    """Source: ``model_override_base.get_default_attn_backend``. On ROCm aiter has latent attention for 16 and 128 key
    and value heads of a rank only."""
    major = _major(capability)
    if hip:
        heads = max(1, model.num_kv_heads // arguments.tp_size)
        return "triton" if model.is_mla and heads not in (16, 128) else "aiter"
    if model.is_mla:
        return {9: "fa3", 10: "flashinfer"}.get(major, "triton")
    topk = arguments.speculative_eagle_topk
    topk_one = topk is None or (topk == 1 and arguments.page_size in (None, 1))
    if major == 9 and topk_one:
        return "fa3"
    algorithm = arguments.speculative_algorithm
    if major == 10 and topk_one and (algorithm is None or topk is not None or algorithm.upper() == "DFLASH"):
        return "trtllm_mha"
    return "triton" if model.has_attention_sinks else "flashinfer"


def _renamed(backend: str | None) -> str | None:
    """Source: ``serving_hook.handle_deprecated_args``."""
    return _OLD_NAMES.get(backend, backend) if backend else backend


def _page_size(attention: Attention, draft_backend: str | None) -> int:
    """Source: ``overrides._mla_backend_page_constraints``."""
    page = attention.page_size
    if "flashmla" in (attention.base, attention.decode_override):
        page = 64
    if "trtllm_mla" in (attention.base, attention.decode_override) and page not in (32, 64):
        page = 64
    if "cutedsl_mla" in attention.backends and page not in (32, 64):
        page = 64
    if "trtllm_mha" in (*attention.backends, draft_backend) and page not in (16, 32, 64, 128):
        page = 64
    if "hpc_ops" in attention.backends:
        page = 64
    return page


def _check_architecture(attention: Attention, capability: Capability | None) -> None:
    major = _major(capability)
    if "trtllm_mla" in (attention.base, attention.decode_override) and major not in (10, 12):
        raise rejected(
            "--attention-backend",
            "trtllm_mla needs a Blackwell GPU (SM100 or SM12x)",
            "leave --attention-backend out",
            source="overrides._mla_kv_cache_dtype_checks",
        )
    if "cutedsl_mla" in attention.backends and (major != 10 or attention.prefill_override == "cutedsl_mla"):
        raise rejected(
            "--attention-backend",
            "cutedsl_mla needs SM100, and is for decoding only",
            "leave --attention-backend out",
            source="overrides._cutedsl_prefill_backend_fill",
        )
    if "trtllm_mha" in (attention.prefill, attention.decode) and major not in (9, 10, 12):
        raise rejected(
            "--attention-backend",
            "trtllm_mha needs SM90, SM100 or SM120",
            "leave --attention-backend out",
            source="attention_hook.handle_attention_backend_compatibility",
        )


def _cache_type(arguments: ServerArguments, model: ModelFacts, capability: Capability | None) -> str:
    """Type of the KV cache as the checks see it. Source: ``overrides._dsa_kv_cache_dtype_default``."""
    given = arguments.kv_cache_dtype
    if "tokenspeed_mla" in (arguments.attention_backend, arguments.decode_attention_backend):
        given = "fp8_e4m3"
    if model.sparse_page_size is None:
        return given
    if given == "auto":
        return "fp8_e4m3" if _major(capability) >= 10 else "bfloat16"
    if given not in ("bf16", "bfloat16", "fp8_e4m3"):
        raise rejected(
            "--kv-cache-dtype",
            f"sparse attention supports bfloat16 and fp8_e4m3 only, got {given}",
            "--kv-cache-dtype auto",
            source="overrides._dsa_kv_cache_dtype_default",
        )
    return "bfloat16" if given == "bf16" else given


def _check_kv_cache_dtype(attention: Attention, cache_type: str, capability: Capability | None) -> None:
    """Sources: ``overrides._mla_kv_cache_dtype_checks``, ``attention_hook.handle_attention_backend_compatibility``."""
    for backend, allowed in _MLA_CACHE_TYPES.items():
        if backend in (attention.base, attention.decode_override) and cache_type not in allowed:
            raise rejected(
                "--kv-cache-dtype",
                f"{backend} supports {', '.join(allowed)}, got {cache_type}",
                "--kv-cache-dtype auto",
                source="overrides._mla_kv_cache_dtype_checks",
            )
    if attention.prefill == "trtllm_mha" and _major(capability) == 12 and cache_type == "fp8_e4m3":
        raise rejected(
            "--kv-cache-dtype",
            "trtllm_mha on SM120 does not prefill from an fp8_e4m3 cache",
            "--kv-cache-dtype auto, or another --prefill-attention-backend",
            source="attention_hook.handle_attention_backend_compatibility",
        )


def _check_other_modes(attention: Attention, arguments: ServerArguments) -> None:
    """Sources: ``attention_hook.handle_attention_backend_compatibility`` and ``handle_multi_item_scoring``."""
    if attention.base == "flex_attention" and arguments.speculative_algorithm is not None:
        raise rejected(
            "--speculative-algorithm",
            "is not supported with the flex_attention backend",
            "another --attention-backend",
            source="attention_hook.handle_attention_backend_compatibility",
        )
    if arguments.enable_mis and (attention.prefill, attention.decode) != ("flashinfer", "flashinfer"):
        raise rejected(
            "--enable-mis",
            f"needs flashinfer attention in both phases, got {attention.prefill} and {attention.decode}",
            "--attention-backend flashinfer",
            source="attention_hook.handle_multi_item_scoring",
        )
