"""One question answered in a fresh process with FlashInfer."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from autotune_planner.errors import NotPossibleHereError, PlannerError
from autotune_planner.tuning.devices import DeviceKind

Answer = TypeVar("Answer")


@contextlib.contextmanager
def process_log(name: str) -> Iterator[str]:
    """The path of a log that stays only where a process died: the error names it."""
    folder = Path(tempfile.mkdtemp(prefix=f"autotune-plan-{name}-"))
    kept = False
    try:
        yield str(folder / f"{name}.log")
    except NotPossibleHereError:
        kept = True
        raise
    finally:
        if not kept:
            shutil.rmtree(folder)


def in_fresh_process(
    question: Callable[..., Answer], *arguments: object, device: DeviceKind, what: str, log_path: str
) -> Answer:
    """``question(*arguments)``, all picklable. ``NotPossibleHereError`` says what the process failed with, or how it
    ended, and names the log."""
    context = _context(device)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(sender, question, arguments), daemon=True)
    child.start()
    sender.close()
    try:
        answer: Answer | _Failure = receiver.recv()
    except EOFError:
        child.join()
        raise NotPossibleHereError(
            f"the {what} process ended with exit code {child.exitcode}",
            code=f"{what}-failed",
            where=log_path if os.path.exists(log_path) else None,
            hint="the log says what it did last"
            if os.path.exists(log_path)
            else 'it ended as it began: a script keeps its calls below if __name__ == "__main__":',
        ) from None
    finally:
        receiver.close()
    child.join()
    if isinstance(answer, _Failure):
        raise NotPossibleHereError(
            f"the {what} process failed: {answer.text}",
            code=f"{what}-failed",
            where=log_path,
            hint=answer.hint or "the log has the whole text",
        )
    return answer


def _context(device: DeviceKind) -> multiprocessing.context.SpawnContext | multiprocessing.context.ForkServerContext:
    """Without a GPU, processes are forked from one that has imported FlashInfer, which takes seconds. On a GPU that
    import makes a CUDA context, and none survives a fork."""
    if device == "cuda":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["flashinfer"])
    return context


def _answer(sender: Connection, question: Callable[..., object], arguments: tuple[object, ...]) -> None:
    try:
        sender.send(question(*arguments))
    except Exception as error:
        sender.send(_failure(error))
        raise  # multiprocessing prints it, to the log


@dataclass(frozen=True)
class _Failure:
    """An exception as text, since not every one can be pickled."""

    text: str
    hint: str | None


def _failure(error: Exception) -> _Failure:
    if isinstance(error, PlannerError):
        return _Failure(error.message, error.hint)
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return _Failure(text, f"install {missing}, or run it inside the server's image" if missing else None)
