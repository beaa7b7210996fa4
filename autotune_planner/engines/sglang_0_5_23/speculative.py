"""Speculative decoding: algorithm, draft tokens, running requests. Source: ``arg_groups/speculative_hook.py``."""

from __future__ import annotations

from dataclasses import replace

from autotune_planner import profiles
from autotune_planner.deployment.model import Model
from autotune_planner.engines.sglang_0_5_23 import block_drafts
from autotune_planner.engines.sglang_0_5_23.arguments import PROFILE, ServerArguments
from autotune_planner.engines.sglang_0_5_23.attention import Attention
from autotune_planner.engines.sglang_0_5_23.rejection import rejected
from autotune_planner.values import dataclass

_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "FROZEN_KV_MTP", "DFLASH", "DSPARK")
_WITHOUT_RULES = {
    "UNO": "take another algorithm: UNO drafts with adapters of the target",
    "NONE": "leave --speculative-algorithm out",
}
_WIDE_TREE = ("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM")  # measured defaults 5, 4, 8
_FROZEN_DRAFTS = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
_NGRAM_DRAFT_TOKENS = 12
_PAGED_TREE_BACKENDS = ("flashinfer", "fa3", "triton")
_ADAPTIVE_STEPS = (0, 1, 3, 5, 7)  # of all batch sizes, by default


@dataclass(frozen=True)
class SpeculativeResolved:
    """All None, and the requests as given, without speculation. Tokens per request, steps and branches."""

    algorithm: str | None
    num_steps: int | None
    eagle_topk: int | None
    num_draft_tokens: int | None
    max_running_requests: int | None


def without_capture(arguments: ServerArguments) -> ServerArguments:
    """Where hidden states are returned, the algorithm only names their convention. Source:
    ``validation_hook.handle_aux_hidden_state_capture``."""
    return replace(arguments, speculative_algorithm=None) if arguments.enable_return_aux_hidden_states else arguments


def resolve_speculative(
    arguments: ServerArguments, target: Model, attention: Attention, draft: Model | None
) -> SpeculativeResolved:
    """``draft`` is the draft model where its configuration is here. Source: ``handle_speculative_decoding``."""
    if arguments.speculative_algorithm is None:
        return SpeculativeResolved(
            None,
            arguments.speculative_num_steps,
            arguments.speculative_eagle_topk,
            arguments.speculative_num_draft_tokens,
            arguments.max_running_requests,
        )
    algorithm = _algorithm(arguments.speculative_algorithm, draft)
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
    given = (arguments.speculative_num_steps, arguments.speculative_eagle_topk, arguments.speculative_num_draft_tokens)
    if algorithm == "NGRAM":
        found: tuple[int | None, int | None, int | None] = _ngram(arguments, attention)
    elif algorithm in ("DFLASH", "DSPARK"):
        found = (1, 1, block_drafts.draft_tokens(algorithm, arguments, target, draft))
    elif algorithm == "FROZEN_KV_MTP":
        found = given
    else:
        found = _eagle(_adaptive(arguments, algorithm), algorithm, target.architecture, attention)
    return SpeculativeResolved(algorithm, *found, requests)


def _algorithm(given: str, draft: Model | None) -> str:
    """Gemma4's assistants keep the target's KV cache. Sources: ``SpeculativeAlgorithm.from_string``,
    ``_resolve_speculative_algorithm_alias``."""
    name = given.upper()
    source = "speculative.spec_info.SpeculativeAlgorithm"
    if name in _WITHOUT_RULES:
        rule = f"{name} is known to the release, but this version has no rules for it"
        raise rejected("--speculative-algorithm", rule, _WITHOUT_RULES[name], source=source)
    if name not in _ALGORITHMS:
        rule = f"the release does not know {given}"
        raise rejected("--speculative-algorithm", rule, f"one of {', '.join(_ALGORITHMS)}", source=source)
    frozen = draft is not None and draft.architecture in _FROZEN_DRAFTS
    if frozen and name == "EAGLE3":
        source = "speculative_hook._resolve_speculative_algorithm_alias"
        rule = "Gemma4 assistants do not draft for EAGLE3"
        raise rejected("--speculative-algorithm", rule, "--speculative-algorithm EAGLE", source=source)
    if name in ("EAGLE", "NEXTN"):
        return "FROZEN_KV_MTP" if frozen else "EAGLE"
    return name


def _adaptive(arguments: ServerArguments, algorithm: str) -> ServerArguments:
    """Steps that change at run time start in the middle of the candidates.

    Sources: ``_maybe_disable_adaptive``, ``_init_adaptive_speculative_params``.
    """
    fixed = (
        algorithm not in ("EAGLE", "EAGLE3")
        or arguments.speculative_eagle_topk not in (None, 1)
        or arguments.attn_dp_size > 1
        or arguments.enable_multi_layer_eagle
        or arguments.enable_two_batch_overlap
        or arguments.enable_pdmux
    )
    if not arguments.speculative_adaptive or fixed:
        return arguments
    steps = arguments.speculative_num_steps
    steps = _ADAPTIVE_STEPS[len(_ADAPTIVE_STEPS) // 2] if steps is None else steps
    if steps not in _ADAPTIVE_STEPS and arguments.speculative_adaptive_config is None:
        listed = ", ".join(map(str, _ADAPTIVE_STEPS))
        rule = f"{steps} is not among the adaptive steps {listed}"
        source = "speculative_hook._init_adaptive_speculative_params"
        raise rejected("--speculative-num-steps", rule, "--speculative-num-steps 3", source=source)
    return replace(arguments, speculative_num_steps=steps, speculative_eagle_topk=1)


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


def _ngram(arguments: ServerArguments, attention: Attention) -> tuple[int, int, int]:
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
    if algorithm not in ("EAGLE", "DSPARK"):
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
