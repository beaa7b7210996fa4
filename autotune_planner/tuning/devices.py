"""What this machine has: FlashInfer, and GPUs by the same queries that the server makes."""

from __future__ import annotations

import importlib.util
import multiprocessing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal

from autotune_planner.errors import NotPossibleHereError
from autotune_planner.tuning import flashinfer_internals as internals

DeviceKind = Literal["cuda", "simulated"]

SIMULATED = "simulated"  # first word of the ``gpu`` stamp of files that no server must load


@dataclass(frozen=True)
class CudaDevice:
    """One visible GPU. ``index`` counts within CUDA_VISIBLE_DEVICES, as torch does; memory in MiB."""

    index: int
    name: str
    compute_capability: tuple[int, int]
    memory_mib: int

    def __str__(self) -> str:
        major, minor = self.compute_capability
        return f"GPU {self.index}: {self.name}, SM{major}{minor}, {self.memory_mib} MiB"


def require_flashinfer(expected: str, engine: str, stated: str | None) -> str:
    """Installed FlashInfer version, equal to what the server will run.

    ``expected`` is the release's pin, ``stated`` what the user says of the server (``--flashinfer-version``): the
    version is part of the cache path and of every file's metadata, so a file of another version would never be read.
    """
    for package in ("torch", "flashinfer"):
        if importlib.util.find_spec(package) is None:
            raise NotPossibleHereError(
                f"{package} is not installed in this environment",
                code=f"{package}-missing",
                hint=f"run inside the server's image, or: pip install flashinfer-python=={expected}",
            )
    installed = internals.installed_version()
    wanted = stated or expected
    if installed != wanted:
        source = "--flashinfer-version says" if stated else f"{engine} pins"
        raise NotPossibleHereError(
            f"{source} FlashInfer {wanted}, but {installed} is installed here; the server would never open the result",
            code="flashinfer-version",
            hint=f"run inside the server's image, or: pip install flashinfer-python=={wanted}"
            + ("" if stated else f", or say that the server differs: --flashinfer-version {installed}"),
        )
    return wanted


def cuda_devices() -> tuple[CudaDevice, ...]:
    """Visible GPUs, asked in a child process so that this one never holds a CUDA context. Empty without a GPU."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_report_devices, args=(sender,), daemon=True)
    child.start()
    sender.close()
    try:
        return tuple(receiver.recv())
    except EOFError:
        raise NotPossibleHereError(
            "torch failed while it looked for GPUs",
            code="cuda-query-failed",
            hint='see why with: python -c "import torch; torch.cuda.get_device_properties(0)"; a script that calls the '
            'Python API keeps its calls below if __name__ == "__main__":',
        ) from None
    finally:
        child.join()


def visible_devices() -> tuple[CudaDevice, ...]:
    """The GPUs that torch sees in this process."""
    import torch

    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            CudaDevice(index, properties.name, (properties.major, properties.minor), properties.total_memory >> 20)
        )
    return tuple(found)


def _report_devices(sender: Connection) -> None:
    sender.send(visible_devices())
