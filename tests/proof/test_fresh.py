"""What a fresh process fails with is said by the process that asked."""

import os

import pytest

from autotune_planner.errors import NotPossibleHereError
from autotune_planner.proof.fresh import in_fresh_process

pytestmark = [pytest.mark.flashinfer, pytest.mark.xdist_group("simulated-proof")]


class OddError(Exception):
    """No pickle can make it again."""

    def __init__(self, first, second):
        super().__init__(f"{first}\n{second}")
        self.nobody_pickles = lambda: None


def without_triton():
    raise ModuleNotFoundError("No module named 'triton'", name="triton")


def odd():
    raise OddError("the first line", "the second")


def typed():
    raise NotPossibleHereError("CuTe DSL cannot be imported", code="any", hint="run it inside the server's image")


def silent():
    raise ValueError


def no_answer():
    return lambda: None


def dead():
    os._exit(3)


def asked(question, log):
    with pytest.raises(NotPossibleHereError) as raised:
        in_fresh_process(question, device="simulated", what="replay", log_path=str(log))
    assert raised.value.code == "replay-failed"
    assert raised.value.hint
    return raised.value


@pytest.mark.parametrize(
    ("question", "says"),
    [
        (without_triton, "the replay process failed: ModuleNotFoundError: No module named 'triton'"),
        (odd, "the replay process failed: OddError: the first line"),
        (silent, "the replay process failed: ValueError"),
    ],
)
def test_the_cause_is_named_with_the_log(tmp_path, question, says):
    error = asked(question, tmp_path / "log")
    assert (error.message, error.where) == (says, str(tmp_path / "log"))


def test_a_missing_module_is_to_be_installed(tmp_path):
    assert asked(without_triton, tmp_path / "log").hint.startswith("install triton")


def test_an_error_of_ours_keeps_its_text_and_its_hint(tmp_path):
    error = asked(typed, tmp_path / "log")
    assert error.message == "the replay process failed: CuTe DSL cannot be imported"
    assert error.hint == "run it inside the server's image"


def test_an_answer_that_cannot_be_sent(tmp_path):
    assert "no_answer" in asked(no_answer, tmp_path / "log").message


def test_a_process_that_dies_names_a_log_only_where_one_is(tmp_path):
    error = asked(dead, tmp_path / "log")
    assert (error.message, error.where) == ("the replay process ended with exit code 3", None)
    assert "__main__" in error.hint
    (tmp_path / "log").write_text("")
    assert asked(dead, tmp_path / "log").where == str(tmp_path / "log")
