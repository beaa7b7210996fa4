"""Names and bounds of the deployment file that need no pydantic."""

from __future__ import annotations

LARGEST = 2**31 - 1  # servers and kernels count tokens, requests and ranks in 32-bit integers

UNION_FIELDS = frozenset(("gpu", "model", "launch"))
"""Fields of more than one form: in an error's location the tag of a form follows their name."""

FIELD_OF_FLAG: dict[str, tuple[str, ...]] = {
    "model_path": ("model_path",),
    "model": ("model_path",),
    "tp_size": ("parallel", "tp"),
    "tp": ("parallel", "tp"),
    "tensor_parallel_size": ("parallel", "tp"),
    "dp_size": ("parallel", "dp"),
    "dp": ("parallel", "dp"),
    "data_parallel_size": ("parallel", "dp"),
    "enable_dp_attention": ("parallel", "dp_attention"),
    "ep_size": ("parallel", "ep"),
    "ep": ("parallel", "ep"),
    "expert_parallel_size": ("parallel", "ep"),
    "pp_size": ("parallel", "pp"),
    "pp": ("parallel", "pp"),
    "pipeline_parallel_size": ("parallel", "pp"),
    "moe_dense_tp_size": ("parallel", "moe_dense_tp"),
    "enable_dp_lm_head": ("parallel", "dp_lm_head"),
    "chunked_prefill_size": ("prefill", "chunked_prefill_size"),
    "max_prefill_tokens": ("prefill", "max_prefill_tokens"),
    "enable_dynamic_chunking": ("prefill", "dynamic_chunking"),
    "enable_mixed_chunk": ("prefill", "mixed_chunk"),
    "max_running_requests": ("decode", "max_running_requests"),
    "cuda_graph_max_bs_decode": ("decode", "cuda_graph_max_bs_decode"),
    "cuda_graph_bs_decode": ("decode", "cuda_graph_bs_decode"),
    "disaggregation_mode": ("disaggregation",),
    "speculative_algorithm": ("speculative", "algorithm"),
    "speculative_num_steps": ("speculative", "num_steps"),
    "speculative_eagle_topk": ("speculative", "eagle_topk"),
    "speculative_num_draft_tokens": ("speculative", "num_draft_tokens"),
    "speculative_draft_model_path": ("speculative", "draft_model_path"),
    "speculative_draft_model": ("speculative", "draft_model_path"),
    "moe_runner_backend": ("moe", "runner_backend"),
    "moe_a2a_backend": ("moe", "a2a_backend"),
}
"""Server flags (snake_case, other spellings included) that have a field of their own in the deployment file."""
