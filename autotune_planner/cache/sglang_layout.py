"""Where SGLang looks for a cache file.

Source: SGLang 0.5.23, ``model_executor/runner/flashinfer_autotune.py:flashinfer_autotune_cache_path``.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from autotune_planner.engines.resolved import DEFAULT_CACHE_DIR, CachePlace, Rank

KEY_PART_NAMES = (
    "model_path",
    "dtype",
    "quantization",
    "moe_runner_backend",
    "tp_size",
    "pp_size",
    "attn_dp_size",
    "moe_ep_size",
    "hf_config class",
    "candidate_selection",
    "skip_ops",
)
"""What the parts of ``CachePlace.key_parts`` are, in their order."""


def cache_key_hash(parts: tuple[str, ...]) -> str:
    """Directory name of one deployment: the first 16 hex digits of the SHA-256 of the parts joined by ``|``."""
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


def cache_directory(place: CachePlace) -> Path:
    """``<cache dir>/flashinfer/autotune/<FlashInfer version>/sm<major><minor>/<hash>``."""
    major, minor = place.compute_capability
    return (
        cache_root(place)
        / "flashinfer"
        / "autotune"
        / place.flashinfer_version
        / f"sm{major}{minor}"
        / cache_key_hash(place.key_parts)
    )


def cache_root(place: CachePlace) -> Path:
    """``cache_dir`` as the server takes it: only its own default is below the home directory.

    Source: ``environ.SGLANG_CACHE_DIR``, whose value is used as it is set.
    """
    return Path(os.path.expanduser(place.cache_dir) if place.cache_dir == DEFAULT_CACHE_DIR else place.cache_dir)


def rank_file_name(rank: Rank) -> str:
    return f"rank_tp{rank.tp}_pp{rank.pp}_dp{rank.dp}.json"


def rank_file(place: CachePlace, rank: Rank) -> Path:
    """The file that one rank opens."""
    return cache_directory(place) / rank_file_name(rank)
