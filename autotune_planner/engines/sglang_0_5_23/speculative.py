"""Speculative decoding: algorithm, draft tokens, running requests. Source: ``arg_groups/speculative_hook.py``."""

from __future__ import annotations

from autotune_planner import profiles
from autotune_planner.engines.sglang_0_5_23.arguments import PROFILE, ServerArguments
from autotune_planner.engines.sglang_0_5_23.attention import Attention
from autotune_planner.engines.sglang_0_5_23.rejection import rejected
from autotune_planner.values import dataclass

_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM")
_EAGLE_FAMILY = ("EAGLE", "EAGLE3", "STANDALONE")
_WIDE_TREE = ("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM")  # measured defaults 5, 4, 8
_NGRAM_DRAFT_TOKENS = 12
_PAGED_TREE_BACKENDS = ("flashinfer", "fa3", "triton")


@dataclass(frozen=True)
class SpeculativeResolved:
    """All None, and the requests as given, without speculation. Tokens per request, steps and branches."""

    algorithm: str | None
    num_steps: int | None
    eagle_topk: int | None
    num_draft_tokens: int | None
    max_running_requests: int | None


def resolve_speculative(arguments: ServerArguments, architecture: str, attention: Attention) -> SpeculativeResolved:
    """Source: ``handle_speculative_decoding``, ``_handle_eagle_family``, ``_handle_ngram``."""
    given = arguments.speculative_algorithm
    if given is None:
        return SpeculativeResolved(
            None,
            arguments.speculative_num_steps,
            arguments.speculative_eagle_topk,
            arguments.speculative_num_draft_tokens,
            arguments.max_running_requests,
        )
    algorithm = given.upper()
    if algorithm not in _ALGORITHMS:
        raise rejected(
            "--speculative-algorithm",
            f"the release does not know {given}",
            f"one of {', '.join(_ALGORITHMS)}",
            source="speculative.spec_info.SpeculativeAlgorithm.from_string",
        )
    algorithm = "EAGLE" if algorithm == "NEXTN" else algorithm
    if algorithm in ("STANDALONE", "NGRAM") and arguments.attn_dp_size > 1:
        raise rejected(
            "--speculative-algorithm",
            f"{algorithm} does not support attention data parallelism",
            "leave out --enable-dp-attention, or take EAGLE",
            source="speculative_hook",
        )
    requests = arguments.max_running_requests
    if requests is None:
        requests = profiles.load("engines", PROFILE)["speculative_max_running_requests"]
    resolve = _ngram if algorithm == "NGRAM" else _eagle
    steps, topk, draft_tokens = resolve(arguments, algorithm, architecture, attention)
    return SpeculativeResolved(algorithm, steps, topk, draft_tokens, requests)


def _eagle(
    arguments: ServerArguments, algorithm: str, architecture: str, attention: Attention
) -> tuple[int, int, int | None]:
    steps, topk = arguments.speculative_num_steps, arguments.speculative_eagle_topk
    draft_tokens = arguments.speculative_num_draft_tokens
    source = "speculative_hook._handle_eagle_family"
    if steps is None:
        if topk is not None or draft_tokens is not None:
            raise rejected(
                "--speculative-num-steps",
                "must be given next to --speculative-eagle-topk or --speculative-num-draft-tokens",
                "give all three, or none of them",
                source=source,
            )
        wide = algorithm != "STANDALONE" and architecture in _WIDE_TREE
        steps, topk, draft_tokens = (5, 4, 8) if wide else (3, 1, 4)
    if topk is None:
        raise rejected(
            "--speculative-eagle-topk",
            "must be given next to --speculative-num-steps: the server compares None with a number and dies",
            "--speculative-eagle-topk 1",
            source=source,
        )
    if topk > 1 and "trtllm_mha" in (attention.prefill, attention.decode):
        raise rejected(
            "--speculative-eagle-topk",
            f"trtllm_mha supports 1 only, got {topk}",
            "--speculative-eagle-topk 1, or another --attention-backend",
            source=source,
        )
    if topk == 1:
        draft_tokens = steps + 1
    if topk > 1 and attention.page_size > 1 and attention.base not in _PAGED_TREE_BACKENDS:
        raise rejected(
            "--speculative-eagle-topk",
            f"{topk} branches with page_size {attention.page_size} need one of {', '.join(_PAGED_TREE_BACKENDS)}",
            "--page-size 1",
            source=source,
        )
    return steps, topk, draft_tokens


def _ngram(arguments: ServerArguments, algorithm: str, architecture: str, attention: Attention) -> tuple[int, int, int]:
    topk = arguments.speculative_ngram_max_bfs_breadth
    draft_tokens = arguments.speculative_num_draft_tokens
    draft_tokens = _NGRAM_DRAFT_TOKENS if draft_tokens is None else draft_tokens
    steps = arguments.speculative_num_steps
    if topk > 1 and attention.page_size > 1 and attention.base != "flashinfer":
        raise rejected(
            "--page-size",
            f"NGRAM with page_size {attention.page_size} needs the flashinfer attention backend",
            "--page-size 1, or --attention-backend flashinfer",
            source="speculative_hook._handle_ngram",
        )
    return draft_tokens // topk if steps is None else steps, topk, draft_tokens


def check_pipeline(algorithm: str | None, pp_size: int, disaggregation_mode: str) -> None:
    """Source: ``validation_hook.check_pipeline_parallel_compat``."""
    if pp_size == 1 or algorithm is None:
        return
    source = "validation_hook.check_pipeline_parallel_compat"
    if algorithm != "EAGLE":
        raise rejected(
            "--speculative-algorithm",
            f"pipeline parallelism supports EAGLE only, got {algorithm}",
            "--pp-size 1, or --speculative-algorithm EAGLE",
            source=source,
        )
    if disaggregation_mode != "prefill":
        raise rejected(
            "--pp-size",
            "pipeline parallelism with speculation is for prefill workers only",
            "--disaggregation-mode prefill, or --pp-size 1",
            source=source,
        )
