"""Publishing is all or nothing whichever system call fails, and leaves nothing behind."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune_planner.cache.publish import check_writable, publish
from autotune_planner.errors import ExitCode, NotPossibleHereError

NAMES = ["rank_tp0_pp0_dp0.json", "rank_tp1_pp0_dp0.json", "rank_tp2_pp0_dp0.json"]
OLD, NEW = b"old content", b"new content, longer than the old one"
CALLS = ("open", "fsync", "close", "link", "replace", "mkdir")


class FailingCalls:
    """Counts system calls and raises ``failure`` at the ``at``-th one (``lasting``: at all later ones too)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.at: int | None = None
        self.failure: BaseException = OSError(errno.EIO, os.strerror(errno.EIO))
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self.at:
                if name == "close":
                    call(*arguments, **options)  # the descriptor is gone even if close reports an error
                raise self.failure
            return call(*arguments, **options)

        return wrapper


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def failing(error: int) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise OSError(error, os.strerror(error))

    return call


def calls_of_a_publish(old: bool) -> int:
    """How many system calls one publish of three files makes, found in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        directory = Path(folder) / "cache"
        if old:
            directory.mkdir()
            for name in NAMES:
                (directory / name).write_bytes(OLD)
        calls = FailingCalls(patch)
        publish(directory, NAMES, NEW)
        return calls.count


def test_every_name_gets_the_content(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    paths = publish(directory, NAMES, NEW)
    assert paths == [directory / name for name in NAMES]
    assert contents(directory) == dict.fromkeys(NAMES, NEW)


def test_other_files_stay_and_files_become_readable_for_all(tmp_path: Path) -> None:
    (tmp_path / "rank_tp9_pp0_dp0.json").write_bytes(b"other")
    (tmp_path / NAMES[0]).write_bytes(OLD)
    (tmp_path / NAMES[0]).chmod(0o600)
    mask = os.umask(0o027)
    try:
        publish(tmp_path, NAMES, NEW)
    finally:
        os.umask(mask)
    assert contents(tmp_path) == {"rank_tp9_pp0_dp0.json": b"other", **dict.fromkeys(NAMES, NEW)}
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in NAMES} == {0o640}


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "I/O error"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("old", ["all", "some", "none"])
def test_a_failure_at_any_call_leaves_all_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, failure: BaseException
) -> None:
    present = {"all": NAMES, "some": NAMES[1:2], "none": []}[old]
    total = calls_of_a_publish(old=True)
    outcomes = set()
    for at in range(1, total + 1):
        directory = tmp_path / str(at)
        if present:
            directory.mkdir()
        for name in present:
            (directory / name).write_bytes(OLD)
        with monkeypatch.context() as patch:
            calls = FailingCalls(patch)
            calls.at, calls.failure = at, failure
            try:
                publish(directory, NAMES, NEW)
                failed = False
            except (NotPossibleHereError, KeyboardInterrupt):
                failed = True
        if not failed:
            assert contents(directory) == dict.fromkeys(NAMES, NEW), at
        elif present:
            assert contents(directory) == dict.fromkeys(present, OLD), at
        else:
            assert not directory.exists(), at
        outcomes.add(failed)
    assert True in outcomes


def test_without_hard_links_the_old_content_comes_back_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        (tmp_path / name).write_bytes(OLD)
    (tmp_path / NAMES[0]).chmod(0o600)
    replace, replaced = os.replace, []

    def last_fails(source: Path, target: Path) -> None:
        if target.name == NAMES[2] and not replaced.count(NAMES[2]):
            replaced.append(NAMES[2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    monkeypatch.setattr(os, "replace", last_fails)
    with pytest.raises(NotPossibleHereError, match="ENOSPC"):
        publish(tmp_path, NAMES, NEW)
    assert contents(tmp_path) == dict.fromkeys(NAMES, OLD)
    assert stat.S_IMODE((tmp_path / NAMES[0]).stat().st_mode) == 0o600


def test_a_symbolic_link_comes_back_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / NAMES[0]).write_bytes(OLD)
    (tmp_path / NAMES[1]).symlink_to(NAMES[0])
    monkeypatch.setattr(os, "fsync", fails_on_a_folder(errno.EIO))
    with pytest.raises(NotPossibleHereError, match="EIO"):
        publish(tmp_path, NAMES, NEW)
    assert contents(tmp_path) == dict.fromkeys(NAMES[:2], OLD)
    assert (tmp_path / NAMES[1]).is_symlink()


def fails_on_a_folder(error: int) -> Callable[[int], None]:
    fsync = os.fsync

    def call(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(error, os.strerror(error))
        fsync(descriptor)

    return call


def test_a_file_system_that_cannot_sync_folders_is_good_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", fails_on_a_folder(errno.EINVAL))
    publish(tmp_path, NAMES, NEW)
    assert contents(tmp_path) == dict.fromkeys(NAMES, NEW)


def test_an_old_file_that_cannot_be_put_back_is_kept_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        (tmp_path / name).write_bytes(OLD)
    replace, calls = os.replace, []

    def only_the_first_works(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) > 1:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        replace(source, target)

    monkeypatch.setattr(os, "replace", only_the_first_works)
    with pytest.raises(NotPossibleHereError, match="EROFS"):
        publish(tmp_path, NAMES, NEW)
    beside = [content for name, content in contents(tmp_path).items() if name not in NAMES]
    assert OLD in beside


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["open", "mkdir"])
@pytest.mark.parametrize("action", [check_writable, lambda directory: publish(directory, NAMES, NEW)])
def test_a_place_that_cannot_be_written_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, call: str, action: Callable[[Path], Any]
) -> None:
    directory = tmp_path / "new" / "deeper"
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(error))
        with pytest.raises(NotPossibleHereError) as caught:
            action(directory)
    assert errno.errorcode[error] in caught.value.message
    assert os.strerror(error) in caught.value.message
    assert caught.value.where == str(directory)
    assert "--cache-dir" in str(caught.value.hint)
    assert caught.value.exit_code == ExitCode.NOT_POSSIBLE_HERE
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_at_sync_leaves_no_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.ENOSPC))
        with pytest.raises(NotPossibleHereError, match="ENOSPC"):
            check_writable(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("action", [check_writable, lambda directory: publish(directory, NAMES, NEW)])
@pytest.mark.parametrize("inside", ["", "deeper"])
def test_a_file_where_the_folder_should_be(tmp_path: Path, inside: str, action: Callable[[Path], Any]) -> None:
    (tmp_path / "file").write_bytes(OLD)
    with pytest.raises(NotPossibleHereError):
        action(tmp_path / "file" / inside)
    assert (tmp_path / "file").read_bytes() == OLD


def test_a_folder_where_a_file_should_be(tmp_path: Path) -> None:
    (tmp_path / NAMES[0]).write_bytes(OLD)
    (tmp_path / NAMES[1]).mkdir()
    with pytest.raises(NotPossibleHereError):
        publish(tmp_path, NAMES, NEW)
    assert sorted(path.name for path in tmp_path.iterdir()) == NAMES[:2]
    assert (tmp_path / NAMES[0]).read_bytes() == OLD


def test_writable_place(tmp_path: Path) -> None:
    (tmp_path / NAMES[0]).write_bytes(OLD)
    check_writable(tmp_path)
    assert contents(tmp_path) == {NAMES[0]: OLD}
    check_writable(tmp_path / "new" / "deeper")
    assert (tmp_path / "new" / "deeper").is_dir()


def test_leftovers_of_a_killed_publish_are_swept(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        from pathlib import Path
        from autotune_planner.cache.publish import publish
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        publish(Path(sys.argv[1]), sys.argv[2].split(","), b"never published")
    """
    (tmp_path / NAMES[0]).write_bytes(OLD)
    (tmp_path / ".autotuner_abc.tmp").write_bytes(b"FlashInfer's own")
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path), ",".join(NAMES)], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(contents(tmp_path)) > 2
    assert contents(tmp_path)[NAMES[0]] == OLD
    publish(tmp_path, NAMES, NEW)
    assert contents(tmp_path) == {".autotuner_abc.tmp": b"FlashInfer's own", **dict.fromkeys(NAMES, NEW)}
