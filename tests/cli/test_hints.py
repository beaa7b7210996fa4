"""What commands on caches say when something is missing: one exit code for one state, and what to type next."""

import re
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import EXAMPLE

H200 = Path(__file__).parents[1] / "data" / "h200"
RUN_A = H200 / "cutlass_moe_bf16_run_a.json"
STAGES = "examples/qwen3-30b-h200-pp2.yaml"


def hint(result):
    """The last line of an error."""
    assert result.out == ""
    return result.err.splitlines()[-1].removeprefix("  try: ")


@pytest.mark.parametrize("file", [EXAMPLE, STAGES])
@pytest.mark.parametrize(
    "command",
    ["show {file}", "show {file} --json", "diff {file} {other}", "diff --ranks {file}", "merge {file} -o {out}.json",
     "bundle {file} -o {out}"],
)  # fmt: skip
def test_a_cache_that_is_not_there_is_5_for_a_deployment_file(cli, tmp_path, file, command):
    words = command.format(file=file, other=RUN_A, out=tmp_path / "out").split()
    options = () if words[0] == "merge" else ("--cache-dir", tmp_path / "cache dir")
    result = cli(*words, *options)
    assert result.code == 5
    if "--json" not in words:
        where = "" if words[0] == "merge" else f" --cache-dir '{tmp_path}/cache dir'"
        assert hint(result) == f"autotune-plan run {file}{where}"
    assert not (tmp_path / "cache dir").exists()


def test_check_agrees(cli, cache, tmp_path):
    result = cli("check", EXAMPLE, "--cache-dir", tmp_path / "elsewhere")
    assert result.code == 5
    assert f"try: autotune-plan run {EXAMPLE} --cache-dir {tmp_path / 'elsewhere'}\n" in result.out


@pytest.mark.flashinfer
@pytest.mark.parametrize("command", ["bench", "prove"])
def test_what_measures_a_cache_agrees(cli, tmp_path, command):
    result = cli(command, EXAMPLE, "--device", "simulated", "--cache-dir", tmp_path / "cache")
    assert result.code == 5
    assert f"try: autotune-plan run {EXAMPLE} --cache-dir {tmp_path / 'cache'}" in result.out + result.err


@pytest.mark.parametrize("command", ["show", "bundle -o out", "check"])
def test_a_server_that_reads_no_cache_is_5_too(cli, cache, deployment, command):
    file = deployment("flags: {disable_flashinfer_autotune: true}\n")
    result = cli(*command.split(), file)
    assert result.code == 5
    assert "reads no cache" in result.out + result.err
    assert "try: autotune-plan compute" in result.out + result.err


@pytest.mark.parametrize("command", ["show {path}", "diff {path} {other}", "diff {other} {path}", "diff --ranks {path}",
                                     "merge {path} -o out.json", "install {path}"])  # fmt: skip
def test_a_path_that_is_not_there_is_2(cli, tmp_path, command):
    result = cli(*command.format(path=tmp_path / "nowhere", other=RUN_A).split())
    assert (result.code, result.err.splitlines()[0]) == (2, f"error: {tmp_path}/nowhere does not exist")
    assert hint(result).startswith(
        ("give a cache file, a directory", "make it where the cache was tuned: autotune-plan bundle")
    )


def test_what_cannot_be_read_is_5_and_to_be_made_readable(cli, cache, tmp_path, unreadable):
    rank = next(cache.rglob("rank_*.json"))
    unreadable(rank)
    place = ("--cache-dir", cache)
    for arguments in (
        ("show", rank),
        ("show", rank.parent),
        ("show", EXAMPLE, *place),
        ("diff", rank, RUN_A),
        ("bundle", EXAMPLE, *place, "-o", tmp_path / "b"),
    ):
        result = cli(*arguments)
        assert result.code == 5
        assert "Permission denied" in result.err
        assert hint(result).startswith(f"make it readable: chmod a+r {rank}")


def test_a_rank_that_is_not_there(cli, tmp_path):
    for rank in (1, 2):
        shutil.copy(RUN_A, tmp_path / f"rank_tp{rank}_pp0_dp0.json")
    assert hint(cli("show", tmp_path, "--rank", "tp0")) == "--rank tp1_pp0_dp0"
    assert cli("show", tmp_path, "--rank", "tp1_pp0_dp0").code == 0
    assert hint(cli("show", RUN_A, "--rank", "tp0")) == "leave --rank out: these names hold no rank"


def test_differing_ranks_are_compared_with_the_options_that_were_typed(cli, cache, deployment, tmp_path):
    file = deployment(parallel="{tp: 2}")
    where = ("--cache-dir", tmp_path / "cache")
    directory = Path(cli("show", file, *where).err.split("error: ")[1].split(": no rank")[0])
    directory.mkdir(parents=True)
    for tp, run in ((0, "a"), (1, "b")):
        shutil.copy(H200 / f"cutlass_moe_bf16_run_{run}.json", directory / f"rank_tp{tp}_pp0_dp0.json")
    typed = hint(cli("diff", file, RUN_A, *where))
    assert typed == f"autotune-plan diff --ranks {file} --cache-dir {tmp_path / 'cache'}"
    assert cli(*typed.split()[1:]).code == 5


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "/nowhere"),
        ("show", "/"),
        ("show", RUN_A, "--rank", "second"),
        ("show", RUN_A, "--rank", "tp0"),
        ("show", RUN_A, "--bucket", "65"),
        ("show", RUN_A, "--op", "none"),
        ("show", EXAMPLE, "--cache-dir", ""),
        ("diff", H200, RUN_A),
        ("diff", RUN_A, "--ranks", H200),
        ("merge", "-o", RUN_A, RUN_A),
        ("merge", "-o", "m5.txt", RUN_A),
        ("install", "/nowhere.tar.zst"),
        ("install", RUN_A),
        ("install", "b", "--print-k8s"),
        ("install", "b", "--cache-dir", ""),
        ("bundle", EXAMPLE, "-o", "b.zip"),
        ("bundle", EXAMPLE, "-o", "b", "--cache-dir", ""),
        ("compute", EXAMPLE, "--gpu", "H200"),
        ("compute", "--", "--tp", "8"),
        ("run", EXAMPLE, "--address", "auto"),
        ("bench", EXAMPLE, "--device", "simulated", "--sizes", "99999999"),
    ],
    ids=lambda arguments: " ".join(map(str, arguments)).replace(str(H200), ".."),
)
def test_every_error_says_where_once_and_what_to_type(cli, arguments):
    result = cli(*arguments)
    first = result.err[: result.err.index("\n  try: ")].removeprefix("error: ")
    where = re.match(r"(\S+): ", first)
    assert where is None or first.count(where[1]) == 1
