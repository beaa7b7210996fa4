"""Families of architectures that SGLang 0.5.23 treats alike, as its own lists name them."""

from __future__ import annotations

# configs/model_config.ModelConfig._derive_model_shapes: latent attention
LATENT_ATTENTION = frozenset(
    {
        "BailingMoeV2_5ForCausalLM",
        "BailingMoeV3ForCausalLM",
        "BailingMoeV3VLForConditionalGeneration",
        "DeepseekV2ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekVL2ForCausalLM",
        "Dots3NoteForCausalLM",
        "DotsVLMForCausalLM",
        "GigaChat35ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "Glm5NextForConditionalGeneration",
        "GlmMoeDsaForCausalLM",
        "HYV4ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "KimiK3ForConditionalGeneration",
        "KimiLinearForCausalLM",
        "KimiVLForConditionalGeneration",
        "LongcatFlashForCausalLM",
        "MiniCPM3ForCausalLM",
        "MistralLarge3ForCausalLM",
        "PixtralForConditionalGeneration",
        "SarvamMLAForCausalLM",
    }
)

# arg_groups/overrides._DEEPSEEK_FAMILY_ARCHS
DEEPSEEK = frozenset(
    {
        "DeepseekV32ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Dots3NoteForCausalLM",
        "Glm5NextForConditionalGeneration",
        "GlmMoeDsaForCausalLM",
        "HYV4ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "LongcatFlashForCausalLM",
        "MistralLarge3ForCausalLM",
        "PixtralForConditionalGeneration",
    }
)

# configs/model_config.is_deepseek_dsa: sparse attention, where the configuration has an index_topk
SPARSE_ATTENTION = DEEPSEEK - {"KimiK25ForConditionalGeneration"}

# arg_groups/model_overrides/qwen3_moe._qwen3_moe_family_overrides
QWEN3_MOE = frozenset(
    {
        "InternS2PreviewForConditionalGeneration",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen4ExpForConditionalGeneration",
    }
)

# arg_groups/model_overrides/qwen3_5._qwen3_5_hybrid_overrides: linear and softmax layers mixed
QWEN3_HYBRID = frozenset(
    {
        "InternS2MobiusForConditionalGeneration",
        "InternS2PreviewForConditionalGeneration",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    }
)

# arg_groups/overrides._MAMBA_EXTRA_BUFFER_ARCHS, of those in the list below it
STATE_SNAPSHOTS = frozenset(
    {
        "BailingMoeV2_5ForCausalLM",
        "BailingMoeV3ForCausalLM",
        "BailingMoeV3VLForConditionalGeneration",
        "FalconH1ForCausalLM",
        "Glm5NextForConditionalGeneration",
        "InternS2PreviewForConditionalGeneration",
        "KimiK3ForConditionalGeneration",
        "KimiLinearForCausalLM",
        "MiniCPMV4_6ForConditionalGeneration",
        "MiniCPMV4_7ForConditionalGeneration",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "NemotronH_Omni_Reasoning_V3",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen4ExpForConditionalGeneration",
    }
)

# arg_groups/overrides._MAMBA_RADIX_CACHE_ARCHS: the radix cache holds a recurrent state beside keys and values
RECURRENT_STATE = STATE_SNAPSHOTS | {
    "InternS2MobiusForConditionalGeneration",
    "JetNemotronForCausalLM",
    "JetVLMForConditionalGeneration",
    "Lfm2ForCausalLM",
    "Lfm2MoeForCausalLM",
    "ZayaForCausalLM",
}

# configs/model_config.multimodal_breakable_cuda_graph_supported_model_archs
IMAGES_IN_PREFILL_GRAPHS = frozenset(
    {
        "Cohere2VisionForConditionalGeneration",
        "Glm5NextForConditionalGeneration",
        "InternS2MobiusForConditionalGeneration",
        "KimiK25ForConditionalGeneration",
        "KimiK3ForConditionalGeneration",
        "MiniMaxM3SparseForCausalLM",
        "MiniMaxM3SparseForConditionalGeneration",
        "MuseGlimmerForConditionalGeneration",
        "MuseSparkForConditionalGeneration",
        "PaddleOCRVLForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen4ExpForConditionalGeneration",
    }
)

