"""``--events``: one JSON object a line, and what happens where the file takes none."""

import json

import pytest

from autotune_planner.errors import NotPossibleHereError
from autotune_planner.report.events import events_observer
from autotune_planner.tuning.messages import Forecast, Note


def test_each_event_is_a_line_that_is_there_at_once(tmp_path):
    path, told = tmp_path / "events.jsonl", []
    path.write_text('{"event": "of an earlier run"}\n')
    with events_observer(str(path), told.append) as observe:
        observe(Forecast(profiles=2, candidates=18, seconds=0.5))
        _, line = path.read_text().splitlines()
        found = json.loads(line)
        assert found.pop("at") > 0
        assert found == {"event": "forecast", "profiles": 2, "candidates": 18, "seconds": 0.5}
    assert told == [Forecast(2, 18, 0.5)]


def test_without_a_file_events_are_only_told():
    told = []
    with events_observer(None, told.append) as observe:
        observe(Note("x"))
    assert told == [Note("x")]


@pytest.mark.parametrize(
    ("path", "why"), [("/dev/full", "No space left on device"), ("/no/such/folder/x", "No such file")]
)
def test_a_file_that_takes_none_is_named(path, why):
    with pytest.raises(NotPossibleHereError, match=f"cannot write events: {why}") as raised:  # noqa: SIM117
        with events_observer(path, lambda event: None) as observe:
            observe(Note("x"))
    assert raised.value.where == path
