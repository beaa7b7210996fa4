"""The deployment file as a JSON Schema for editors: draft 7, which is what their YAML servers read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from autotune_planner import profiles
from autotune_planner.deployment.fields import example_text
from autotune_planner.deployment.schema import DeploymentForm

DRAFT = "http://json-schema.org/draft-07/schema#"

_MEANINGS = {
    "engine": "The server whose rules apply.",
    "engine_version": "Its release; the newest with known rules by default.",
    "gpu": "A name in profiles/gpus, or a mapping.",
    "gpu.name": "The driver's name, such as NVIDIA H200.",
    "gpu.vendor": "Who makes it; AMD GPUs are judged for tiles only.",
    "gpu.arch": "AMD only: such as gfx942.",
    "gpu.memory_mib": "Memory in MiB, as nvidia-smi shows it.",
    "gpu.compute_capability": "major.minor: part of the cache path.",
    "gpu.sm_count": "Streaming multiprocessors.",
    "model": "A name in profiles/models, a folder or config.json in Hugging Face form, or a mapping.",
    "model_path": "Exactly as the server is given it: part of its cache key.",
    "parallel": "Ranks of the deployment.",
    "parallel.tp": "--tp-size",
    "parallel.dp": "--dp-size: replicas, or attention-DP groups with dp_attention.",
    "parallel.dp_attention": "--enable-dp-attention",
    "parallel.ep": "--ep-size",
    "parallel.pp": "--pp-size",
    "parallel.moe_dense_tp": "--moe-dense-tp-size",
    "parallel.dp_lm_head": "--enable-dp-lm-head",
    "prefill": "Prefill sizes in tokens, as the operator passes them to the server.",
    "prefill.chunked_prefill_size": "Tokens, machine-wide under DP attention; 0 or less: off.",
    "prefill.max_prefill_tokens": "Tokens per rank; the EXTEND budget where chunked prefill is off.",
    "prefill.dynamic_chunking": "--enable-dynamic-chunking; counts with pipeline parallelism only.",
    "prefill.mixed_chunk": "--enable-mixed-chunk",
    "decode": "Decode sizes in requests.",
    "decode.max_running_requests": "Requests of the whole server.",
    "decode.cuda_graph_max_bs_decode": "Largest captured decode batch, in requests.",
    "decode.cuda_graph_bs_decode": "Captured decode batches, in requests.",
    "disaggregation": "The role of this worker in a prefill/decode pair.",
    "speculative": "Speculative decoding.",
    "speculative.algorithm": "EAGLE, EAGLE3, NEXTN, STANDALONE or NGRAM.",
    "speculative.num_steps": "Draft steps.",
    "speculative.eagle_topk": "Branches of the draft tree.",
    "speculative.num_draft_tokens": "Tokens verified at once for each request.",
    "speculative.draft_model_path": "As the server is given it.",
    "multimodal": "By default from the model's configuration; a contradiction is an error.",
    "moe": "Mixture-of-experts backends, as the server names them.",
    "moe.runner_backend": "--moe-runner-backend",
    "moe.a2a_backend": "--moe-a2a-backend",
    "flags": "Any other flag of the server, in snake_case.",
    "kv_token_capacity": "KV tokens per rank, from the server's log (max_total_num_tokens).",
    "autotune": "The server's own autotune passes.",
    "autotune.extend": "SGLANG_FLASHINFER_AUTOTUNE_EXTEND",
    "env": "Environment variables of the server.",
    "traffic": "A sample of production traffic, for tiles, coverage and time budgets.",
    "traffic.extend_lens": "Extend lengths of one batch, in tokens.",
    "traffic.histogram": "A CSV or JSONL file: prompt_len and, optionally, cached_len and count.",
    "launch": "The server's own launch line, as text or as a list of words.",
}
_FLAG_NAME = "^[a-z][a-z0-9_]*$"


def deployment_schema() -> dict[str, Any]:
    """The schema of one deployment file. Names of GPUs and models are open: a folder or a mapping does as well."""
    generated = DeploymentForm.model_json_schema(ref_template="#/definitions/{model}")
    forms = generated.pop("$defs")
    schema = {"$schema": DRAFT, "title": "autotune-plan deployment", **_plain(generated), "definitions": _plain(forms)}
    schema["properties"]["env"]["additionalProperties"] = False
    schema["properties"]["flags"]["propertyNames"] = {"pattern": _FLAG_NAME}
    schema["properties"] = {
        name: field if name in schema["required"] else _nullable(field) for name, field in schema["properties"].items()
    }
    _describe(schema["properties"], "")
    for name, form in schema["definitions"].items():
        _describe(form["properties"], f"{name.removesuffix('Form').lower()}.")
    schema["properties"]["gpu"]["examples"] = list(profiles.names("gpus"))
    schema["properties"]["model"]["examples"] = list(profiles.names("models"))
    return schema


def _plain(node: Any) -> Any:
    """Without generated titles, and without defaults: draft 7 ignores all that stands beside ``$ref``."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    return {
        name: _plain(value)
        for name, value in node.items()
        if not (name == "title" and isinstance(value, str)) and name not in ("default", "description")
    }


def _nullable(field: dict[str, Any]) -> dict[str, Any]:
    """YAML leaves null where all lines of a section are commented out."""
    null = {"type": "null"}
    return field if null in field.get("anyOf", ()) else {"anyOf": [field, null]}


def _describe(properties: dict[str, dict[str, Any]], within: str) -> None:
    for name, field in properties.items():
        path = within + name
        field["description"] = _MEANINGS[path]
        text = example_text(path)
        if text is not None:
            field["examples"] = [yaml.safe_load(text)]
