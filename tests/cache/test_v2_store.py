"""v2 stores: layout by arithmetic, every damage a miss, and FlashInfer itself as judge of what we write."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune_planner.cache import v2
from autotune_planner.cache.contents import content_at, places_at, read_content
from autotune_planner.cache.keys import parse_key
from autotune_planner.cache.v1 import Entry, read_v1
from autotune_planner.cache.v2 import environment_hash, key_fields, read_v2, render_v2
from autotune_planner.errors import CacheFileError, UsageError

ROOT = Path(__file__).parents[2]
H200 = sorted((ROOT / "tests" / "data" / "h200").glob("*.json"))
HOT = ("cuda_graph_profile_replays", None, "l2_cache_policy", "hot")
METADATA = {"flashinfer_version": "0.7.2", "gpu": "NVIDIA H200"}
DEMO = (
    "('demo::gemm1', 'FakeRunner', ((64, 64), (8, 128, 64), (0,), (-1, 128)), (torch.bfloat16, 'str', True, None, 3))"
)


def write(root: Path, *entries: Entry, metadata: dict[str, str] = METADATA) -> Path:
    """Write a store and give its environment's directory."""
    files = render_v2(metadata, {entry.text: entry for entry in entries})
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root / "v2" / environment_hash(metadata)


def demo(root: Path) -> tuple[Path, Path]:
    """A store of one entry: the environment's directory, and the entry's file."""
    directory = write(root, Entry(DEMO, "FakeRunner", 3, HOT))
    (file,) = (directory / "entries").iterdir()
    return directory, file


@pytest.mark.parametrize("path", H200, ids=lambda path: path.stem)
def test_entries_of_an_h200_file_are_the_same_in_a_store(tmp_path: Path, path: Path) -> None:
    file = read_v1(path)
    store = read_v2(write(tmp_path, *file.entries, metadata=dict(file.metadata or {})))
    assert {entry.text: entry for entry in store.entries} == {entry.text: entry for entry in file.entries}
    assert store.metadata == file.metadata
    assert (store.misses, store.lazy) == ((), 0)


def test_names_and_content_of_the_files(tmp_path: Path) -> None:
    directory, file = demo(tmp_path)
    manifest = {"cache_schema": "v2", "flashinfer_version": "0.7.2", "gpu": "NVIDIA H200"}
    canonical = '{"cache_schema":"v2","flashinfer_version":"0.7.2","gpu":"NVIDIA H200"}'
    assert directory.name == hashlib.sha256(canonical.encode()).hexdigest()[:16]
    assert json.loads((directory / "manifest.json").read_text()) == manifest
    assert file.name == f"{hashlib.sha256(DEMO.encode()).hexdigest()[:24]}.json"
    assert json.loads(file.read_text()) == {
        "key": DEMO,
        "runner": "FakeRunner",
        "tactic": 3,
        "profiling_policy": ["cuda_graph_profile_replays", None, "l2_cache_policy", "hot"],
        "key_fields": {
            "__tuple__": [
                "demo::gemm1",
                "FakeRunner",
                {
                    "__tuple__": [
                        {"__tuple__": [64, 64]},
                        {"__tuple__": [8, 128, 64]},
                        {"__tuple__": [0]},
                        {"__tuple__": [-1, 128]},
                    ]
                },
                {"__tuple__": [{"__dtype__": "bfloat16"}, "str", True, None, 3]},
            ]
        },
    }


def test_true_and_1_stay_apart_in_key_fields() -> None:
    for extras in ("(1, True)", "(True, 1)"):
        fields = key_fields(parse_key(f"('op', 'R', ((1,),), {extras})"))
        assert json.dumps(fields["__tuple__"][3]["__tuple__"]) == extras.lower().replace("(", "[").replace(")", "]")


def test_an_extra_without_a_structural_form_is_served_but_not_preloaded(tmp_path: Path) -> None:
    text = "('op', 'R', ((1, 64),), (<Activation.Swiglu: 3>, 8))"
    directory = write(tmp_path, Entry(text, "R", 1, HOT))
    (file,) = (directory / "entries").iterdir()
    assert "key_fields" not in json.loads(file.read_text())
    store = read_v2(directory)
    assert ([entry.text for entry in store.entries], store.lazy, store.misses) == ([text], 1, ())


