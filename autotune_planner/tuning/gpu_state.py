"""Clocks, temperature and throttling of a GPU while it is measured, from NVML (``nvidia-ml-py``, which FlashInfer
brings)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

_THROTTLE = {
    0x2: "applications clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}


def throttle_reasons(mask: int) -> list[str]:
    """NVML's clocks-event reasons by name; idle is none."""
    return [name for bit, name in _THROTTLE.items() if mask & bit]


def gpu_state() -> dict[str, Any] | None:
    """The state of torch's current GPU; None where NVML is not there or does not answer."""
    import torch

    with _nvml() as nvml:
        if nvml is None or not torch.cuda.is_available():
            return None
        with contextlib.suppress(nvml.NVMLError):
            properties = torch.cuda.get_device_properties(torch.cuda.current_device())
            uuid = f"GPU-{properties.uuid}"
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
            return {
                "name": properties.name,
                "uuid": uuid,
                "sm_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                "memory_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
                "temperature_c": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
                "throttle": throttle_reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
            }
    return None


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """The library, initialised; None without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no driver, another version of it: a run without these figures is complete
        yield None
        return
    try:
        yield pynvml
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
