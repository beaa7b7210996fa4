"""LoRA adapters. Source: ``arg_groups/lora_hook.py``."""

from __future__ import annotations

from collections.abc import Iterator

from autotune_planner.engines.sglang_0_5_23.checks.subject import Rule, Subject, refuse

_SPECULATION = (None, "NGRAM", "EAGLE", "EAGLE3", "DFLASH", "DSPARK")


def check(subject: Subject) -> None:
    refuse("lora_hook.check_lora_server_args", *_lora(subject))
    refuse("lora_hook.check_lora_moe_runner_args", *_lora_runner(subject))


def _lora(subject: Subject) -> Iterator[Rule]:
    batch = subject.get("max_loras_per_batch", 8)
    yield batch < 1, "--max-loras-per-batch", f"must be positive, got {batch}", "--max-loras-per-batch 8"
    paths = subject.get("lora_paths", ())
    if not (subject.on("enable_lora") or paths):
        return
    algorithm = subject.drafts.algorithm
    lone = algorithm not in _SPECULATION
    yield lone, "--speculative-algorithm", f"LoRA does not go with {algorithm}", "leave one of the two out"
    speculates = algorithm not in (None, "NGRAM")
    adaptive = subject.on("speculative_adaptive") and speculates
    yield adaptive, "--speculative-adaptive", "does not go with LoRA", "leave it out"
    loaded = subject.get("max_loaded_loras")
    overlap = subject.on("enable_lora_overlap_loading") and (loaded is None or loaded > 2 * batch)
    option = "--enable-lora-overlap-loading"
    yield overlap, option, f"needs --max-loaded-loras of at most {2 * batch}", f"add --max-loaded-loras {2 * batch}"
    modules = subject.get("lora_target_modules", ())
    mixed = "all" in modules and len(set(modules)) > 1
    yield mixed, "--lora-target-modules", "all stands alone", "--lora-target-modules all"
    known = paths or (subject.on("max_lora_rank") and modules)
    needed = "add --max-lora-rank 16 --lora-target-modules all, or --lora-paths NAME=PATH"
    yield not known, "--enable-lora", "needs adapters, or the rank and target modules of those to come", needed
    few = loaded is not None and (loaded < batch or loaded < len(paths))
    rule = f"{loaded} is less than the {batch} adapters of a batch, or than the {len(paths)} given ones"
    yield few, "--max-loaded-loras", rule, f"--max-loaded-loras {max(batch, len(paths))}"
    wait = subject.get("lora_drain_wait_threshold", 0.0)
    option = "--lora-drain-wait-threshold"
    yield wait < 0, option, f"must not be negative, got {wait}", f"{option} 0"


def _lora_runner(subject: Subject) -> Iterator[Rule]:
    draft = str(subject.get("speculative_moe_runner_backend", ""))
    option = "--speculative-moe-runner-backend"
    drafts = subject.drafts.algorithm is not None
    yield drafts and draft.startswith("lora"), option, "draft models have no adapters", f"leave {option} out"
    runner = subject.experts.runner_backend
    if not runner.startswith("lora"):
        return
    option = "--moe-runner-backend"
    enabled = subject.on("enable_lora") or subject.on("lora_paths")
    yield not enabled, option, f"{runner} needs --enable-lora", "add --enable-lora, or --moe-runner-backend auto"
    triton = subject.get("lora_backend", "csgmv") == "triton_v2"
    yield not triton, option, f"{runner} needs --lora-backend triton_v2", "add --lora-backend triton_v2"
    quantization = subject.experts.quantization
    fits = quantization in (None, "fp8") or (quantization, runner) == ("modelopt_fp4", "lora_marlin")
    placed = subject.get("init_expert_location", "trivial") == "trivial" and not subject.on("enable_eplb")
    placed = placed and subject.arguments.ep_num_redundant_experts == 0
    for broken, what in (
        (subject.has_attention_dp, "attention data parallelism"),
        (subject.on("enable_pdmux"), "PD multiplexing"),
        (subject.arguments.enable_two_batch_overlap, "two-batch overlap"),
        (not fits, f"quantization {quantization}"),
        (subject.arguments.moe_a2a_backend != "none", "an all-to-all backend"),
        (subject.on("ep_join_mode"), "elastic expert parallelism"),
        (not placed, "experts that are placed or replicated"),
    ):
        yield broken, option, f"{runner} does not go with {what}", "--moe-runner-backend auto"
