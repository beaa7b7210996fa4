"""``show``: the document, whole tables compared as text, directories of ranks, and output that is never shortened."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from rich.console import Console

from autotune_planner.cache.contents import Content, Place, v1_content
from autotune_planner.cache.v1 import Entry, V1File, read_v1, render_v1
from autotune_planner.cli.show import show
from autotune_planner.errors import CacheFileError, UsageError
from autotune_planner.report.cache_document import cache_document, cache_json
from autotune_planner.report.cache_view import cache_view

DATA = Path(__file__).parents[1] / "data"
H200 = DATA / "h200"
METADATA = {"flashinfer_version": "0.7.2", "gpu": "NVIDIA H200"}


def content_of(file: V1File) -> Content:
    return v1_content(Place("v1", (Path("cache.json"),)), file)


def text_of(file: V1File) -> str:
    console = Console(file=io.StringIO(), width=120, highlight=False)
    console.print(cache_view(content_of(file)), soft_wrap=True)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def titles(*keys: str) -> list[str]:
    entries = tuple(Entry(key, "R", 0, None) for key in keys)
    lines = text_of(V1File(METADATA, entries, {}, None)).splitlines()
    return [line for line in lines if line.endswith(("bucket)", "buckets)"))]


@pytest.mark.parametrize("name", ["mm_bf16_and_bmm_fp8", "cutlass_moe_bf16_run_b"])
def test_whole_output(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(H200)
    show(Path(f"{name}.json"))
    assert capsys.readouterr().out == (DATA / "golden" / f"show_{name}.txt").read_text()


@pytest.mark.parametrize("path", sorted(H200.glob("*.json")), ids=lambda path: path.stem)
def test_document(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = json.loads(path.read_text())
    show(path, json=True)
    document = json.loads(capsys.readouterr().out)
    assert document == cache_document(v1_content(Place("v1", (path,)), read_v1(path)))
    assert list(document) == ["schema", "format", "path", "metadata", "entries"]
    assert document["schema"] == "autotune-plan/cache@1"
    assert document["format"] == "v1"
    assert document["path"] == str(path)
    assert document["metadata"] == raw["_metadata"]
    assert [entry["key"] for entry in document["entries"]] == [key for key in raw if not key.startswith("_")]
    for entry in document["entries"]:
        runner, tactic, policy = raw[entry["key"]]
        assert (entry["runner"], entry["tactic"]) == (runner, tactic)
        assert entry["policy"] == {policy[0]: policy[1], policy[2]: policy[3]}
        assert entry["time_us"] is None
        assert entry["fallback_us"] is None


def test_one_entry_of_the_document() -> None:
    key = "('fp8_gemm', 'R', ((1, 512, 64), (), (1, -1, 64)), (torch.bfloat16, 'x', None, inf, (1, <E.A: 1>)))"
    content = content_of(V1File(None, (Entry(key, "R", [0, []], None),), {}, None))
    document = cache_document(content)
    assert document["metadata"] == {}
    assert document["entries"] == [
        {
            "key": key,
            "custom_op": "fp8_gemm",
            "runner": "R",
            "profile": [[1, 512, 64], [], [1, -1, 64]],
            "bucket": 512,
            "extras": ["torch.bfloat16", "x", None, "inf", [1, "<E.A: 1>"]],
            "tactic": [0, []],
            "policy": None,
            "time_us": None,
            "fallback_us": None,
        }
    ]
    assert json.loads("\n".join(cache_json(content))) == document


def test_no_entries() -> None:
    empty = V1File(None, (), {}, None)
    assert json.loads("\n".join(cache_json(content_of(empty))))["entries"] == []
    assert text_of(empty).splitlines()[1:] == [
        "  no environment stamp: FlashInfer loads it unchecked",
        "  no entries: the server would tune everything at start",
    ]
    assert "without fields" in text_of(V1File({}, (), {}, None))


def test_a_layer_is_one_table_wherever_its_keys_hold_m() -> None:
    trtllm = "('flashinfer::moe', 'R', (({m}, 7168), ({m}, 8), (56, {m}), (0,)), ('Module', 8, 256))"
    assert titles(*(trtllm.format(m=m) for m in (8, 56, 256))) == ["flashinfer::moe  Mx7168 Mx8 56xM  (3 buckets)"]
    cublaslt = "('bf16_gemm', 'R', (({m}, 64), (64, 32), (-1, 32)), ({m}, 32, 64, torch.bfloat16, 0))"
    assert titles(*(cublaslt.format(m=m) for m in (32, 64))) == ["bf16_gemm  Mx64 64x32  (2 buckets)"]
    assert titles(cublaslt.format(m=64)) == ["bf16_gemm  Mx64 64x32  (1 bucket)"]


def test_layers_that_differ_in_extras_alone_show_them() -> None:
    moe = "('moe', 'R', (({m}, 64), (8, 64, 64)), (torch.bfloat16, {k}, True))"
    assert titles(*(moe.format(m=m, k=k) for k in (4, 8) for m in (4, 8))) == [
        "moe  Mx64 8x64x64  (torch.bfloat16, 4, True)  (2 buckets)",
        "moe  Mx64 8x64x64  (torch.bfloat16, 8, True)  (2 buckets)",
    ]


def test_a_directory_of_equal_ranks_is_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1, 2, 10):
        shutil.copy(H200 / "mm_bf16.json", tmp_path / f"rank_tp{rank}_pp0_dp0.json")
    (tmp_path / ".autotune-plan").mkdir()
    show(tmp_path)
    out, err = capsys.readouterr()
    names = " ".join(f"rank_tp{rank}_pp0_dp0.json" for rank in (0, 1, 2, 10))
    assert f"4 identical rank files: {names}\n" in out
    assert out.count("bf16_gemm") == 1
    assert err == ""
    show(tmp_path, json=True)
    assert json.loads(capsys.readouterr().out)["path"] == str(tmp_path / "rank_tp0_pp0_dp0.json")


def test_a_directory_of_differing_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, run in enumerate("aab"):
        shutil.copy(H200 / f"cutlass_moe_bf16_run_{run}.json", tmp_path / f"rank_tp{rank}_pp0_dp0.json")
    show(tmp_path)
    out, err = capsys.readouterr()
    assert "2 identical rank files: rank_tp0_pp0_dp0.json rank_tp1_pp0_dp0.json\n" in out
    assert "rank_tp2_pp0_dp0.json\n" in out
    assert out.count("trtllm::fused_moe::gemm1") == 2
    assert "2 different contents" in err
    with pytest.raises(UsageError) as caught:
        show(tmp_path, json=True)
    assert caught.value.code == "ranks-differ"


def test_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no"):
        show(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        show(tmp_path / "absent.json")


def test_a_damaged_key_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    path.write_text(json.dumps({"('op', 'R', ((1,": ["R", 0]}))
    with pytest.raises(CacheFileError, match="not a key") as caught:
        show(path)
    assert caught.value.where == str(path)


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autotune_planner", "show", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
        timeout=60,
    )


def long_cache(tmp_path: Path) -> tuple[Path, list[str]]:
    """A file whose lines are longer than any terminal, and texts that must be shown whole."""
    runner, tactic = "Runner" * 30, list(range(60))
    keys = [f"('op', '{runner}', (({m}, 64), ({'4096, ' * 30}4096)), ())" for m in (1, 2)]
    path = tmp_path / "cache.json"
    path.write_bytes(render_v1(METADATA, {key: Entry(key, runner, tactic, None) for key in keys}))
    return path, [runner, str(tactic), "x".join(["4096"] * 31)]


def test_no_terminal_no_colour_and_nothing_is_shortened(tmp_path: Path) -> None:
    path, texts = long_cache(tmp_path)
    done = command(str(path), COLUMNS="40", NO_COLOR="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "…" not in done.stdout
    for text in texts:
        assert any(text in line for line in done.stdout.splitlines())


def test_a_narrow_terminal_shortens_nothing(tmp_path: Path) -> None:
    path, texts = long_cache(tmp_path)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    shown = [sys.executable, "-m", "autotune_planner", "show", str(path)]
    with subprocess.Popen(shown, stdout=theirs, stderr=theirs, env=environment | {"NO_COLOR": "1"}) as process:
        os.close(theirs)
        output = b""
        try:
            while chunk := os.read(ours, 65536):
                output += chunk
        except OSError:  # Linux reports the end of the other side as an error
            pass
    os.close(ours)
    assert process.returncode == 0
    for text in texts:
        assert any(text in line for line in output.decode().splitlines())


def test_errors_go_to_the_exit_code(tmp_path: Path) -> None:
    damaged = tmp_path / "cache.json"
    damaged.write_text("{")
    done = command(str(damaged))
    assert done.returncode == 5
    assert done.stdout == ""
    assert f"{damaged}:1:2" in done.stderr.replace("\n", "")
    assert command(str(tmp_path / "absent")).returncode == 2


def test_a_hundred_thousand_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = {}
    for entry in read_v1(H200 / "cutlass_moe_bf16_run_a.json").entries:
        for layer in range(2400):
            text = entry.text.replace(", 2048)", f", {2048 + 64 * layer})", 1)
            entries[text] = Entry(text, entry.runner, entry.tactic, entry.policy)
    path = tmp_path / "big.json"
    path.write_bytes(render_v1(METADATA, entries))
    start = time.perf_counter()
    show(path)
    assert time.perf_counter() - start < 9  # under three seconds; the slack is for a loaded machine
    assert len(capsys.readouterr().out.splitlines()) > 100_000
