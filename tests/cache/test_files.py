"""Only regular files are read: a pipe would be waited for, and a device may never end."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from autotune_planner.cache.archive import unpack
from autotune_planner.cache.contents import content_at, places_at
from autotune_planner.cache.files import is_there, read_regular
from autotune_planner.cache.timings import JOURNAL, read_timings, unreadable_journal
from autotune_planner.cache.v1 import read_v1
from autotune_planner.errors import CacheFileError, UsageError

RUN_A = Path(__file__).parents[1] / "data" / "h200" / "cutlass_moe_bf16_run_a.json"


@pytest.fixture(params=["pipe", "link to a pipe", "link to a device"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Something at the path of a rank file that is no regular file. Reading the pipe would never return."""
    path = tmp_path / "rank_tp0_pp0_dp0.json"
    target = tmp_path / "pipe" if request.param.endswith("pipe") else Path(os.devnull)
    if target.name == "pipe":
        os.mkfifo(target)
    if request.param == "pipe":
        target.rename(path)
    else:
        path.symlink_to(target)
    return path


def test_what_is_no_regular_file_is_refused_before_it_is_opened(special: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr("autotune_planner.cache.files.open", opened, raising=False)
    with pytest.raises(OSError, match="not a regular file"):
        read_regular(special)
    for read in (read_v1, content_at):
        with pytest.raises(CacheFileError, match="not a regular file") as caught:
            read(special)
        assert caught.value.where == str(special)
        assert caught.value.hint
    with pytest.raises(CacheFileError, match="not a regular file"):
        places_at(special.parent)
    with pytest.raises(CacheFileError, match="not a regular file"):
        unpack(special, lambda name: True)


def test_links_to_regular_files_are_followed(tmp_path: Path) -> None:
    link = tmp_path / "rank_tp0_pp0_dp0.json"
    link.symlink_to(RUN_A)
    assert read_v1(link) == read_v1(RUN_A)
    assert len(content_at(tmp_path).entries) == 42


def test_a_link_to_nothing_is_no_file(tmp_path: Path) -> None:
    link = tmp_path / "rank_tp1_pp0_dp0.json"
    link.symlink_to(tmp_path / "gone")
    assert not is_there(link)
    with pytest.raises(UsageError, match="does not exist"):
        read_v1(link)
    shutil.copy(RUN_A, tmp_path / "rank_tp0_pp0_dp0.json")
    assert [place.files[0].name for place in places_at(tmp_path)] == ["rank_tp0_pp0_dp0.json"]


def test_below_a_file_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not is_there(tmp_path / "file" / "rank_tp0_pp0_dp0.json")


def test_a_journal_that_is_a_pipe_gives_no_times(tmp_path: Path) -> None:
    assert unreadable_journal(tmp_path) is None
    (tmp_path / JOURNAL).parent.mkdir()
    os.mkfifo(tmp_path / JOURNAL)
    assert read_timings(tmp_path, None) == {}
    error = unreadable_journal(tmp_path)
    assert error is not None
    assert error.strerror == "not a regular file"
