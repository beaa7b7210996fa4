"""One question answered in a fresh process with FlashInfer."""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from autotune_planner.errors import NotPossibleHereError
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
    """``question(*arguments)``, all picklable. ``NotPossibleHereError`` names the log where the process dies."""
    context = _context(device)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(sender, question, arguments), daemon=True)
    child.start()
    sender.close()
    try:
        answer: Answer = receiver.recv()
    except EOFError:
        child.join()
        raise NotPossibleHereError(
            f"the {what} process ended with exit code {child.exitcode}", code=f"{what}-failed", where=log_path
        ) from None
    finally:
        receiver.close()
    child.join()
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
    sender.send(question(*arguments))
