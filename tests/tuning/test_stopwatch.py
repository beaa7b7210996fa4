"""The GPU stopwatch against a stand-in for torch's CUDA events: what it queues, and what it makes of the times."""

from types import SimpleNamespace

import pytest

from autotune_planner.tuning.stopwatch import GpuStopwatch, Known


class Gpu:
    """One stream that runs what is queued in order; ``host_ms`` passes on the host with each launch."""

    def __init__(self, monkeypatch, kernel_ms, *, host_ms=0.0, failing=()):
        import torch

        self.kernel_ms, self.host_ms, self.failing = kernel_ms, host_ms, failing
        self.host = self.stream = 0.0
        self.queued = []
        gpu = self

        class Event:
            def __init__(self, *, enable_timing):
                assert enable_timing

            def record(self):
                gpu.stream = max(gpu.stream, gpu.host)
                self.at = gpu.stream

            def query(self):
                return self.at <= gpu.host

            def synchronize(self):
                gpu.host = max(gpu.host, self.at)

            def elapsed_time(self, end):
                return end.at - self.at

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "_sleep", self.sleep, raising=False)
        monkeypatch.setattr(
            "autotune_planner.tuning.stopwatch.time", SimpleNamespace(perf_counter=lambda: self.host / 1e3)
        )

    def sleep(self, cycles):
        self.stream = max(self.stream, self.host) + cycles / 2e6
        self.queued.append(("wait", round(cycles / 2e6, 3)))

    def launch(self, place):
        self.host += self.host_ms
        if place in self.failing:
            raise RuntimeError("invalid configuration")
        self.stream = max(self.stream, self.host) + self.kernel_ms[place]
        self.queued.append(place)


def test_times_are_per_launch_and_bursts_are_contiguous(monkeypatch):
    gpu = Gpu(monkeypatch, {0: 0.5, 1: 0.25})
    stopwatch = GpuStopwatch(gpu.launch, Known(loaded={0, 1}))
    assert stopwatch([0, 1, 0], 2) == pytest.approx([0.5, 0.25, 0.5])
    assert gpu.queued[1:] == [0, 0, 1, 1, 0, 0]


def test_code_is_loaded_before_the_first_timing_and_once(monkeypatch):
    gpu = Gpu(monkeypatch, {0: 0.5, 1: 0.25})
    stopwatch = GpuStopwatch(gpu.launch, Known())
    stopwatch([0, 1, 0], 1)
    assert [item for item in gpu.queued if not isinstance(item, tuple)] == [0, 1, 0, 1, 0]
    gpu.queued.clear()
    stopwatch([1], 1)
    assert gpu.queued[1:] == [1]


def test_warm_launches_are_queued_but_not_timed(monkeypatch):
    gpu = Gpu(monkeypatch, {0: 0.5, 1: 0.25})
    stopwatch = GpuStopwatch(gpu.launch, Known(loaded={0, 1}))
    assert stopwatch([0, 1], 3, warm=1) == pytest.approx([0.5, 0.25])
    assert gpu.queued[1:] == [0] * 4 + [1] * 4


def test_the_wait_covers_what_the_host_lags_behind(monkeypatch):
    # 20 launches of 0.01 ms kernels by a host that takes 0.04 ms for each: without the wait the GPU would idle.
    gpu = Gpu(monkeypatch, {0: 0.01, 1: 0.01}, host_ms=0.04)
    stopwatch = GpuStopwatch(gpu.launch, Known(loaded={0, 1}))
    assert stopwatch([0, 1] * 10, 1) == pytest.approx([0.01] * 20)
    ((_, waited),) = [item for item in gpu.queued if isinstance(item, tuple)]
    assert waited >= 20 * (0.04 - 0.01)


def test_a_round_in_which_the_gpu_idled_is_timed_again(monkeypatch):
    gpu = Gpu(monkeypatch, {0: 0.01, 1: 0.01}, host_ms=0.5)
    stopwatch = GpuStopwatch(gpu.launch, Known(loaded={0, 1}))
    assert stopwatch([0, 1] * 4, 1) == pytest.approx([0.01] * 8)
    waits = [item[1] for item in gpu.queued if isinstance(item, tuple)]
    assert len(waits) == 2
    assert waits[1] == pytest.approx(1.5 * 8 * 0.5)


def test_a_rest_is_the_least_wait(monkeypatch):
    gpu = Gpu(monkeypatch, {0: 0.5})
    GpuStopwatch(gpu.launch, Known(loaded={0}))([0], 1, rest_ms=7.0)
    assert gpu.queued[0] == ("wait", 7.0)


def test_a_failing_tactic_gives_its_error_and_the_others_their_times(monkeypatch):
    gpu = Gpu(monkeypatch, {0: 0.5, 1: 0.25, 2: 0.125}, failing={1})
    for known in (Known(), Known(loaded={0, 1, 2})):
        first, failed, last = GpuStopwatch(gpu.launch, known)([0, 1, 2], 2)
        assert (first, last) == pytest.approx((0.5, 0.125))
        assert str(failed) == "invalid configuration"


def test_running_out_of_memory_is_not_the_tactic_s_fault(monkeypatch):
    gpu = Gpu(monkeypatch, {0: 0.5})

    def no_memory(place):
        raise MemoryError

    with pytest.raises(MemoryError):
        GpuStopwatch(no_memory, Known())([0], 1)
    assert gpu.queued == []
