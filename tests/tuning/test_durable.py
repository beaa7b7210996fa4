"""A run's own files: the path, the cause and what to do, and never a traceback."""

import errno
import os

import pytest

from autotune_planner.errors import ExitCode, LockedError, NotPossibleHereError
from autotune_planner.tuning import durable
from autotune_planner.tuning.lock import tuning_lock


@pytest.mark.parametrize("cause", [errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EROFS, errno.EIO, errno.EACCES])
def test_what_keeps_a_file_from_being_written(tmp_path, cause):
    path = tmp_path / "journal.jsonl"
    with pytest.raises(NotPossibleHereError) as raised, durable.written(path):
        raise OSError(cause, os.strerror(cause))
    error = raised.value
    assert error.exit_code == ExitCode.NOT_POSSIBLE_HERE
    assert error.where == str(path)
    assert error.message == f"cannot write journal.jsonl: {os.strerror(cause)} ({errno.errorcode[cause]})"
    assert "--cache-dir DIR" in error.hint


def test_reading(tmp_path):
    path = tmp_path / "journal.jsonl"
    assert durable.read_text(path) is None
    path.write_bytes(b"\xff{}\n")
    assert durable.read_text(path) == "\ufffd{}\n"
    with pytest.raises(NotPossibleHereError, match=r"cannot read .* \(EISDIR\)"):
        durable.read_text(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "nul"])
def test_what_is_no_json(text):
    assert durable.parsed(text) is None


def test_a_lock_that_is_a_folder(tmp_path):
    (tmp_path / "lock").mkdir()
    with pytest.raises(NotPossibleHereError) as raised, tuning_lock(tmp_path):
        pass
    assert raised.value.where == str(tmp_path / "lock")


def test_a_lock_that_is_held(tmp_path):
    with tuning_lock(tmp_path), pytest.raises(LockedError, match=f"process {os.getpid()}"), tuning_lock(tmp_path):
        pass
