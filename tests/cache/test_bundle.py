"""Bundles: what goes in comes out, whatever the container; what was tampered with never reaches a disk."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune_planner.cache import archive
from autotune_planner.cache.bundle import Bundle, read_bundle, write_bundle
from autotune_planner.errors import CacheFileError, NotPossibleHereError, PlannerError, UsageError

H200 = Path(__file__).parents[1] / "data" / "h200"
RANK = (H200 / "published_qwen3-30b-h200-tp1.json").read_bytes()
DIRECTORY = "flashinfer/autotune/0.7.2/sm90/0123456789abcdef"
FILES = {
    "rank_tp0_pp0_dp0.json": RANK,
    "rank_tp1_pp0_dp0.json": RANK,
    ".autotune-plan/journal.jsonl": b'{"schema": "autotune-plan/journal@2"}\n',
    ".autotune-plan/plan.json": b"{}",
    ".autotune-plan/quarantine.json": b"{}",
}
BUNDLE = Bundle(DIRECTORY, FILES, {"tool": "autotune-plan 0"})
FORMS = ["bundle.tar.gz", "bundle.tar.zst", "bundle"]


def write(bundle: Bundle, out: Path) -> Path:
    if out.name.endswith("zst"):
        pytest.importorskip("zstandard")
    write_bundle(bundle, out)
    return out


def refusal(path: Path) -> str:
    with pytest.raises(CacheFileError) as caught:
        read_bundle(path)
    assert caught.value.code == "bundle"
    assert caught.value.where == str(path)
    return caught.value.message


@pytest.mark.parametrize("name", FORMS)
def test_what_goes_in_comes_out(tmp_path: Path, name: str) -> None:
    found = read_bundle(write(BUNDLE, tmp_path / name))
    assert found == BUNDLE
    assert found.ranks == ("rank_tp0_pp0_dp0.json", "rank_tp1_pp0_dp0.json")
    assert found.metadata == json.loads(RANK)["_metadata"]


def test_the_manifest(tmp_path: Path) -> None:
    out = write(BUNDLE, tmp_path / "bundle")
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["schema"], manifest["directory"]) == ("autotune-plan/bundle@1", DIRECTORY)
    assert manifest["provenance"] == {"tool": "autotune-plan 0"}
    assert {item["path"]: (item["bytes"], item["sha256"]) for item in manifest["files"]} == {
        f"{DIRECTORY}/{name}": (len(content), hashlib.sha256(content).hexdigest()) for name, content in FILES.items()
    }
    assert (out / DIRECTORY / "rank_tp1_pp0_dp0.json").read_bytes() == RANK  # usable as SGLANG_CACHE_DIR


@pytest.mark.parametrize("name", FORMS[:2])
def test_equal_bundles_are_equal_files_without_owner_or_time(tmp_path: Path, name: str) -> None:
    first, second = (write(BUNDLE, tmp_path / folder / name) for folder in "ab")
    assert first.read_bytes() == second.read_bytes()
    if name.endswith("gz"):
        with tarfile.open(first) as tar:
            assert {(m.uid, m.gid, m.uname, m.mtime, m.mode) for m in tar} == {(0, 0, "", 0, 0o644)}


@pytest.mark.parametrize("name", ["b.zip", "b.tar", "b.tar.xz", "b.gz"])
def test_another_kind_of_archive(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no kind of bundle"):
        write_bundle(BUNDLE, tmp_path / name)


def test_without_the_zstd_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "in.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    for act in (lambda: write_bundle(BUNDLE, tmp_path / "out.tar.zst"), lambda: read_bundle(tmp_path / "in.tar.zst")):
        with pytest.raises(NotPossibleHereError) as caught:
            act()
        assert caught.value.code == "zstandard-missing"
        assert "autotune-planner[zstd]" in str(caught.value.hint)
    assert [path.name for path in tmp_path.iterdir()] == ["in.tar.zst"]


Members = list[tuple[tarfile.TarInfo, bytes]]


def members(bundle: Bundle = BUNDLE) -> Members:
    contents = {f"{bundle.directory}/{name}": content for name, content in bundle.files.items()}
    contents["manifest.json"] = json.dumps(bundle.manifest()).encode()
    return [(member(name, len(content)), content) for name, content in contents.items()]


def member(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info


def tar_of(path: Path, contents: Members) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, content in contents:
            tar.addfile(info, io.BytesIO(content))
    return path


ESCAPES = [
    member("../evil.json", 2),
    member("/etc/evil.json", 2),
    member(f"{DIRECTORY}/../rank_tp0_pp0_dp0.json", 2),
    member("flashinfer/autotune/../sm90/0123456789abcdef/rank_tp0_pp0_dp0.json", 2),
    member(f"{DIRECTORY}/rank_tp0_pp0_dp0.json/../../evil", 2),
    member(f"{DIRECTORY}\\rank_tp9_pp0_dp0.json", 2),
    member(f"{DIRECTORY}/evil.json", 2),
    member(f"{DIRECTORY}/rank_tp9_pp0_dp0.json\n", 2),
    member(f"{DIRECTORY}/rank_tp9_pp0_dp0.json", 0, tarfile.SYMTYPE, "/etc/passwd"),
    member(f"{DIRECTORY}/rank_tp9_pp0_dp0.json", 0, tarfile.LNKTYPE, "manifest.json"),
    member(f"{DIRECTORY}/rank_tp9_pp0_dp0.json", 0, tarfile.CHRTYPE),
    member(f"{DIRECTORY}/rank_tp9_pp0_dp0.json", 0, tarfile.FIFOTYPE),
]


@pytest.mark.parametrize("escape", ESCAPES, ids=lambda info: f"{info.name!r} {info.type!r}")
def test_an_archive_with_anything_else_is_refused(tmp_path: Path, escape: tarfile.TarInfo) -> None:
    path = tar_of(tmp_path / "b.tar.gz", [(escape, b"{}"[: escape.size]), *members()])
    assert "which is no" in refusal(path)
    assert [left.name for left in tmp_path.iterdir()] == ["b.tar.gz"]


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    assert "twice" in refusal(tar_of(tmp_path / "b.tar.gz", [*members(), members()[0]]))


def test_folders_and_leading_dots_are_as_tar_writes_them(tmp_path: Path) -> None:
    dotted = [(member(f"./{info.name}", info.size), content) for info, content in members()]
    path = tar_of(tmp_path / "b.tar.gz", [(member("./flashinfer", kind=tarfile.DIRTYPE), b""), *dotted])
    assert read_bundle(path).files == FILES


def test_more_than_any_cache_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(BUNDLE, tmp_path / "b.tar.gz")
    monkeypatch.setattr(archive, "LARGEST", len(RANK) - 1)
    assert "larger than any cache" in refusal(path)


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest.pop(name)


def file_field(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["files"][0].__setitem__(name, value)


TAMPERED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "sum": (file_field("sha256", "0" * 64), "does not verify"),
    "size": (file_field("bytes", 1), "does not verify"),
    "negative size": (file_field("bytes", -1), "no path, bytes and sha256"),
    "path": (file_field("path", "../../etc/passwd"), "no file of a bundle"),
    "no path": (file_field("path", None), "no path, bytes and sha256"),
    "unlisted": (lambda manifest: manifest["files"].pop(), "does not list"),
    "listed and absent": (
        lambda manifest: manifest["files"].append(
            {"path": f"{DIRECTORY}/rank_tp9_pp0_dp0.json", "bytes": 0, "sha256": ""}
        ),
        "lacks",
    ),
    "no files": (without("files"), "lists no files"),
    "another directory": (lambda manifest: manifest.update(directory=DIRECTORY.replace("sm90", "sm100")), "files in"),
    "a directory that is a list": (lambda manifest: manifest.update(directory=[1]), "files in"),
    "another schema": (lambda manifest: manifest.update(schema="x"), "is not autotune-plan/bundle@1"),
}


@pytest.mark.parametrize(("tamper", "says"), TAMPERED.values(), ids=TAMPERED)
def test_a_tampered_manifest(tmp_path: Path, tamper: Callable[[dict[str, Any]], Any], says: str) -> None:
    manifest = BUNDLE.manifest()
    tamper(manifest)
    data = json.dumps(manifest).encode()
    others = [pair for pair in members() if pair[0].name != "manifest.json"]
    assert says in refusal(tar_of(tmp_path / "b.tar.gz", [*others, (member("manifest.json", len(data)), data)]))


def test_no_rank_file(tmp_path: Path) -> None:
    files = {name: content for name, content in FILES.items() if name.startswith(".")}
    bundle = Bundle(DIRECTORY, {**files, "rank_tp0_pp0_dp0.json": RANK}, {})
    manifest = bundle.manifest()
    manifest["files"] = [item for item in manifest["files"] if "rank_" not in item["path"]]
    data = json.dumps(manifest).encode()
    contents = [(member(f"{DIRECTORY}/{name}", len(content)), content) for name, content in files.items()]
    path = tar_of(tmp_path / "b.tar.gz", [*contents, (member("manifest.json", len(data)), data)])
    assert "no rank file" in refusal(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04", gzip.compress(b"no tar at all" * 99, mtime=0), b"\x1f\x8b", gzip.compress(b"", mtime=0)],
)
def test_a_file_that_is_no_bundle(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "b.tar.gz"
    path.write_bytes(content)
    refusal(path)
    with pytest.raises(UsageError, match="does not exist"):
        read_bundle(tmp_path / "absent.tar.gz")


def test_a_changed_directory(tmp_path: Path) -> None:
    out = write(BUNDLE, tmp_path / "bundle")
    (out / DIRECTORY / "another.json").write_text("{}")  # what a server leaves there
    assert read_bundle(out) == BUNDLE
    (out / DIRECTORY / "rank_tp1_pp0_dp0.json").write_bytes(RANK + b" ")
    assert "does not verify" in refusal(out)
    (out / DIRECTORY / "rank_tp1_pp0_dp0.json").unlink()
    assert "lacks" in refusal(out)
    (out / "manifest.json").write_text("[")
    assert "not JSON" in refusal(out)
    (out / "manifest.json").unlink()
    assert "no manifest.json" in refusal(out)


def test_a_directory_with_a_link_out_of_it(tmp_path: Path) -> None:
    out = write(BUNDLE, tmp_path / "bundle")
    (tmp_path / "outside.json").write_bytes(RANK)
    rank = out / DIRECTORY / "rank_tp1_pp0_dp0.json"
    rank.unlink()
    rank.symlink_to(tmp_path / "outside.json")
    assert "leads elsewhere" in refusal(out)


def test_a_fifo_in_a_directory_does_not_hang(tmp_path: Path) -> None:
    out = write(BUNDLE, tmp_path / "bundle")
    (out / DIRECTORY / "rank_tp1_pp0_dp0.json").unlink()
    os.mkfifo(out / DIRECTORY / "rank_tp1_pp0_dp0.json")
    assert "no regular file" in refusal(out)


def test_ranks_of_one_stage_that_disagree() -> None:
    other = (H200 / "cutlass_moe_bf16_run_a.json").read_bytes()
    spaced = json.dumps(json.loads(RANK)).encode()  # other bytes, the same object
    stages = {"rank_tp0_pp0_dp0.json": RANK, "rank_tp1_pp0_dp0.json": spaced, "rank_tp0_pp1_dp0.json": other}
    assert Bundle(DIRECTORY, stages, {}).disagreeing() == ()
    differing = {**stages, "rank_tp1_pp1_dp0.json": RANK}
    assert Bundle(DIRECTORY, differing, {}).disagreeing() == ("rank_tp1_pp1_dp0.json",)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Containers as written, and a tar whose bytes can be damaged below the compression."""
    folder = tmp_path_factory.mktemp("sound")
    written = [write(BUNDLE, folder / "b.tar.gz").read_bytes()]
    return [*written, gzip.decompress(written[0])]


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_a_damaged_archive_is_refused_or_sound(
    tmp_path_factory: pytest.TempPathFactory, sound: list[bytes], seed: int
) -> None:
    """Ten damaged files an example. One that still reads is the bundle: each of its bytes is under a sum."""
    rng = random.Random(seed)
    path = tmp_path_factory.mktemp("damaged") / "b.tar.gz"
    for _ in range(10):
        which = rng.randrange(2)
        data = bytearray(sound[which])
        for _ in range(rng.choice((1, 1, 5, 50))):
            at = rng.randrange(len(data))
            action = rng.randrange(3)
            if action == 0:
                data[at] = rng.randrange(256)
            elif action == 1:
                del data[at : at + rng.randrange(1, 600)]
            else:
                data[at:at] = rng.randbytes(rng.randrange(1, 40))
            if not data:
                break
        content = bytes(data) if which == 0 else gzip.compress(bytes(data), 1)
        path.write_bytes(content)
        try:
            found = read_bundle(path)
        except PlannerError:
            pass
        else:
            assert found.files == FILES
        assert path.read_bytes() == content
