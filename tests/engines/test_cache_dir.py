"""SGLANG_CACHE_DIR as the server takes it: ``Path(envs.SGLANG_CACHE_DIR.get())``, nothing expanded but its default."""

import pytest

from autotune_planner.cache.sglang_layout import cache_directory
from autotune_planner.deployment.load import deployment_from
from autotune_planner.engines import resolve


def directory(monkeypatch, value):
    monkeypatch.setenv("HOME", "/home/op")
    env = {} if value is None else {"SGLANG_CACHE_DIR": value}
    content = {"gpu": "H200", "model": "qwen3-30b-a3b", "env": env, "moe": {"runner_backend": "flashinfer_cutlass"}}
    resolved = resolve(deployment_from(content))
    warned = "cache-dir-relative" in [notice.code for notice in resolved.notices]
    return str(cache_directory(resolved.cache_place)).partition("/flashinfer")[0] or "/", warned


@pytest.mark.parametrize(
    ("value", "root", "warned"),
    [
        (None, "/home/op/.cache/sglang", False),
        ("/cache", "/cache", False),
        ("/cache/~x", "/cache/~x", False),
        ("~/c", "~/c", True),
        ("c", "c", True),
        ("", "flashinfer", True),
    ],
)
def test_where_the_server_looks(monkeypatch, value, root, warned):
    found, said = directory(monkeypatch, value)
    assert found.split("/autotune")[0] == root
    assert said is warned


def test_a_home_that_is_no_path(monkeypatch):
    monkeypatch.setenv("HOME", "~")
    resolved = resolve(deployment_from({"gpu": "H200", "model": "qwen3-30b-a3b"}))
    assert str(cache_directory(resolved.cache_place)).startswith("~/.cache/sglang")
