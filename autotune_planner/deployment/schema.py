"""The YAML form of a deployment: strict, immutable, unknown keys refused.

Only the form is checked here: types, names of keys, ranges that no server could mean. Servers' rules are in
``engines/``.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from autotune_planner.deployment.field_flags import FIELD_OF_FLAG, LARGEST

NAME_TAG = "<name>"
MAPPING_TAG = "<mapping>"
LINE_TAG = "<line>"
LIST_TAG = "<list>"


def _env_text(value: object) -> str:
    """The text that a shell user means: ``1`` -> "1", ``true`` -> "true"."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int)):
        return _without_nul(str(value))
    raise PydanticCustomError("env_value", "takes text, an integer, true or false")


def _without_nul(value: str) -> str:
    if "\0" in value:
        raise PydanticCustomError("nul_character", "has a NUL character")
    return value


def _version_text(value: object) -> object:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise PydanticCustomError("unquoted_version", "is read by YAML as a number")
    return value


def _capability_text(value: object) -> object:
    text = str(value) if isinstance(value, float) else value
    if isinstance(text, str) and re.fullmatch(r"[1-9][0-9]?\.[0-9]", text):
        return text
    raise PydanticCustomError("compute_capability", "takes major.minor")


def _flag_name(name: str) -> str:
    plain = name.lstrip("-").replace("-", "_")
    if plain in FIELD_OF_FLAG:
        raise PydanticCustomError("flag_with_field", "has a field of its own", {"field": FIELD_OF_FLAG[plain]})
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise PydanticCustomError("flag_name", "is not a server flag in snake_case", {"snake_case": _snake_case(plain)})
    return name


def _snake_case(name: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_") or "page_size"


def _name_or_mapping(value: object) -> str | None:
    if isinstance(value, str):
        return NAME_TAG
    return MAPPING_TAG if isinstance(value, (dict, BaseModel)) else None


def _line_or_list(value: object) -> str | None:
    if isinstance(value, str):
        return LINE_TAG
    return LIST_TAG if isinstance(value, list) else None


_NameOrMapping = Discriminator(
    _name_or_mapping, custom_error_type="name_or_mapping", custom_error_message="takes a name or a mapping"
)
_LineOrList = Discriminator(
    _line_or_list, custom_error_type="line_or_list", custom_error_message="takes a command line or a list of its words"
)

Text = Annotated[str, Field(min_length=1), BeforeValidator(lambda v: _without_nul(v) if isinstance(v, str) else v)]
Int = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Version = Annotated[Text, BeforeValidator(_version_text)]
Capability = Annotated[Text, BeforeValidator(_capability_text), WithJsonSchema({"type": ["string", "number"]})]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
EnvValue = Annotated[str, BeforeValidator(_env_text), WithJsonSchema({"type": ["string", "integer", "boolean"]})]
FlagName = Annotated[str, BeforeValidator(lambda v: _flag_name(v) if isinstance(v, str) else v)]


class _Form(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class GpuForm(_Form):
    """A GPU that is not in profiles/gpus. Memory is what nvidia-smi shows, in MiB."""

    name: Text
    vendor: Literal["nvidia", "amd"] = "nvidia"
    arch: Text | None = None
    memory_mib: Positive | None = None
    compute_capability: Capability | None = None
    sm_count: Positive | None = None

    @model_validator(mode="after")
    def _known_architecture(self) -> GpuForm:
        if self.vendor == "nvidia" and self.compute_capability is None:
            raise PydanticCustomError("no_capability", "has no compute_capability, which is part of the cache path")
        if self.vendor == "amd" and self.arch is None:
            raise PydanticCustomError("no_arch", "has no arch, by which kernels choose their tiles")
        return self


class ParallelForm(_Form):
    """Ranks of the deployment."""

    tp: Positive | None = None
    dp: Positive | None = None
    dp_attention: bool | None = None
    ep: Positive | None = None
    pp: Positive | None = None
    moe_dense_tp: Positive | None = None
    dp_lm_head: bool | None = None


class PrefillForm(_Form):
    """Prefill sizes in tokens, as the operator passes them to the server."""

    chunked_prefill_size: Int | None = None
    max_prefill_tokens: Int | None = None
    dynamic_chunking: bool | None = None
    mixed_chunk: bool | None = None


class DecodeForm(_Form):
    """Decode sizes in requests."""

    max_running_requests: Int | None = None
    cuda_graph_max_bs_decode: Int | None = None
    cuda_graph_bs_decode: list[Int] | None = Field(default=None, min_length=1, max_length=65536)


class SpeculativeForm(_Form):
    """Speculative decoding."""

    algorithm: Text | None = None
    num_steps: Int | None = None
    eagle_topk: Int | None = None
    num_draft_tokens: Int | None = None
    draft_model_path: Text | None = None


class MoeForm(_Form):
    """Mixture-of-experts backends, as the server names them."""

    runner_backend: Text | None = None
    a2a_backend: Text | None = None


class AutotuneForm(_Form):
    """The server's own autotune passes."""

    extend: bool | None = None


class TrafficForm(_Form):
    """A sample of production traffic: extend lengths of one batch in tokens, or a histogram file."""

    extend_lens: list[Count] | None = Field(default=None, min_length=1, max_length=1_000_000)
    histogram: Text | None = Field(
        default=None, description="CSV or JSON lines with prompt_len, cached_len and count; relative to this file"
    )

    @model_validator(mode="after")
    def _one_source(self) -> TrafficForm:
        if self.extend_lens is not None and self.histogram is not None:
            raise PydanticCustomError("two_samples", "has both extend_lens and histogram")
        return self


class DeploymentForm(_Form):
    """One server deployment, as its YAML file says it."""

    engine: Text = "sglang"
    engine_version: Version | None = None
    gpu: Annotated[Annotated[Text, Tag(NAME_TAG)] | Annotated[GpuForm, Tag(MAPPING_TAG)], _NameOrMapping]
    model: (
        Annotated[Annotated[Text, Tag(NAME_TAG)] | Annotated[dict[str, Any], Tag(MAPPING_TAG)], _NameOrMapping] | None
    ) = None
    model_path: Text | None = None
    parallel: ParallelForm = ParallelForm()
    prefill: PrefillForm = PrefillForm()
    decode: DecodeForm = DecodeForm()
    disaggregation: Literal["prefill", "decode"] | None = None
    speculative: SpeculativeForm = SpeculativeForm()
    multimodal: bool | None = None
    moe: MoeForm = MoeForm()
    flags: dict[FlagName, Any] = {}
    kv_token_capacity: Positive | None = None
    autotune: AutotuneForm = AutotuneForm()
    env: dict[EnvName, EnvValue] = {}
    traffic: TrafficForm = TrafficForm()
    launch: Annotated[Annotated[Text, Tag(LINE_TAG)] | Annotated[list[Text], Tag(LIST_TAG)], _LineOrList] | None = None

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, content: object) -> object:
        """A section whose lines are all commented out is null in YAML."""
        if not isinstance(content, dict):
            return content
        return {key: value for key, value in content.items() if value is not None or key not in cls.model_fields}
