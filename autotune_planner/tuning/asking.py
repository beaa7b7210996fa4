"""Ask a child process that imports torch and FlashInfer, so that this one holds no CUDA context."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

from autotune_planner.errors import NotPossibleHereError, PlannerError

Answer = TypeVar("Answer")


def ask(question: Callable[..., Answer], *arguments: object) -> Answer:
    """``question(*arguments)`` as a fresh process answers it; both must be picklable. Its output is dropped.

    ``NotPossibleHereError`` where it raises or where the process dies.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(sender, question, arguments), daemon=True)
    child.start()
    sender.close()
    try:
        answer, failure = receiver.recv()
    except EOFError:
        child.join()
        raise NotPossibleHereError(
            f"the process that asks torch and FlashInfer ended with exit code {child.exitcode}",
            code="environment-unknown",
            hint='see why with: python -c "import torch, flashinfer; torch.cuda.init()"',
        ) from None
    finally:
        receiver.close()
    child.join()
    if failure is not None:
        message, code, where, hint = failure
        raise NotPossibleHereError(message, code=code, where=where, hint=hint)
    return answer  # type: ignore[no-any-return]


def _answer(sender: Connection, question: Callable[..., object], arguments: tuple[object, ...]) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    try:
        sender.send((question(*arguments), None))
    except PlannerError as error:
        sender.send((None, (error.message, error.code, error.where, error.hint)))
    except Exception as error:  # whatever a broken installation raises
        hint = 'see why with: python -c "import torch, flashinfer"'
        sender.send((None, (f"{type(error).__name__}: {error}", "environment-unknown", None, hint)))
