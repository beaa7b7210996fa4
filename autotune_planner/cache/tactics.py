"""Entries whose tactic no tuner chose: of a form that the runner does not take, or none that the run beside measured.

FlashInfer loads any tactic and hands it to the runner as it is. Source of the forms: FlashInfer 0.7.2,
``get_valid_tactics`` and ``forward`` of each runner, in ``gemm/gemm_base.py``, ``fused_moe/core.py``,
``fused_moe/backends/trtllm/sm100_runner.py`` and ``fused_moe/cute_dsl/tuner.py``. The default is -1 for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune_planner.cache.v1 import Entry
from autotune_planner.errors import CacheFileError

_DEFAULT = -1
_CUTLASS_MOE, _TRTLLM_MOE = "trtllm::fused_moe::", "flashinfer::trtllm_"  # their runners are both named MoERunner
_INDEXED = ("Cublas", "Cutlass", "TrtllmGemmRunner", "TGV", "TinyGemm")  # the tactic is a place in a list
_LISTED = ("CuteDslFusedMoE",)  # the tactics of both GEMMs


@dataclass(frozen=True)
class Doubt:
    """An entry, and what is wrong with its tactic."""

    entry: Entry
    reason: str


def doubts_of(entries: Iterable[Entry], candidates: Mapping[str, frozenset[str]]) -> tuple[Doubt, ...]:
    """``candidates`` are the tactics that runs measured for each key, as JSON texts. Texts that are no keys are passed
    over: they are never looked up."""
    return tuple(_doubts(entries, candidates))


def _doubts(entries: Iterable[Entry], candidates: Mapping[str, frozenset[str]]) -> Iterator[Doubt]:
    for entry in entries:
        try:
            reason = _wrong_form(entry)
        except CacheFileError:
            continue
        measured = candidates.get(entry.text)
        if reason is None and measured is not None and json.dumps(entry.tactic) not in measured:
            reason = f"is none of the {len(measured)} that the run in the journal beside it measured"
        if reason is not None:
            yield Doubt(entry, reason)


def _wrong_form(entry: Entry) -> str | None:
    """Why a runner could not take the tactic, None where it could by its form."""
    tactic, custom_op = entry.tactic, entry.key.custom_op
    if type(tactic) is int and tactic < 0:
        return None if tactic == _DEFAULT else "is negative, as only the default is, -1"
    if custom_op.startswith(_CUTLASS_MOE) or entry.runner.startswith(_INDEXED):
        takes, sound = "a number", type(tactic) is int
    elif custom_op.startswith(_TRTLLM_MOE):
        takes, sound = "a list of two numbers", isinstance(tactic, list) and _is_pair(tactic)
    elif entry.runner.startswith(_LISTED):
        takes, sound = "a list", isinstance(tactic, list) and bool(tactic)
    else:
        takes, sound = "a number or a list", type(tactic) is int or (isinstance(tactic, list) and bool(tactic))
    return None if sound else f"is none of {entry.runner}, which takes {takes}"


def _is_pair(tactic: list[Any]) -> bool:
    return len(tactic) == 2 and all(type(number) is int for number in tactic)
