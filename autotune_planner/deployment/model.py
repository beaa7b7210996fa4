"""What an operator says about one server deployment: frozen values, nothing of a server's arithmetic.

A field that is ``None`` was not given; the server release's default then applies, which only ``engines/`` knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from autotune_planner.values import dataclass

if TYPE_CHECKING:
    from autotune_planner.deployment.traffic import PromptRow

SourceMarks = Mapping[tuple[str, ...], str]
"""Where each value was written: ``("prefill", "chunked_prefill_size") -> "dp.yaml:7"``."""


@dataclass(frozen=True)
class Gpu:
    """One GPU model. ``memory_mib`` is what ``nvidia-smi`` shows, in MiB; ``compute_capability`` is (major, minor)."""

    name: str  # the driver's name, such as "NVIDIA H200": FlashInfer stamps it into cache files
    vendor: Literal["nvidia", "amd"]
    memory_mib: int | None
    compute_capability: tuple[int, int] | None
    sm_count: int | None
    arch: str | None = None  # AMD only, such as "gfx942"
    profile: str | None = None  # name of its file in profiles/gpus, None for a mapping given by the user


TEXT_PARTS = ("thinker_config", "llm_config", "language_config", "text_config")
"""Where a wrapper keeps its language model, the first one that is there: as Hugging Face configurations name it."""


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The language model's part of a configuration; None where it has none. A thinker may nest it once more."""
    for name in TEXT_PARTS:
        part = config.get(name)
        if isinstance(part, Mapping) and part:
            inner = part.get("text_config") if name == "thinker_config" else None
            return inner if isinstance(inner, Mapping) else part
    return None


@dataclass(frozen=True)
class Model:
    """A model as its released ``config.json`` describes it. Weights are never read.

    ``config`` is the whole Hugging Face configuration; ``quantization_config`` is the merged content of
    ``hf_quant_config.json`` (ModelOpt) or ``config["quantization_config"]``, None for an unquantized checkpoint.
    """

    config: Mapping[str, Any]
    quantization_config: Mapping[str, Any] | None = None
    name: str | None = None  # profile name or the folder it came from
    source: str | None = None  # "profile", or the path of the config.json that was read

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The language model's part of a multimodal wrapper, else the whole configuration."""
        return text_part(self.config) or self.config

    @property
    def architecture(self) -> str:
        """First entry of ``architectures``, such as ``Qwen3MoeForCausalLM``; empty if the configuration has none."""
        names = self.config.get("architectures") or [""]
        return str(names[0])


@dataclass(frozen=True)
class Parallel:
    tp: int | None = None
    dp: int | None = None
    dp_attention: bool | None = None
    ep: int | None = None
    pp: int | None = None
    moe_dense_tp: int | None = None
    dp_lm_head: bool | None = None


@dataclass(frozen=True)
class Prefill:
    chunked_prefill_size: int | None = None  # as the operator passes it: machine-wide under DP attention
    max_prefill_tokens: int | None = None
    dynamic_chunking: bool | None = None
    mixed_chunk: bool | None = None


@dataclass(frozen=True)
class Decode:
    max_running_requests: int | None = None
    cuda_graph_max_bs_decode: int | None = None
    cuda_graph_bs_decode: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Speculative:
    algorithm: str | None = None
    num_steps: int | None = None
    eagle_topk: int | None = None
    num_draft_tokens: int | None = None
    draft_model_path: str | None = None


@dataclass(frozen=True)
class Moe:
    runner_backend: str | None = None
    a2a_backend: str | None = None


@dataclass(frozen=True)
class Traffic:
    """A sample of production: extend lengths of one batch, in tokens, or a histogram file and its rows."""

    extend_lens: tuple[int, ...] | None = None
    histogram: str | None = None  # path of the file
    rows: tuple[PromptRow, ...] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Deployment:
    """One server deployment, validated for form only (types, known keys, lookups); servers' rules come later."""

    gpu: Gpu
    model: Model
    model_path: str  # exactly as the server is given it: part of the server's cache key
    engine: str = "sglang"
    engine_version: str | None = None
    parallel: Parallel = Parallel()
    prefill: Prefill = Prefill()
    decode: Decode = Decode()
    disaggregation: Literal["prefill", "decode"] | None = None
    speculative: Speculative = Speculative()
    draft_model: Model | None = None
    multimodal: bool | None = None
    moe: Moe = Moe()
    flags: Mapping[str, Any] = field(default_factory=dict)  # other server flags, snake_case, as YAML values
    launch: tuple[str, ...] | None = None  # flags as typed, where they came from a launch line: then `flags` holds all
    kv_token_capacity: int | None = None  # KV tokens per rank
    autotune_extend: bool | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    traffic: Traffic = Traffic()
    marks: SourceMarks = field(default_factory=dict, repr=False, compare=False)

    def where(self, *path: str) -> str | None:
        """``file:line`` of a field, or of its nearest enclosing mapping; None when it came from no file."""
        for length in range(len(path), -1, -1):
            mark = self.marks.get(path[:length])
            if mark is not None:
                return mark
        return None
