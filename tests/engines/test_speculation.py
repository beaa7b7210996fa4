"""Speculation beyond EAGLE: block drafts, adaptive steps, captured hidden states. Source: ``speculative_hook``."""

from dataclasses import replace

import pytest

from autotune_planner.deployment.model import Speculative
from autotune_planner.deployment.models import model_from_config
from autotune_planner.engines import resolve
from autotune_planner.errors import DeploymentError, ExitCode
from tests.engines.test_rules import BASE

DRAFT = {"architectures": ["DFlashDraftModel"], "hidden_size": 8, "vocab_size": 8}


def resolved(algorithm, config=None, flags=None, **speculative):
    draft = None if config is None else model_from_config({**DRAFT, **config})
    path = None if config is None else "/models/draft"
    given = Speculative(algorithm=algorithm, draft_model_path=path, **speculative)
    return resolve(replace(BASE, speculative=given, draft_model=draft, flags=flags or {}))


def numbers(found):
    arguments = found.arguments
    return (
        arguments.speculative_num_steps,
        arguments.speculative_eagle_topk,
        arguments.speculative_num_draft_tokens,
        arguments.max_running_requests,
    )


@pytest.mark.parametrize(
    ("algorithm", "config", "flags", "tokens"),
    [
        ("DFLASH", {"dflash_config": {"block_size": 8}}, {}, 8),
        ("DFLASH", {"block_size": 10}, {}, 10),
        ("DFLASH", {}, {}, 16),
        ("DFLASH", {"block_size": 10}, {"speculative_dflash_block_size": 4}, 4),
        ("DSPARK", {"block_size": 5}, {}, 6),  # the block and one more
        ("DSPARK", {"dspark_block_size": 4, "block_size": 5}, {}, 5),
        ("DSPARK", {}, {}, 8),
        ("DSPARK", {"block_size": 5}, {"speculative_dspark_block_size": 3}, 4),
    ],
)
def test_blocks(algorithm, config, flags, tokens):
    found = resolved(algorithm, config, flags)
    assert numbers(found) == (1, 1, tokens, 48)
    draft = next(one for one in found.passes if one.name == "draft")
    assert draft.tokens_per_request == (tokens if algorithm == "DFLASH" else tokens - 1)


@pytest.mark.parametrize(
    ("algorithm", "where"),
    [("DFLASH", "--speculative-draft-model-path"), ("DSPARK", "--speculative-draft-model-path")],
)
def test_a_block_drafter_needs_its_draft(algorithm, where):
    with pytest.raises(DeploymentError) as caught:
        resolved(algorithm)
    assert caught.value.where == where


def test_a_draft_that_is_not_here_may_be_said():
    given = Speculative(algorithm="DFLASH", draft_model_path="/models/elsewhere")
    with pytest.raises(DeploymentError, match="not on this machine"):
        resolve(replace(BASE, speculative=given))
    assert numbers(resolve(replace(BASE, speculative=replace(given, num_draft_tokens=8)))) == (1, 1, 8, 48)


@pytest.mark.parametrize("algorithm", ["UNO", "NONE"])
def test_known_to_the_release_without_rules_here(algorithm):
    with pytest.raises(DeploymentError, match="known to the release, but this version has no rules for it") as caught:
        resolved(algorithm)
    assert caught.value.exit_code is ExitCode.INVALID_DEPLOYMENT


def test_unknown_to_the_release():
    with pytest.raises(DeploymentError, match="the release does not know FOO"):
        resolved("FOO")


def test_adaptive_steps_start_in_the_middle():
    """Candidates 0, 1, 3, 5, 7: the third, and one token more than steps."""
    assert numbers(resolved("EAGLE", flags={"speculative_adaptive": True})) == (3, 1, 4, 48)
    assert numbers(resolved("EAGLE", flags={"speculative_adaptive": True}, num_steps=7)) == (7, 1, 8, 48)
    with pytest.raises(DeploymentError, match="4 is not among the adaptive steps"):
        resolved("EAGLE", flags={"speculative_adaptive": True}, num_steps=4)


def test_a_frozen_cache_keeps_the_numbers_as_given():
    assert numbers(resolved("FROZEN_KV_MTP", num_steps=3, eagle_topk=1, num_draft_tokens=4)) == (3, 1, 4, 48)
    assistant = {"architectures": ["Gemma4AssistantForCausalLM"]}
    assert resolved("NEXTN", assistant).arguments.speculative_algorithm == "FROZEN_KV_MTP"


def test_captured_hidden_states_only_borrow_the_name():
    found = resolved("EAGLE3", flags={"enable_return_aux_hidden_states": True})
    assert found.arguments.speculative_algorithm is None
    assert found.arguments.max_running_requests is None


def test_weights_quantized_at_load_are_not_the_checkpoint():
    found = resolve(replace(BASE, moe=replace(BASE.moe, runner_backend=None), flags={"quantization": "fp8"}))
    assert found.no_autotune_reason.endswith("the weights are quantized to fp8 when they are loaded")
    assert "checkpoint" not in found.no_autotune_reason