def changed(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda entry: {name: value for name, value in {**entry, **changes}.items() if value != "absent"}


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another key": (changed(key=DEMO.replace("128", "256")), "hash"),
    "no key": (changed(key="absent"), "no key"),
    "no runner": (changed(runner="absent"), "no key"),
    "no tactic": (changed(tactic="absent"), "no key"),
    "a key that is no text": (changed(key=["a"]), "no key"),
    "a lone surrogate": (changed(key="\ud800"), "surrogates"),
    "a list": (lambda entry: [entry], "no object"),
    "null": (lambda entry: None, "no object"),
}


@pytest.mark.parametrize(("damage", "says"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_a_miss(tmp_path: Path, damage: Callable[[dict[str, Any]], Any], says: str) -> None:
    directory, file = demo(tmp_path)
    write(tmp_path, Entry(DEMO.replace("64, 64", "128, 64"), "FakeRunner", 4, HOT))
    file.write_text(json.dumps(damage(json.loads(file.read_text()))))
    store = read_v2(directory)
    assert [entry.tactic for entry in store.entries] == [4]
    (miss,) = store.misses
    assert (miss.path, says in miss.reason) == (file, True)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"9" * 5000])
def test_an_entry_that_is_not_json_is_a_miss(tmp_path: Path, content: bytes) -> None:
    directory, file = demo(tmp_path)
    file.write_bytes(content)
    store = read_v2(directory)
    assert store.entries == ()
    assert [miss.path for miss in store.misses] == [file]


def test_what_is_no_regular_file_is_a_miss(tmp_path: Path) -> None:
    """A pipe would be waited for, and a link to a device may never end."""
    directory, file = demo(tmp_path)
    os.mkfifo(directory / "entries" / "a.json")
    (directory / "entries" / "b.json").symlink_to(os.devnull)
    (directory / "entries" / "c.json").mkdir()
    (directory / "entries" / "d.json").symlink_to(tmp_path / "nowhere")
    store = read_v2(directory)
    assert [entry.text for entry in store.entries] == [DEMO]
    assert [(miss.path.name, miss.reason) for miss in store.misses] == [
        (f"{name}.json", "not a regular file") for name in "abcd"
    ]
    linked = file.rename(tmp_path / "elsewhere.json")
    file.symlink_to(linked)
    assert len(read_v2(directory).entries) == 1


def test_a_large_entry_is_read_whole(tmp_path: Path) -> None:
    """FlashInfer reads whatever is there; its own entries have about a kilobyte."""
    directory, file = demo(tmp_path)
    for spaces in (1 << 16, (1 << 16) - len(file.read_bytes()) % (1 << 16), 200_000):
        file.write_bytes(file.read_bytes() + b" " * spaces)
        assert [entry.text for entry in read_v2(directory).entries] == [DEMO]


def many(root: Path) -> tuple[Path, list[str]]:
    """A store of 600 entries, and their keys in the order of the file names: of the first 24 digits of a SHA-256."""
    texts = [DEMO.replace("(64, 64)", f"({m}, 64)") for m in range(1, 601)]
    directory = write(root, *(Entry(text, "FakeRunner", 3, HOT) for text in texts))
    return directory, sorted(texts, key=lambda text: hashlib.sha256(text.encode()).hexdigest()[:24])


def test_entries_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    directory, texts = many(tmp_path)
    for name in ("0", "8", "f"):
        (directory / "entries" / f"{name}.json").write_text("{")
    store = read_v2(directory)
    assert [entry.text for entry in store.entries] == texts
    assert [miss.path.name for miss in store.misses] == ["0.json", "8.json", "f.json"]


