"""Typed errors and the exit codes that they end with.

Raised anywhere, caught once in :func:`autotune_planner.cli.main.main`. Each error says what is wrong,
where (``file:line``, a flag, a path) and what to type next.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of ``autotune-plan``; part of the command-line contract."""

    DONE = 0
    BUG = 1
    USAGE = 2
    INVALID_DEPLOYMENT = 3
    NOT_POSSIBLE_HERE = 4
    DIFFERENCE = 5
    PARTIAL = 6
    LOCKED = 7
    INTERRUPTED = 130


class PlannerError(Exception):
    """Base of every error that is not a bug of this program.

    ``code`` is a stable kebab-case name for scripts (``autotune-plan/error@1``).
    """

    exit_code: ExitCode = ExitCode.BUG

    def __init__(self, message: str, *, code: str, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.where = where
        self.hint = hint


class UsageError(PlannerError):
    """Wrong use of our own options."""

    exit_code = ExitCode.USAGE


class DeploymentError(PlannerError):
    """The deployment file or launch line is invalid, or the server would reject it."""

    exit_code = ExitCode.INVALID_DEPLOYMENT


class NotPossibleHereError(PlannerError):
    """This machine cannot do it: no GPU, wrong architecture, FlashInfer missing or of another version."""

    exit_code = ExitCode.NOT_POSSIBLE_HERE


class CacheFileError(PlannerError):
    """A cache file that no server would load: damaged, of an unknown format, or inconsistent."""

    exit_code = ExitCode.DIFFERENCE


class LockedError(PlannerError):
    """Another process holds the target cache directory."""

    exit_code = ExitCode.LOCKED


class InterruptedRunError(PlannerError):
    """Ctrl-C or SIGTERM. What was finished is in the journal; the same command continues."""

    exit_code = ExitCode.INTERRUPTED
