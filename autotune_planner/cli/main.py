"""``autotune-plan``: the one place where errors become messages and exit codes."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import signal
import sys
import traceback
from types import FrameType
from typing import NoReturn

from autotune_planner.errors import ExitCode, InterruptedRunError, NotPossibleHereError, PlannerError, UsageError


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and end the process with its exit code."""
    given = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    atexit.register(gc.freeze)  # the process ends: nothing needs to be collected once more
    if sys.stdout is None:  # closed by the caller: nothing to say it to
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        code = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader left, as `head` does: nothing is wrong, and nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.DONE
    except OSError as error:
        # A full disk behind `>`: what was not flushed is dropped, or the interpreter would try once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        unwritable = NotPossibleHereError(
            f"cannot write the output: {error.strerror or error}", code="output", hint="write it to another place"
        )
        code = unwritable.exit_code
        with contextlib.suppress(OSError):  # it may have been stderr that was full
            _report(unwritable, [])
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    try:
        return _carry_out(*_split(arguments))
    except PlannerError as error:
        return _report(error, arguments)
    except SystemExit as end:
        # Typer turns a closed pipe into an exit of its own.
        if isinstance(end.__context__, BrokenPipeError):
            raise BrokenPipeError from end
        raise
    except OSError as error:
        if error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO):
            raise
        return _bug()
    except Exception as error:
        if hasattr(error, "format_message"):  # Typer's own usage errors, whatever it names them
            return _report(_usage_error(error), arguments)
        return _bug()


def _carry_out(ours: list[str], flags: list[str] | None) -> int:
    from autotune_planner.cli import compute_call  # below the handlers: Ctrl-C while importing is an interruption

    call = compute_call.plain_call(ours, flags)
    if call is not None:
        compute_call.carry_out(call)
        return ExitCode.DONE
    import typer

    from autotune_planner.cli.app import app

    try:
        return int(app(args=ours, prog_name="autotune-plan", standalone_mode=False, obj=flags) or 0)
    except typer.Abort:
        return ExitCode.INTERRUPTED


def _bug() -> int:
    traceback.print_exc()
    print(
        "error: this is a bug of autotune-plan; please report it with the text above and your deployment file",
        file=sys.stderr,
    )
    return ExitCode.BUG


def _split(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """Our own arguments, and the server's flags behind ``--``."""
    if "--" not in arguments:
        return arguments, None
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _report(error: PlannerError, arguments: list[str]) -> int:
    from autotune_planner.json_text import json_text
    from autotune_planner.report.error_view import error_document, error_view

    if "--json" in _split(arguments)[0]:
        print(json_text(error_document(error)))
    else:
        from autotune_planner.report.console import talk_console

        talk_console().print(error_view(error))
    return error.exit_code


def _usage_error(error: Exception) -> UsageError:
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "autotune-plan")
    return UsageError(str(error.format_message()), code="usage", hint=f"{path} --help")  # type: ignore[attr-defined]


def _interrupt(number: int, _: FrameType | None) -> None:
    raise InterruptedRunError(
        f"interrupted by {signal.Signals(number).name}; nothing that was finished is lost",
        code="interrupted",
        hint="the same command continues",
    )