# models/deepseek_v2.DeepseekV3ForCausalLM.fused_shared_experts_architecture, and classes that ask it
FUSES_SHARED_EXPERT = frozenset({"DeepseekV3ForCausalLM", "GlmMoeDsaForCausalLM", "KimiK25ForConditionalGeneration"})

# Classes whose experts are declared with RoutingMethodType.DeepSeekV3: models/deepseek_v2.DeepseekV2MoE, glm4_moe
GROUPED_SIGMOID_ROUTER = (DEEPSEEK | {"DeepseekV2ForCausalLM", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM"}) - {
    "HYV4ForCausalLM",
    "LongcatFlashForCausalLM",
}

# RoutingMethodType.Renormalize (models/qwen3_moe.py) and RenormalizeNaive (models/qwen2_moe.py)
SOFTMAX_ROUTER = frozenset(
    {
        "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    }
)

LLAMA4_ROUTER = frozenset({"Llama4ForCausalLM", "Llama4ForConditionalGeneration"})

# models/deepseek_v2.DeepseekV2MoE: its shared expert's gate_up_proj runs in a kernel of the server in NVFP4 on SM100
DEEPSEEK_MOE = GROUPED_SIGMOID_ROUTER - {"Glm4MoeForCausalLM"}

# arg_groups/pd_disaggregation_hook.handle_encoder_disaggregation: encoder and language model in servers of their own
SPLIT_ENCODERS = frozenset(
    {
        "Dots3NoteForCausalLM",
        "Glm5NextForConditionalGeneration",
        "InternS2PreviewForConditionalGeneration",
        "KimiK25ForConditionalGeneration",
        "KimiK3ForConditionalGeneration",
        "KimiVLForConditionalGeneration",
        "MiMoV2ForCausalLM",
        "MiniMaxM3SparseForConditionalGeneration",
        "MuseSparkForConditionalGeneration",
        "Qwen2AudioForConditionalGeneration",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5OmniForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3OmniMoeForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    }
)

# server_args.ServerArgs.LANGUAGE_MODEL_ONLY_ARCHITECTURES
TEXT_ONLY_SERVING = (
    "DeepseekV4ForCausalLM",
    "MuseGlimmerForConditionalGeneration",
    "Cosmos3ForConditionalGeneration",
    "Cosmos3EdgeForConditionalGeneration",
)

# layers/cp/cp_decode_attn_tp.CP_DECODE_ATTN_TP_SUPPORTED_ARCHS
REPLICATED_ATTENTION = frozenset(
    {
        "DeepseekV4ForCausalLM",
        "DeepseekV4ForCausalLMDSpark",
        "DeepseekV4ForCausalLMNextN",
        "GlmMoeDsaForCausalLM",
        "GlmMoeDsaForCausalLMNextN",
    }
)

# arg_groups/mega_moe_hook.MEGA_MOE_NO_FALLBACK_ARCHS
MEGA_MOE_ONLY = frozenset(
    {
        "DeepseekV4ForCausalLM",
        "InternS2PreviewForConditionalGeneration",
        "MellumForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    }
)

# arg_groups/moe_hook.validate_flashinfer_megamoe_model
FLASHINFER_MEGA_MOE = frozenset(
    {
        "BeamForCausalLM",
        "DeepseekV2ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV4ForCausalLM",
        "Glm4MoeForCausalLM",
        "GlmMoeDsaForCausalLM",
        "KimiK3ForConditionalGeneration",
        "KimiK3LinearForCausalLM",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM",
    }
)

# configs/moe_model_registry._DEEPEP_V2_MODELS
DEEPEP_V2 = frozenset(
    {
        "DeepseekV3ForCausalLM",
        "DeepseekV4ForCausalLM",
        "Glm5NextForConditionalGeneration",
        "GlmMoeDsaForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiMoV2ForCausalLM",
        "Qwen3MoeForCausalLM",
    }
)

# dllm/config.DllmConfig.from_server_args
DIFFUSION = frozenset(
    {"DiffusionGemmaForBlockDiffusion", "LLaDA2MoeModelLM", "SDARForCausalLM", "SDARMoeForCausalLM"},
)
