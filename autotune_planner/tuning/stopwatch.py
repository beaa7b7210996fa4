"""Times bursts of launches on a GPU with CUDA events, hot L2, no graph: FlashInfer's default policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

_CYCLES_PER_MS = 2_000_000  # the SM clock is at most 2 GHz; at a lower one the wait is only longer
_MARGIN_MS = 0.1


@dataclass
class Known:
    """What a stopwatch knows of a list of tactics, by place; kept from bucket to bucket where their code is the same.

    ``loaded``: places whose code is on the GPU. ``kernel_ms``: last time seen. ``host_ms``: host time of one launch.
    """

    loaded: set[int] = field(default_factory=set)
    kernel_ms: dict[int, float] = field(default_factory=dict)
    host_ms: float = 0.04


class GpuStopwatch:
    """Queues a whole round, with events between bursts, behind one wait: the GPU never waits for the host.

    FlashInfer's own timer waits 5 ms before each tactic for that. Here a round waits once, for as long as the host
    needs beyond what the kernels take. ``launch(place)`` queues one launch of a tactic. A tactic whose code is not
    loaded runs once untimed first, since loading blocks the host.
    """

    def __init__(self, launch: Callable[[int], Any], known: Known) -> None:
        self._launch, self._known = launch, known

    def __call__(
        self, bursts: Sequence[int], launches: int, *, warm: int = 0, rest_ms: float = 0.0
    ) -> list[float | Exception]:
        errors = self._load(bursts)
        runnable = [place for place in bursts if place not in errors]
        wait_ms = max(rest_ms, self._lag_ms(runnable, launches + warm) + _MARGIN_MS)
        times, starved = self._queue(runnable, launches, warm, wait_ms)
        if starved:  # the host was slower than it had been: once more, behind a wait that covers all of it
            whole = self._known.host_ms * len(runnable) * (launches + warm)
            times, _ = self._queue(runnable, launches, warm, 1.5 * whole)
        measured = iter(times)
        results = [errors[place] if place in errors else next(measured) for place in bursts]
        for place, result in zip(bursts, results, strict=True):
            if not isinstance(result, Exception):
                self._known.kernel_ms[place] = result
        return results

    def _load(self, places: Sequence[int]) -> dict[int, Exception]:
        errors: dict[int, Exception] = {}
        for place in dict.fromkeys(places):
            if place not in self._known.loaded:
                error = self._try(place)
                if error is None:
                    self._known.loaded.add(place)
                else:
                    errors[place] = error
        return errors

    def _try(self, place: int) -> Exception | None:
        """Launch once. Running out of memory is not the tactic's fault and goes up."""
        import torch

        try:
            self._launch(place)
        except (torch.cuda.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            return error
        return None

    def _lag_ms(self, bursts: Sequence[int], launches: int) -> float:
        """How far the host would fall behind the kernels at most, were both to start at once.

        Times of another bucket count half, and a host that was measured is taken to be a fifth slower.
        """
        lag = most = 0.0
        for place in bursts:
            lag += launches * (1.2 * self._known.host_ms - 0.5 * self._known.kernel_ms.get(place, 0.0))
            most = max(most, lag)
        return most

    def _queue(
        self, bursts: Sequence[int], launches: int, warm: int, wait_ms: float
    ) -> tuple[list[float | Exception], bool]:
        """Queue a round and read it. Also: whether the GPU had caught up with the host before the last burst."""
        import torch

        def event() -> Any:
            return torch.cuda.Event(enable_timing=True)

        starts, ends, errors = [event()], [event() for _ in bursts], dict[int, Exception]()
        torch.cuda._sleep(int(wait_ms * _CYCLES_PER_MS))
        began = time.perf_counter()
        starts[0].record()
        for place, end in zip(bursts, ends, strict=True):
            for number in range(warm + launches):
                if number == warm > 0:
                    starts.append(event())
                    starts[-1].record()
                if place not in errors and (error := self._try(place)) is not None:
                    errors[place] = error
            end.record()
        starved = len(bursts) > 1 and not errors and ends[-2].query()
        self._known.host_ms = (time.perf_counter() - began) * 1e3 / max(1, len(bursts) * (launches + warm))
        (ends[-1] if ends else starts[0]).synchronize()
        befores = starts[1:] if warm else [*starts, *ends]
        times: list[float | Exception] = [
            errors[place] if place in errors else before.elapsed_time(after) / launches
            for place, before, after in zip(bursts, befores, ends, strict=False)
        ]
        return times, starved
