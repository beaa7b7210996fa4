"""``report`` from the command line: forms, places, exit codes. What a page shows is tested in ``tests/report``."""

import json

import pytest

from tests.cli.conftest import EXAMPLE


@pytest.mark.parametrize(
    ("out", "form", "begins"),
    [
        ("r.html", [], "<!doctype html>"),
        ("r.md", [], "## "),
        ("r.txt", [], "<!doctype html>"),
        ("r.txt", ["--format", "md"], "## "),
    ],
)
def test_forms(cli, cache, tmp_path, out, form, begins):
    result = cli("report", EXAMPLE, "--cache-dir", cache, "-o", tmp_path / out, *form)
    assert (result.code, result.out) == (0, "")
    assert "will use this cache" in result.err
    text = (tmp_path / out).read_text()
    assert text.startswith(begins)
    assert "42 of 42" in text
    assert "not measured: no journal" in text


def test_without_a_file_it_goes_to_stdout(cli, cache):
    assert cli("report", EXAMPLE, "--cache-dir", cache).out.startswith("<!doctype html>")
    assert cli("report", EXAMPLE, "--cache-dir", cache, "--format", "md").out.startswith("## ")


def test_json_alone_and_beside_a_page(cli, cache, tmp_path):
    result = cli("report", EXAMPLE, "--cache-dir", cache, "--json")
    document = json.loads(result.out)
    assert document["schema"] == "autotune-plan/report@1"
    assert document["check"]["used"]
    assert document["groups"][0]["buckets"] == {"tuned": 42, "default": 0, "absent": 0}
    beside = cli("report", EXAMPLE, "--cache-dir", cache, "--json", "-o", tmp_path / "r.md")
    assert json.loads(beside.out) == document
    assert (tmp_path / "r.md").exists()


def test_a_cache_that_is_not_used_is_reported_all_the_same(cli, cache, tmp_path):
    result = cli("report", EXAMPLE, "--cache-dir", tmp_path / "elsewhere", "--format", "md")
    assert result.code == 0
    assert "will not use this cache" in result.out
    assert "not in the cache" in result.out


def test_errors(cli, cache, tmp_path):
    refused = cli("report", EXAMPLE, "--cache-dir", cache, "-o", tmp_path / "absent" / "r.html")
    assert refused.code == 4
    assert "cannot be written" in refused.err
    assert f"try: mkdir -p {tmp_path / 'absent'}" in refused.err
    assert f"try: -o {tmp_path / 'report.html'}" in cli("report", EXAMPLE, "--cache-dir", cache, "-o", tmp_path).err
    assert cli("report", EXAMPLE, "--", "--tp", "4").code == 2
    assert cli("report", EXAMPLE, "--format", "pdf").code == 2
    assert cli("report", tmp_path / "absent.yaml").code == 3


def test_missing_libraries(cli, cache, monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = cli("report", EXAMPLE, "--cache-dir", cache, "-o", tmp_path / "r.html", "--json")
    assert result.code == 4
    assert json.loads(result.out)["code"] == "report-libraries"
    assert not (tmp_path / "r.html").exists()


@pytest.mark.flashinfer
def test_what_a_simulated_run_measured(cli, deployment, tmp_path):
    """Run, then report: every bucket has the time of its pick and of the default, as the journal has them."""
    file = deployment(prefill="{chunked_prefill_size: 64}", decode="{max_running_requests: 32}")
    cache = tmp_path / "cache"
    assert cli("run", file, "--device", "simulated", "--cache-dir", cache).code == 0
    (journal,) = cache.rglob("journal.jsonl")
    records = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    document = json.loads(cli("report", file, "--cache-dir", cache, "--json", "-o", tmp_path / "r.html").out)
    picks = {pick["key"]: pick for layer in document["groups"][0]["layers"] for pick in layer["picks"]}
    assert len(records) == len(picks) == 14  # buckets 1, 2, 4 .. 64 of two GEMMs
    for record in records:
        (key,) = record["entries"]
        pick = picks[key]
        assert (pick["tactic"], pick["time_us"], pick["fallback_us"]) == (
            record["pick"], record["pick_us"], record["fallback_us"],
        )  # fmt: skip
        assert pick["candidates"] == len(record["candidates"])
        runner_up = record["runner_up"]
        assert (pick["runner_up"]["tactic"], pick["runner_up"]["time_us"]) == (runner_up["tactic"], runner_up["us"])
    page = (tmp_path / "r.html").read_text()
    assert f"{document['groups'][0]['gain']['mean']:.2f}x in the geometric mean of 14 buckets" in page
