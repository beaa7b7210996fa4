"""Fields of the deployment file as an operator sees them: keys of a section, what a wrong key means, examples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args

from autotune_planner.deployment.field_flags import FIELD_OF_FLAG
from autotune_planner.deployment.suggestions import nearest

if TYPE_CHECKING:
    from pydantic import BaseModel

FieldPath = tuple[str, ...]
"""A place in the file: ``("prefill", "chunked_prefill_size")``."""

_EXAMPLES = {
    "engine": "sglang",
    "engine_version": '"0.5.23"',
    "gpu": "H200",
    "gpu.name": "NVIDIA H200",
    "gpu.vendor": "nvidia",
    "gpu.arch": "gfx942",
    "gpu.memory_mib": "143771",
    "gpu.compute_capability": '"9.0"',
    "gpu.sm_count": "132",
    "model": "qwen3-30b-a3b",
    "model_path": "/models/Qwen3-30B-A3B",
    "parallel": "{tp: 8}",
    "prefill": "{chunked_prefill_size: 8192}",
    "prefill.chunked_prefill_size": "8192",
    "prefill.max_prefill_tokens": "16384",
    "decode": "{max_running_requests: 256}",
    "decode.max_running_requests": "256",
    "decode.cuda_graph_max_bs_decode": "256",
    "decode.cuda_graph_bs_decode": "[1, 2, 4, 8]",
    "disaggregation": "prefill, or leave the line out",
    "speculative": "{algorithm: EAGLE}",
    "speculative.algorithm": "EAGLE",
    "speculative.num_steps": "3",
    "speculative.eagle_topk": "1",
    "speculative.num_draft_tokens": "4",
    "speculative.draft_model_path": "/models/draft",
    "moe": "{runner_backend: flashinfer_cutlass}",
    "moe.runner_backend": "flashinfer_cutlass",
    "moe.a2a_backend": "none",
    "flags": "{page_size: 64}",
    "kv_token_capacity": "1000000",
    "autotune": "{extend: true}",
    "env": "{SGLANG_CACHE_DIR: /cache}",
    "traffic": "{extend_lens: [8192, 1, 1, 1]}",
    "traffic.extend_lens": "[8192, 1, 1, 1]",
    "traffic.histogram": "lens.csv",
    "launch": "sglang serve --model-path /models/Qwen3-30B-A3B",
}


def example(path: FieldPath) -> str:
    """A right line for a field; for an element of a list, for the list."""
    while len(path) > 1 and path[-1].isdigit():
        path = path[:-1]
    return f"{path[-1]}: {_EXAMPLES.get('.'.join(path), '8')}"


def example_text(field: str) -> str | None:
    """A right value of a field as YAML, by its dotted name; None where its kind says enough."""
    return None if field == "disaggregation" else _EXAMPLES.get(field)


def known_keys(section: FieldPath) -> tuple[str, ...]:
    """Keys that a section of the file may have; of the whole file for the empty path."""
    from autotune_planner.deployment.schema import DeploymentForm  # pydantic, which a plan may need nothing of

    current: type[BaseModel] | None = DeploymentForm
    for part in section:
        current = _form_in(current.model_fields[part].annotation) if current and part in current.model_fields else None
    return tuple(current.model_fields) if current else ()


def meant_field(key: str, section: FieldPath) -> FieldPath | None:
    """The field that an unknown key means: of that exact name anywhere, else the nearest in its section, else anywhere.

    A field of the same section is given by its key alone.
    """
    elsewhere = dict(_fields_by_key())
    if key in elsewhere:
        return elsewhere[key]
    here = nearest(key, known_keys(section))
    if here is not None:
        return (here,)
    # Stricter: a server flag without a field, such as page_size, must not be taken for tp_size.
    other = nearest(key, elsewhere, cutoff=0.8)
    return None if other is None else elsewhere[other]


def line_for(field: FieldPath, value: object = ...) -> str:
    """How a field is written: ``parallel: {tp: 8}``; a collection or no value is left open."""
    text = "..." if value is ... or isinstance(value, (dict, list)) else _as_yaml(value)
    return f"{field[0]}: {{{field[1]}: {text}}}" if len(field) == 2 else f"{field[0]}: {text}"


def dotted(path: FieldPath) -> str:
    """``traffic.extend_lens[1]``."""
    return "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path).lstrip(".")


def shown(value: object) -> str:
    """A value as YAML would show it, shortened."""
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    if isinstance(value, int) and value.bit_length() > 256:
        return "a huge integer"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, (str, int, float, type(None))) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _as_yaml(value: object) -> str:
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z/][A-Za-z0-9_./-]*", value)
    return str(value) if plain and value not in ("true", "false", "null") else shown(value)


def _fields_by_key() -> Iterator[tuple[str, FieldPath]]:
    """Each server flag, and each key inside a section, with the field that it means."""
    from autotune_planner.deployment.schema import DeploymentForm

    for name, field in DeploymentForm.model_fields.items():
        form = _form_in(field.annotation)
        if form is not None and name != "gpu":
            yield from ((key, (name, key)) for key in form.model_fields)
    yield from ((flag, path) for flag, path in FIELD_OF_FLAG.items() if flag not in DeploymentForm.model_fields)


def _form_in(annotation: Any) -> type[BaseModel] | None:
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((form for part in get_args(annotation) if (form := _form_in(part)) is not None), None)
