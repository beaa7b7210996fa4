"""Flags of speculation beside the algorithm's own numbers, and captures of hidden states.

Sources: ``arg_groups/speculative_hook.py``, ``arg_groups/validation_hook.py``, ``arg_groups/model_path_hook.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from autotune_planner.engines.sglang_0_5_23.checks.subject import Rule, Subject, refuse

_CAPTURE = "--enable-return-aux-hidden-states"
_LAYERS = "--return-aux-hidden-state-layer-ids"
_BLOCK = "--speculative-use-block-verification"
_REJECTION = "--speculative-use-rejection-sampling"
_EAGLE = ("EAGLE", "EAGLE3", "STANDALONE")


def check(subject: Subject) -> None:
    refuse("validation_hook.handle_aux_hidden_state_capture", *_capture(subject))
    refuse("speculative_hook.handle_speculative_decoding", *_windows(subject))
    refuse("speculative_hook._handle_eagle_family", *_sampling(subject))
    refuse("speculative_hook._handle_ngram", *_corpus(subject))
    option = "--weight-cache-mode"
    cached = subject.get("weight_cache_mode", "off") != "off" and subject.drafts.algorithm is not None
    refuse("model_path_hook.handle_load_format", (cached, option, "does not go with speculation", f"{option} off"))


def _capture(subject: Subject) -> Iterator[Rule]:
    layers = subject.get("return_aux_hidden_state_layer_ids")
    if not subject.on("enable_return_aux_hidden_states"):
        yield layers is not None, _LAYERS, f"needs {_CAPTURE}", f"add {_CAPTURE}, or leave it out"
        return
    method = str(subject.get("speculative_algorithm", "")).upper()
    known = method in ("EAGLE3", "DFLASH", "DSPARK")
    named = "needs --speculative-algorithm EAGLE3, DFLASH or DSPARK, which names the convention"
    yield not known, _CAPTURE, named, "add --speculative-algorithm EAGLE3"
    draft = subject.get("speculative_draft_model_path")
    yield draft is not None, _CAPTURE, "captures without a draft model", "leave --speculative-draft-model-path out"
    yield subject.arguments.pp_size != 1, _CAPTURE, "does not go with pipeline parallelism", "--pp-size 1"
    yield method != "EAGLE3" and not layers, _CAPTURE, f"with {method} needs {_LAYERS}", f"add {_LAYERS} 2 4"
    if layers is not None:
        right = bool(layers) and min(layers) >= 0 and len(set(layers)) == len(layers)
        yield not right, _LAYERS, "takes layers, none negative and none twice", f"{_LAYERS} 2 4"


def _windows(subject: Subject) -> Iterator[Rule]:
    window, sink = subject.get("speculative_draft_window_size"), subject.get("speculative_draft_sink_size")
    algorithm = subject.drafts.algorithm
    option = "--speculative-draft-window-size"
    yield window is not None and window <= 0, option, f"must be positive, got {window}", f"{option} 1024"
    tokens = subject.drafts.num_draft_tokens or 0
    short = algorithm == "DFLASH" and window is not None and window < tokens
    yield short, option, f"must hold the {tokens} draft tokens, got {window}", f"{option} {tokens}"
    flag = "--speculative-draft-sink-size"
    yield sink is not None and sink < 0, flag, f"must not be negative, got {sink}", f"{flag} 4"
    yield sink is not None and window is None, flag, f"needs {option}", f"add {option} 1024"
    verified = algorithm in ("EAGLE", "EAGLE3", "DFLASH", "DSPARK")
    names = "EAGLE, EAGLE3, DFLASH and DSPARK"
    block = subject.on("speculative_use_block_verification")
    yield block and not verified, _BLOCK, f"works with {names}, not with {algorithm}", f"leave {_BLOCK} out"


def _sampling(subject: Subject) -> Iterator[Rule]:
    """Block verification of EAGLE samples by rejection too."""
    algorithm, option = subject.drafts.algorithm, _REJECTION
    asked = subject.on("speculative_use_rejection_sampling")
    if algorithm in ("EAGLE", "EAGLE3") and not asked and subject.on("speculative_use_block_verification"):
        asked, option = True, _BLOCK
    if not asked or algorithm not in _EAGLE:
        return
    yield algorithm == "STANDALONE", option, "works with EAGLE and EAGLE3 only", f"leave {option} out"
    branches = subject.drafts.eagle_topk
    yield branches != 1, option, f"needs --speculative-eagle-topk 1, and it is {branches}", "--speculative-eagle-topk 1"
    for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        flag = "--" + name.replace("_", "-")
        yield subject.get(name, 1.0) != 1.0, flag, f"does not go with {option}", f"leave {flag} out"


def _corpus(subject: Subject) -> Iterator[Rule]:
    if subject.drafts.algorithm != "NGRAM" or not subject.on("speculative_ngram_external_corpus_path"):
        return
    most = (subject.drafts.num_draft_tokens or 1) - 1
    budget, option = subject.get("speculative_ngram_external_sam_budget", 0), "--speculative-ngram-external-sam-budget"
    yield not 0 < budget <= most, option, f"must be from 1 to {most}, got {budget}", f"{option} {most}"
    tokens = subject.get("speculative_ngram_external_corpus_max_tokens", 10_000_000)
    option = "--speculative-ngram-external-corpus-max-tokens"
    yield tokens <= 0, option, f"must be positive, got {tokens}", f"{option} 10000000"
