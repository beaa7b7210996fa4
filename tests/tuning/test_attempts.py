"""What becomes of a unit whose worker is lost: arithmetic of losses, without processes."""

from autotune_planner.tuning.attempts import Attempt, Loss
from autotune_planner.tuning.messages import TacticStarted
from autotune_planner.tuning.pool import Watchdog
from tests.tuning.plans import small_plan

UNIT = small_plan().units[0]
CRASH = Loss("killed by SIGSEGV")


def test_the_first_crash_may_be_anybodys():
    again, culprit = Attempt(UNIT).after_loss(CRASH)
    assert again == Attempt(UNIT, losses=1, careful=False)
    assert culprit is None


def test_the_second_one_is_looked_into():
    again, culprit = Attempt(UNIT, losses=1).after_loss(CRASH)
    assert again == Attempt(UNIT, losses=2, careful=True)
    assert culprit is None


def test_a_hang_is_looked_into_at_once():
    again, _ = Attempt(UNIT).after_loss(Loss("it did not end within 60 s", hung=True))
    assert again.careful


def test_the_tactic_that_was_running_is_the_culprit():
    last = TacticStarted("MoERunner", 7)
    again, culprit = Attempt(UNIT, losses=2, careful=True).after_loss(Loss("killed by SIGSEGV", last))
    assert again == Attempt(UNIT, losses=3, careful=False)  # the race goes on without it
    assert (culprit.custom_op, culprit.tactic, culprit.fault) == (UNIT.custom_op, 7, "crash")
    assert (culprit.bucket, culprit.shape) == (UNIT.bucket, UNIT.call.label)
    _, culprit = Attempt(UNIT, careful=True).after_loss(Loss("it did not end within 5 s", last, hung=True))
    assert culprit.fault == "hang"


def test_a_stray_kill_is_never_a_tactics_fault():
    attempt = Attempt(UNIT, losses=2, careful=True)
    again, culprit = attempt.after_loss(Loss("killed by SIGKILL", TacticStarted("MoERunner", 7), stray=True))
    assert again == Attempt(UNIT, losses=3, careful=True)
    assert culprit is None


def test_what_nobody_can_be_blamed_for_ends_the_unit():
    for last in (
        None,
        TacticStarted("MoERunner", -1),
    ):  # outside of any tactic; in the default, which cannot be blocked
        assert Attempt(UNIT, losses=2, careful=True).after_loss(Loss("exit code 70", last)) == (None, None)


def test_there_is_an_end():
    attempt, losses = Attempt(UNIT), 0
    while attempt is not None:
        attempt, _ = attempt.after_loss(Loss("killed by SIGKILL", stray=True))
        losses += 1
    assert losses == 12


def test_how_long_a_worker_may_take():
    """20 times the forecast: 100 s of a unit of 5 s; at least 60 s, 30 s for one tactic, 120 s more at first."""
    watchdog = Watchdog()
    assert (watchdog.of_unit(5.0, first=False), watchdog.of_unit(5.0, first=True)) == (100.0, 220.0)
    assert (watchdog.of_unit(0.1, first=False), watchdog.of_tactic(0.1)) == (60.0, 30.0)
    assert watchdog.of_tactic(5.0) == 100.0
