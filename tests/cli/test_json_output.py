"""``--json`` is JSON of RFC 8259 whatever the files hold: no NaN, no Infinity."""

import json
import math
import shutil

import pytest

from tests.cache.journals import write_journal
from tests.cli.conftest import EXAMPLE, PUBLISHED


def strict(text):
    def refuse(token):
        raise AssertionError(f"{token} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def damaged(tmp_path):
    """A rank file with numbers that are not finite in tactics, a policy and the stamp, and another rank's beside it."""
    content = json.loads(PUBLISHED.read_text())
    first, second, third, *_ = (key for key in content if not key.startswith("_"))
    content["_metadata"]["cudnn_version"] = math.inf
    content[first][1] = math.nan
    content[second][1] = [math.inf, {"a": -math.inf}]
    content[third][2] = ["cuda_graph_profile_replays", math.nan, "l2_cache_policy", "hot"]
    directory = tmp_path / "damaged"
    directory.mkdir()
    path = directory / "rank_tp0_pp0_dp0.json"
    path.write_text(json.dumps(content))
    (directory / "rank_tp1_pp0_dp0.json").write_text(json.dumps({**content, first: content[second]}))
    assert "NaN" in path.read_text()
    return path


def test_show(cli, damaged):
    document = strict(cli("show", damaged, "--json").out)
    assert document["metadata"]["cudnn_version"] == "Infinity"
    first, second, third, *_ = document["entries"]
    assert (first["tactic"], second["tactic"]) == ("NaN", ["Infinity", {"a": "-Infinity"}])
    assert third["policy"] == {"cuda_graph_profile_replays": "NaN", "l2_cache_policy": "hot"}


def test_diff(cli, damaged):
    document = strict(cli("diff", damaged, PUBLISHED, "--json").out)
    assert document["metadata"] == [{"field": "cudnn_version", "a": "Infinity", "b": "91900"}]
    assert document["flips"][0]["a"]["tactic"] == "NaN"
    assert document["policies"][0]["a"]["cuda_graph_profile_replays"] == "NaN"
    ranks = strict(cli("diff", "--ranks", damaged.parent, "--json").out)
    assert ranks["failed"] is True


def test_merge(cli, tmp_path):
    """The journals decide for the faster of two tactics, one of which is no number."""
    for name, tactic, us in (("a", math.nan, 12.0), ("b", 38, 10.0)):
        content = json.loads(PUBLISHED.read_text())
        key = next(key for key in content if not key.startswith("_"))
        content[key][1] = tactic
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank_tp0_pp0_dp0.json").write_text(json.dumps(content))
        candidates = [{"tactic": tactic, "median_us": us}]
        write_journal(
            tmp_path / name,
            {"metadata": content["_metadata"], "entries": {key: content[key]}, "candidates": candidates},
        )
    result = cli("merge", "-o", tmp_path / "out.json", tmp_path / "a", tmp_path / "b", "--json")
    assert [found["tactic"] for found in strict(result.out)["resolved"][0]] == [38, "NaN"]


def test_check_report_bundle_and_install(cli, damaged, cache, tmp_path):
    rank = next(cache.rglob("rank_*.json"))
    shutil.copy(damaged, rank)
    for command in ("check", "report"):
        document = strict(cli(command, EXAMPLE, "--cache-dir", cache, "--json").out)
        checked = document.get("check", document)
        saved = {field["field"]: field["saved"] for field in checked["files"][0]["stamp"]["fields"]}
        assert saved["cudnn_version"] == "Infinity"
    bundle = tmp_path / "bundle"
    packed = cli("bundle", EXAMPLE, "--cache-dir", cache, "-o", bundle, "--json")
    for text in (packed.out, (bundle / "manifest.json").read_text()):
        assert strict(text)["metadata"]["cudnn_version"] == "Infinity"
    strict(cli("install", bundle, "--cache-dir", tmp_path / "new", "--json", "--force").out)
    refused = cli("install", bundle, "--cache-dir", tmp_path / "new", "--json")
    assert (refused.code, strict(refused.out)["schema"]) == (5, "autotune-plan/error@1")


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 500 + "]" * 500], ids=["too deep to read", "too deep to write"])
@pytest.mark.parametrize("place", ["journal.jsonl", "quarantine.json", "tactic", "manifest"])
def test_deep_nesting_is_damage_like_any_other(cli, cache, tmp_path, text, place):
    """Never a traceback: a journal or a quarantine says nothing, a rank file is damaged, a bundle is refused."""
    rank = next(cache.rglob("rank_*.json"))
    bundle, options = tmp_path / "bundle", ("--cache-dir", cache)
    assert cli("bundle", EXAMPLE, *options, "-o", bundle).code == 0
    (rank.parent / ".autotune-plan").mkdir(exist_ok=True)
    if place == "tactic":
        rank.write_text(rank.read_text().replace(" 38,", f" {text},", 1))
        assert text in rank.read_text()
    elif place == "manifest":
        (bundle / "manifest.json").write_text(text)
    else:
        (rank.parent / ".autotune-plan" / place).write_text(f"{text}\n")
    codes = {
        command: cli(*command.split(), *arguments).code
        for command, arguments in {
            "check": (EXAMPLE, *options),
            "report --json": (EXAMPLE, *options),
            "show --json": (rank,),
            "diff": (rank, PUBLISHED),
            "install --force": (bundle, "--cache-dir", tmp_path / "new"),
        }.items()
    }
    damaged = 5 if place == "tactic" else 0
    assert codes == {
        "check": damaged,
        "report --json": 0,
        "show --json": damaged,
        "diff": damaged,
        "install --force": 5 if place == "manifest" else 0,
    }
