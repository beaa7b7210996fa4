"""Algorithms whose draft model proposes a block of tokens at once: DFLASH and DSPARK.

Sources: ``arg_groups/speculative_hook.py``, ``speculative/dflash_utils.py``,
``speculative/dspark_components/dspark_config.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune_planner.deployment.model import Model
from autotune_planner.engines.sglang_0_5_23.arguments import ServerArguments
from autotune_planner.engines.sglang_0_5_23.rejection import rejected
from autotune_planner.errors import DeploymentError

_DFLASH_BLOCK = 16
_DSPARK_BLOCK = 7
_BUNDLED = ("dspark_block_size", "dspark_markov_rank", "dspark_noise_token_id", "dspark_target_layer_ids")
_TOKENS = "--speculative-num-draft-tokens"
_PATH = "--speculative-draft-model-path"


def draft_tokens(algorithm: str, arguments: ServerArguments, target: Model, draft: Model | None) -> int:
    """Tokens that the target verifies for each request.

    ``DeploymentError`` where the server refuses, and where only the draft's configuration says it, which is not here.
    """
    if algorithm == "DFLASH":
        _check_dflash(arguments)
        return _dflash_tokens(arguments, draft)
    bundled = any(target.config.get(key) is not None for key in _BUNDLED)
    _check_dspark(arguments, bundled=bundled)
    own = arguments.speculative_draft_model_path is None
    return _dspark_tokens(arguments, target if own else draft)


def _check_dflash(arguments: ServerArguments) -> None:
    source = "speculative_hook._handle_dflash"
    if arguments.attn_dp_size > 1 and not arguments.enable_dp_lm_head:
        rule = "DFLASH with attention data parallelism needs the LM head on every group"
        raise rejected("--enable-dp-lm-head", rule, "add --enable-dp-lm-head", source=source)
    if arguments.attn_dp_size > 1 and arguments.attn_cp_size != 1:
        rule = "DFLASH with attention data parallelism does not go with context parallelism"
        raise rejected("--attn-cp-size", rule, "--attn-cp-size 1", source=source)
    if arguments.pp_size != 1:
        raise rejected("--pp-size", "DFLASH does not go with pipeline parallelism", "--pp-size 1", source=source)
    if arguments.speculative_draft_model_path is None:
        raise rejected(_PATH, "DFLASH needs a draft model", f"{_PATH} DIR", source=source)


def _dflash_tokens(arguments: ServerArguments, draft: Model | None) -> int:
    block, tokens = arguments.speculative_dflash_block_size, arguments.speculative_num_draft_tokens
    option = "--speculative-dflash-block-size"
    source = "speculative_hook._handle_dflash"
    if block is not None:
        if block <= 0:
            raise rejected(option, f"must be positive, got {block}", f"{option} 16", source=source)
        if tokens not in (None, block):
            rule = f"differs from {_TOKENS} {tokens}: DFLASH verifies whole blocks"
            raise rejected(option, rule, f"{option} {tokens}", source=source)
        return block
    if tokens is not None:
        return tokens
    config = _known(draft).config
    stated = _part(config, "dflash_config").get("block_size", config.get("block_size"))
    return _whole(stated) or _DFLASH_BLOCK


def _check_dspark(arguments: ServerArguments, *, bundled: bool) -> None:
    source = "speculative_hook._handle_dspark"
    if arguments.attn_dp_size > 1:
        if not arguments.enable_dp_lm_head:
            rule = "DSPARK with attention data parallelism needs the LM head on every group"
            raise rejected("--enable-dp-lm-head", rule, "add --enable-dp-lm-head", source=source)
        if arguments.moe_a2a_backend not in ("none", "megamoe", "mori"):
            rule = f"DSPARK with attention data parallelism does not work with {arguments.moe_a2a_backend}"
            raise rejected("--moe-a2a-backend", rule, "--moe-a2a-backend none", source=source)
        if arguments.attn_cp_size > 1:
            rule = "DSPARK with attention data parallelism does not go with context parallelism"
            raise rejected("--attn-cp-size", rule, "--attn-cp-size 1", source=source)
    if arguments.pp_size != 1 and arguments.disaggregation_mode != "prefill":
        rule = "DSPARK with pipeline parallelism is for prefill workers only"
        raise rejected("--pp-size", rule, "--pp-size 1", source=source)
    if arguments.speculative_draft_model_path is None and not bundled:
        rule = "DSPARK needs a draft model: the target brings none along"
        hint = f"{_PATH} DIR, such as the dspark folder of the target"
        raise rejected(_PATH, rule, hint, source=source)


def _dspark_tokens(arguments: ServerArguments, draft: Model | None) -> int:
    """One more than the block: the last token of the target is verified too."""
    block, tokens = arguments.speculative_dspark_block_size, arguments.speculative_num_draft_tokens
    option = "--speculative-dspark-block-size"
    source = "speculative_hook._handle_dspark"
    if block is not None and block <= 0:
        raise rejected(option, f"must be positive, got {block}", f"{option} {_DSPARK_BLOCK}", source=source)
    if block is None:
        config = _known(draft).config
        flash = _part(config, "dflash_config").get("block_size", config.get("block_size"))
        stated = config.get("dspark_block_size")
        block = _whole(flash if stated is None else stated)
    if block is None and tokens is None:
        block = _DSPARK_BLOCK
    if block is not None and tokens not in (None, block + 1):
        rule = f"must be the block of {block} and one more, got {tokens}"
        raise rejected(_TOKENS, rule, f"{_TOKENS} {block + 1}", source=source)
    found = tokens if block is None else block + 1
    if found is None or found < 2:
        raise rejected(_TOKENS, f"must be 2 or more, got {found}", f"{_TOKENS} 8", source=source)
    return found


def _known(draft: Model | None) -> Model:
    if draft is None:
        raise DeploymentError(
            "the draft model's configuration says how many tokens it drafts, and it is not on this machine",
            code="unknown-model",
            where=_PATH,
            hint=f"{_TOKENS} N, or --model-dir DIR, a folder that holds the draft's folder with its config.json",
        )
    return draft


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = config.get(name)
    return part if isinstance(part, Mapping) else {}


def _whole(value: Any) -> int | None:
    """The server warns of any other value and takes its default."""
    return value if type(value) is int and value > 0 else None
