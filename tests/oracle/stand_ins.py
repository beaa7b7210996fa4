"""What stands in for a GPU in a process that runs the released server's code on a CPU.

Only questions about the machine are answered here (name, memory, SM count, compute capability), and two compiled
packages that cannot be loaded without CUDA are empty. No rule of the server is replaced.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Mapping
from typing import Any
from unittest.mock import MagicMock

import torch

CUDA_VERSION = "13.0"  # the server's own build: flashinfer_python[cu13] in the wheel's metadata
BUILT_FOR = torch.version.cuda  # the CUDA version of this environment's own torch
DRIVER_VERSION = "580.95.05"
GPUS = 8
_NOT_LOADABLE = frozenset(("sgl_kernel", "flash_mla", "torchvision"))
"""Compiled for CUDA (torchvision's operators for a torch with CUDA): resolution imports them and asks them nothing."""


class NoGpuError(Exception):
    """Something asks a GPU for more than ``with_gpu`` answers."""


class _Empty(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012
    __version__ = "99.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, found)
        return found


class _EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        if fullname.split(".")[0] in _NOT_LOADABLE:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def without_compiled_packages() -> None:
    sys.meta_path.insert(0, _EmptyModules())


def with_gpu(gpu: Mapping[str, Any]) -> None:
    """Torch's answers about the GPUs of this process: ``GPUS`` of the kind ``gpu``, a document of profiles/gpus."""
    major, minor = map(int, str(gpu["compute_capability"]).split("."))
    memory = int(gpu["memory_mib"]) << 20
    properties = types.SimpleNamespace(
        name=gpu["name"],
        major=major,
        minor=minor,
        multi_processor_count=gpu["sm_count"],
        total_memory=memory,
        gcnArchName="",
    )
    answers = {
        "is_available": True,
        "device_count": GPUS,
        "current_device": 0,
        "get_device_capability": (major, minor),
        "get_device_name": gpu["name"],
        "get_device_properties": properties,
        "mem_get_info": (memory, memory),
        "set_device": None,
    }
    torch.version.cuda = CUDA_VERSION
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    torch.cuda._lazy_init = _refuse


def _refuse() -> None:
    raise NoGpuError("a question to the GPU that no stand-in answers")


def nvidia_smi(gpu: Mapping[str, Any]) -> str:
    """A shell script that answers the server's three questions to ``nvidia-smi``."""
    return f"""#!/bin/sh
case "$*" in
  *memory.total*) echo {gpu["memory_mib"]} ;;
  *compute_cap*) echo {gpu["compute_capability"]} ;;
  *driver_version*) echo {DRIVER_VERSION} ;;
  *) exit 1 ;;
esac
"""