def test_files_are_read_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files that are not in memory wait for the disk one by one: two batches are read at the same time."""
    directory, texts = many(tmp_path)
    together, read, turns = threading.Barrier(2), v2._read_batch, itertools.count()

    def reading(files: Any) -> Any:
        if next(turns) < 2:
            together.wait(timeout=30)
        return read(files)

    monkeypatch.setattr(v2, "_read_batch", reading)
    assert [entry.text for entry in read_v2(directory).entries] == texts


def test_files_that_are_no_entries_are_passed_over(tmp_path: Path) -> None:
    directory, file = demo(tmp_path)
    (directory / "entries" / ".autotune_x.tmp").write_text("{")
    (directory / "entries" / "0123.json").mkdir()
    (directory / "entries" / "copy.json").write_bytes(file.read_bytes())
    store = read_v2(directory)
    assert len(store.entries) == 1
    assert [miss.path.name for miss in store.misses] == ["0123.json", "copy.json"]


def test_a_key_of_three_elements_is_never_looked_up(tmp_path: Path) -> None:
    text = "('op', 'R', ((1, 64),))"
    with pytest.raises(CacheFileError, match="three elements"):
        render_v2(METADATA, {text: Entry(text, "R", 1, HOT)})
    directory, file = demo(tmp_path)
    name = f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
    file.with_name(name).write_text(json.dumps({"key": text, "runner": "R", "tactic": 1}))
    assert [miss.path.name for miss in read_v2(directory).misses] == [name]


def test_other_key_fields_are_served_but_not_preloaded(tmp_path: Path) -> None:
    directory, file = demo(tmp_path)
    entry = json.loads(file.read_text())
    entry["key_fields"]["__tuple__"][0] = "demo::gemm2"
    file.write_text(json.dumps(entry))
    store = read_v2(directory)
    assert (len(store.entries), store.lazy, store.misses) == (1, 1, ())


@pytest.mark.parametrize("policy", [None, "hot", {"a": 1}])
def test_an_entry_without_a_policy(tmp_path: Path, policy: Any) -> None:
    directory, file = demo(tmp_path)
    file.write_text(json.dumps({**json.loads(file.read_text()), "profiling_policy": policy}))
    assert [entry.policy for entry in read_v2(directory).entries] == [None]


@pytest.mark.parametrize(
    "content", [None, b"{", b"[]", b"\xff", b'{"gpu": "x", "cache_schema": "v2"}', b'{"gpu": "x"}']
)
def test_a_manifest_of_another_environment_says_nothing(tmp_path: Path, content: bytes | None) -> None:
    directory, _ = demo(tmp_path)
    if content is None:
        (directory / "manifest.json").unlink()
    else:
        (directory / "manifest.json").write_bytes(content)
    store = read_v2(directory)
    assert store.metadata is None
    assert len(store.entries) == 1


@pytest.mark.parametrize("metadata", [None, {}, {**METADATA, "gpu": "*"}])
def test_no_store_of_an_environment_that_nobody_has(metadata: dict[str, str] | None) -> None:
    with pytest.raises(CacheFileError, match="wildcards"):
        render_v2(metadata, {})


def test_a_directory_that_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not an environment"):
        read_v2(tmp_path)


def test_a_store_is_found_from_every_folder_of_it(tmp_path: Path) -> None:
    directory, _ = demo(tmp_path)
    for path in (tmp_path, tmp_path / "v2", directory, directory / "entries"):
        content = content_at(path)
        assert (content.place.format, content.path) == ("v2", directory)
    other = write(tmp_path, metadata={**METADATA, "gpu": "NVIDIA B200"})
    (other / "entries").mkdir()
    assert len(places_at(tmp_path)) == 2
    with pytest.raises(UsageError, match="2 v2 stores"):
        content_at(tmp_path)


# FlashInfer itself, in a process of its own: one linear on the stand-in modules, called with M = 24. Its grid up to 24
# is 1 2 4 8 16 and 24, the last keyed 32: six profiles of eight stand-in tactics, and in autotune_v2 the default, -1.
PROFILES, TACTICS = 6, 8
CHILD = """
import json, sys
from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.tuning import flashinfer_internals as internals

mode, path = sys.argv[1:]
internals.import_flashinfer(quiet=True)
from flashinfer import autotune, autotune_v2
from flashinfer.autotuner import AutoTuner

def timer(runner, shapes, tactic, *_):
    return 99.0 if tactic == -1 else 1.0 + (tactic + shapes[0][1]) % 7

with internals.silenced(), internals.without_gpu((9, 0), "simulated NVIDIA H200", timer):
    with internals.watched_tuner() as watch:
        with autotune(True, cache=path) if mode == "v1" else autotune_v2(mode=mode, cache_root=path):
            BmmFp8(n=4096, k=4096).prepare("meta")(24)()
    preloaded = len(AutoTuner.get()._managed_decoded)
