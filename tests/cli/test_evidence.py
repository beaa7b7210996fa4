"""Ops that no real run has confirmed say so in every output; a whole Blackwell path on the simulated device."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.flashinfer, pytest.mark.xdist_group("simulated-run")]

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "deepseek-v3-nextn-b200-tp8.yaml"
SIMULATED = ("--device", "simulated")
OP = "flashinfer::trtllm_fp8_block_scale_moe"
SAID = f"{OP}: keys verified, not run on hardware"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """``(cache directory, what run printed)``."""
    cache_dir = tmp_path_factory.mktemp("cache")
    command = (sys.executable, "-m", "autotune_planner", "run", FILE, *SIMULATED, "--cache-dir", cache_dir)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return cache_dir, done.stdout


@pytest.fixture
def cache_dir(published):
    return published[0]


def said(text):
    return SAID in " ".join(text.split())


def test_run(published):
    _, out = published
    assert said(out)
    assert f"22 profiles of {OP} were timed by FlashInfer's own loop" in " ".join(out.split())
    assert "Over the untuned default" in out


@pytest.mark.parametrize("command", ["prove", "bench"])
def test_on_the_device(cli, cache_dir, command):
    """Tactics of these kernels are pairs, which FlashInfer reads as tuples and its runner may list as lists."""
    sizes = ("--sizes", "64") if command == "bench" else ()
    result = cli(command, FILE, *SIMULATED, "--cache-dir", cache_dir, *sizes)
    assert result.code == 0
    assert said(result.out)
    document = cli(command, FILE, *SIMULATED, "--cache-dir", cache_dir, *sizes, "--json")
    assert json.loads(document.out)["evidence"] == [SAID]


def test_show(cli, cache_dir):
    """On stderr, so that JSON and CSV stay what they are."""
    for form in ((), ("--json",), ("--csv",)):
        result = cli("show", FILE, "--cache-dir", cache_dir, *form)
        assert result.code == 0
        assert said(result.err)
        assert not said(result.out)


def test_check_and_report(cli, cache_dir, tmp_path):
    assert said(cli("check", FILE, "--cache-dir", cache_dir).out)
    page = tmp_path / "report.html"
    cli("report", FILE, "--cache-dir", cache_dir, "-o", page)
    assert SAID in page.read_text()
    assert SAID in cli("report", FILE, "--cache-dir", cache_dir, "--format", "md").out


def test_compute_says_why_a_key_goes_beyond_the_server(cli):
    assert said(cli("compute", FILE).out)
    keys = json.loads(cli("compute", FILE, "--keys", "--json").out)["keys"]
    reasons = {key["reason"] for key in keys if not key["tuned_by_server"]}
    assert len(reasons) == 1
    assert "above the rows of the server's passes" in reasons.pop()
    assert {key["reason"] for key in keys if key["tuned_by_server"]} == {"at start"}