print(json.dumps({"misses": len(watch.misses), "timings": watch.timings, "preloaded": preloaded}))
"""


def flashinfer(mode: str, path: Path) -> dict[str, int]:
    """Run the child. ``tune`` and ``replay`` are modes of ``autotune_v2``; ``v1`` tunes into a v1 file."""
    command = [sys.executable, "-c", CHILD, mode, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, cwd=ROOT)
    result: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return result


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same linear tuned by FlashInfer into a v2 store and into a v1 file."""
    folder = tmp_path_factory.mktemp("flashinfer")
    tuning = flashinfer("tune", folder / "store")
    assert tuning == {"misses": PROFILES, "timings": PROFILES * (TACTICS + 1), "preloaded": PROFILES}
    assert flashinfer("v1", folder / "rank.json")["timings"] == PROFILES * TACTICS
    return folder / "store", folder / "rank.json"


@pytest.mark.flashinfer
def test_flashinfers_own_store_is_read_and_written_back_identically(tuned: tuple[Path, Path]) -> None:
    root, v1 = tuned
    store = read_content(places_at(root)[0])
    assert (len(store.entries), store.misses, store.lazy) == (PROFILES, (), 0)
    file = read_v1(v1)
    assert store.metadata == file.metadata
    assert {entry.text: entry for entry in store.entries} == {entry.text: entry for entry in file.entries}
    assert render_v2(file.metadata, {entry.text: entry for entry in file.entries}) == contents(root)


@pytest.mark.flashinfer
def test_flashinfer_replays_a_store_that_we_write(tuned: tuple[Path, Path], tmp_path: Path) -> None:
    file = read_v1(tuned[1])
    write(tmp_path, *file.entries, metadata=dict(file.metadata or {}))
    before = contents(tmp_path)
    for mode in ("replay", "tune"):
        assert flashinfer(mode, tmp_path) == {"misses": 0, "timings": 0, "preloaded": PROFILES}
    assert contents(tmp_path) == before


@pytest.mark.flashinfer
def test_what_is_a_miss_here_is_a_miss_there(tuned: tuple[Path, Path], tmp_path: Path) -> None:
    """M = 24 looks up bucket 32 alone in a replay, and the whole grid while tuning. Another environment's directory,
    whose entries are sound, serves neither."""
    file = read_v1(tuned[1])
    write(tmp_path, *file.entries, metadata={**(file.metadata or {}), "gpu": "NVIDIA H100"})
    store = write(tmp_path, *file.entries, metadata=dict(file.metadata or {}))
    *_, c, b, a = sorted(file.entries, key=lambda entry: entry.key.bucket)
    assert a.key.bucket == 32
    for entry, damage in ((a, "another key"), (b, "no tactic"), (c, "a list")):
        path = store / "entries" / f"{hashlib.sha256(entry.text.encode()).hexdigest()[:24]}.json"
        path.write_text(json.dumps(DAMAGE[damage][0](json.loads(path.read_text()))))
    assert len(read_v2(store).misses) == 3
    assert flashinfer("replay", tmp_path) == {"misses": 1, "timings": 0, "preloaded": PROFILES - 3}
    assert flashinfer("tune", tmp_path)["timings"] == 3 * (TACTICS + 1)
    assert read_v2(store).misses == ()


@pytest.mark.flashinfer
def test_run_publishes_both_formats(tmp_path: Path) -> None:
    arguments = ["run", "examples/qwen3-30b-h200-dp8.yaml", "--device", "simulated", "--cache-dir", str(tmp_path)]
    command = [sys.executable, "-m", "autotune_planner", *arguments, "--format", "v1,v2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, cwd=ROOT)
    document = json.loads(done.stdout)
    store, file = read_v2(Path(document["store"])), read_v1(Path(document["published"][0]))
    assert store.directory.parent == tmp_path / "flashinfer" / "autotune" / "v2"
    assert store.metadata == file.metadata
    assert {entry.text: entry for entry in store.entries} == {entry.text: entry for entry in file.entries}
    assert (len(document["published"]), len(store.entries), store.misses, store.lazy) == (8, 42, (), 0)
    assert (store.directory / ".autotune-plan" / "journal.jsonl").read_bytes() == (
        Path(document["published"][0]).parent / ".autotune-plan" / "journal.jsonl"
    ).read_bytes()
