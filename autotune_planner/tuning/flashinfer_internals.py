"""Every touch of FlashInfer's private names, in one place (FlashInfer 0.7.x).

FlashInfer's own op code always runs: shape checks, runner construction, key extras, bucketing and ``choose_one``. On a
machine without the GPU only what needs one is replaced, and put back on exit: the compiled modules, the capability
queries and the timer.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import logging
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Protocol

from autotune_planner.errors import NotPossibleHereError
from autotune_planner.tuning.quarantine import Place, tactic_place
from autotune_planner.tuning.race import RaceResult, Stopwatch
from autotune_planner.tuning.stopwatch import GpuStopwatch, Known
from autotune_planner.tuning.tie_order import in_tie_order

_STAND_IN_TACTICS = 45  # per GEMM, as the SM90 bf16 module offers; cuBLASLt's list is shorter
_STAND_IN_ALGOS = 8
_STAND_IN_SM_COUNT = 132
_MIB = 1 << 20


class Timer(Protocol):
    """Time of one tactic in milliseconds. Raises as a kernel would where the tactic cannot run.

    ``launches``: how many are timed together; None is FlashInfer's own timer, with its delay and warm-up.
    """

    def __call__(
        self, runner: str, shapes: tuple[tuple[int, ...], ...], tactic: Any, gemm: int, top_k: int, launches: int | None
    ) -> float: ...


def installed_version() -> str | None:
    """Version of the installed FlashInfer without importing it; None where there is none."""
    if importlib.util.find_spec("flashinfer") is None:
        return None
    try:
        return importlib.metadata.version("flashinfer-python")
    except importlib.metadata.PackageNotFoundError:
        return None


def import_flashinfer(*, quiet: bool) -> Any:
    """Import FlashInfer; ``quiet`` keeps its start-up log off stderr. ``NotPossibleHereError`` where it cannot load."""
    with _environment_default("FLASHINFER_LOGGING_LEVEL", "error") if quiet else contextlib.nullcontext():
        try:
            return importlib.import_module("flashinfer")
        except (ImportError, OSError) as error:
            raise NotPossibleHereError(
                f"FlashInfer cannot be imported: {error}",
                code="flashinfer-missing",
                hint="install it in this environment: pip install flashinfer-python==0.7.2",
            ) from error


@contextlib.contextmanager
def _environment_default(name: str, value: str) -> Iterator[None]:
    """Set a variable that is not set, and unset it on exit: worker processes inherit the environment."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def keep_tqdm_in_process() -> None:
    """FlashInfer's progress bar takes a lock that spans processes; a killed worker would leak its semaphore."""
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())


def collect_metadata() -> dict[str, str]:
    """The environment stamp that FlashInfer writes into a cache file made by this process."""
    from flashinfer.autotuner import _collect_metadata

    return dict(_collect_metadata())


def compiled_folder() -> str:
    """Where FlashInfer puts the modules that it compiles on this machine."""
    from flashinfer.jit import env

    return str(env.FLASHINFER_JIT_DIR)


def is_compiled(module: str) -> bool:
    """Whether a module of this name is there, compiled here or prebuilt (flashinfer-jit-cache)."""
    from flashinfer.jit import env

    return (env.FLASHINFER_JIT_DIR / module / f"{module}.so").exists() or bool(env.get_aot_path(module).exists())


def tuned_keys(tuner: Any) -> dict[str, tuple[Any, ...]]:
    """Key text as a v1 file holds it -> profiling policy, for everything that this tuner has profiled."""
    return {key.file_key: tuner._profiling_cache_policies[(None, key)] for key in tuner.profiling_cache}


@contextlib.contextmanager
def fresh_tuner() -> Iterator[Any]:
    """A new ``AutoTuner`` in place of the process's, which comes back untouched on exit."""
    from flashinfer.autotuner import AutoTuner

    with _patched() as patch:
        tuner = AutoTuner()
        patch(AutoTuner, "_instance", tuner)
        yield tuner


@contextlib.contextmanager
def without_gpu(capability: tuple[int, int], gpu_name: str, timer: Timer) -> Iterator[None]:
    """Run FlashInfer's op code for a GPU of ``capability`` on a machine that has none.

    Compiled modules become stand-ins that offer tactics and compute nothing, so tensors may live on the meta device.
    ``timer`` answers for the tuner's own. ``gpu_name`` is stamped into the metadata of files written inside.
    """
    import flashinfer.autotuner.autotuner as autotuner
    import flashinfer.fused_moe.core as fused_moe
    import flashinfer.gemm.gemm_base as gemm
    import flashinfer.gemm.gemm_bf16_fp4 as bf16_fp4
    import flashinfer.gemm.gemm_bf16_fp4_cute_dsl as bf16_fp4_cute_dsl
    import flashinfer.utils as utils
    import torch

    def no_device(*_: Any, **__: Any) -> Any:
        return contextlib.nullcontext()

    def capability_of(*_: Any) -> tuple[int, int]:
        return capability

    def profile(
        self: Any, runner: Any, inputs: Any, tactic: Any, tuning_config: Any = None, *_: Any, **kwargs: Any
    ) -> float:
        shapes = _with_weights(runner, self._get_input_sizes(inputs))
        gemm, top_k = int(kwargs.get("gemm_idx", 0)), int(getattr(runner, "top_k", 1))
        return timer(type(runner).__name__, shapes, tactic, gemm, top_k, kwargs.get("launches"))

    make = vars(autotuner.AutoTuner).get("_create_tensor_like")

    def create(self: Any, origin: Any, dims: Any, initializer: Any) -> Any:
        """The meta device has no generator of random numbers."""
        return make(self, origin, dims, _uninitialised if origin.is_meta else initializer)

    with _patched() as patch, contextlib.ExitStack() as caches:
        patch(torch.cuda, "is_current_stream_capturing", lambda: False)
        patch(torch.cuda, "device", no_device)
        patch(torch.cuda, "current_device", lambda: 0)
        patch(torch.cuda, "get_device_capability", capability_of)
        patch(torch.cuda, "get_device_name", lambda *_: gpu_name)
        patch(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(multi_processor_count=_STAND_IN_SM_COUNT))
        for module in (fused_moe, gemm, bf16_fp4, bf16_fp4_cute_dsl, utils):
            patch(module, "get_compute_capability", capability_of)
            patch(module, "device_support_pdl", lambda *_: capability[0] >= 9, optional=True)
            patch(module, "is_cuda_version_at_least", lambda *_: True, optional=True)
        patch(autotuner.AutoTuner, "_profile_single_kernel", profile)
        patch(autotuner.AutoTuner, "_get_l2_cache_size_in_bytes", lambda *_: 50 * _MIB)
        patch(autotuner.TunableRunner, "__call__", lambda *_, **__: None)  # CuTe DSL would compile what it launches
        patch(fused_moe, "_device_support_moe_pdl", lambda *_: capability[0] >= 9)
        patch(autotuner.AutoTuner, "_create_tensor_like", create)
        for module in (fused_moe, gemm):
            for name in dir(module):
                if name.startswith("gen_") and "module" in name:
                    patch(module, name, lambda *_, **__: _StandInSpec())
                caches.enter_context(_cleared(getattr(module, name)))
        yield


def _with_weights(runner: Any, shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """TensorRT-LLM's MoE runner has no weights among its inputs: their sizes are its attributes."""
    if not hasattr(runner, "hidden_size_output"):
        return shapes
    experts, hidden, width = runner.num_local_experts, runner.hidden_size, runner.intermediate_size
    return (*shapes, (experts, 2 * width, hidden), (experts, hidden, width))


def _uninitialised(shape: Any, dtype: Any, device: Any) -> Any:
    import torch

    return torch.empty(shape, dtype=dtype, device=device)


class _StandInSpec:
    """Stands for a JIT build description."""

    def build_and_load(self) -> Module:
        return Module()

    def get_library_paths(self) -> tuple[str, ...]:
        return ()


class Module:
    """Stands for a compiled module: answers how many tactics there are, and computes nothing.

    Named as TVM-FFI names the class of real ones: keys of trtllm-gen MoE hold that name.
    """

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "init":
            return lambda *_: Module()
        if "valid_moe_configs" in name:
            return lambda *_: [[tile, number] for tile in (8, 64) for number in range(_STAND_IN_ALGOS)]
        if "get_algos" in name:
            return lambda *_: _STAND_IN_ALGOS
        if "tactic_count" in name or "tactic_num" in name:
            return lambda *_: _STAND_IN_TACTICS
        if "occupancy" in name:
            return lambda *_: 1
        if name.startswith("trtllm_"):
            return lambda *_: _results()
        return lambda *_, **__: None


def _results() -> list[Any]:
    """What a MoE gives that leaves its last sum to others: read back through DLPack, which meta tensors have not."""
    import torch

    return [torch.zeros(1) for _ in range(4)]


class _Patch(Protocol):
    def __call__(self, owner: Any, name: str, value: Any, *, optional: bool = False) -> None: ...


@contextlib.contextmanager
def _patched() -> Iterator[_Patch]:
    """Replace attributes and put every one back on exit, in reverse order."""
    undo: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, name: str, value: Any, *, optional: bool = False) -> None:
        if name not in vars(owner):
            if optional:
                return
            raise NotPossibleHereError(
                f"this FlashInfer has no {getattr(owner, '__name__', owner)}.{name}",
                code="flashinfer-unknown",
                hint="use a FlashInfer release that autotune-plan knows: pip install flashinfer-python==0.7.2",
            )
        undo.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    try:
        yield patch
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)


@contextlib.contextmanager
def _cleared(candidate: Any) -> Iterator[None]:
    """Forget what a cached function of FlashInfer returned, before and after: no stand-in outlives the context.

    A new module also means a new ``MoERunner`` class, whose bucket bound FlashInfer caches by value and keeps on the
    class: of several bounds in one process the last new one would win.
    """
    clear = getattr(candidate, "cache_clear", None)
    if not callable(clear) or not str(getattr(candidate, "__module__", "")).startswith("flashinfer"):
        yield
        return
    clear()
    try:
        yield
    finally:
        clear()


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """FlashInfer without progress bars, and with errors only in its log."""
    import flashinfer.autotuner.autotuner as autotuner
    from flashinfer.jit.core import logger

    level = logger.level
    with _patched() as patch:
        patch(autotuner.tqdm, "tqdm", functools.partial(autotuner.tqdm.tqdm, disable=True))
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


@dataclass(frozen=True)
class Lookup:
    """One question of the tuner to its entries: ``key`` as a v1 file has it, ``policy`` as the op asks for it.

    ``tactic`` is what was found, None on a miss; ``timings`` counts the tactics that were timed instead. ``offered``
    is whether the runner lists the tactic for the very inputs of the call; None where the lookup was for others.
    """

    custom_op: str
    key: str
    policy: tuple[Any, ...]
    hit: bool
    tactic: Any = None
    offered: bool | None = None
    timings: int = 0


class TunerWatch:
    """What a tuner did: lookups in order, and of those the custom ops with and without success, and tactics timed."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.lookups: list[Lookup] = []

    @property
    def hits(self) -> list[str]:
        return [lookup.custom_op for lookup in self.lookups if lookup.hit]

    @property
    def misses(self) -> list[str]:
        return [lookup.custom_op for lookup in self.lookups if not lookup.hit]

    @property
    def timings(self) -> int:
        return sum(lookup.timings for lookup in self.lookups)


@contextlib.contextmanager
def watched_tuner(*, only_count: bool = False) -> Iterator[TunerWatch]:
    """Watch the lookups and timings of the process's tuner; it works as ever.

    In a tuning context an op looks up every bucket of its grid, then the call's own: a miss of any is timed. With
    ``only_count`` no tactic runs for that: the default is taken to win.
    """
    from flashinfer.autotuner import AutoTuner

    watch = TunerWatch()
    search, profile = (vars(AutoTuner).get(name) for name in ("search_cache", "_profile_single_kernel"))

    def watched_search(
        self: Any, custom_op: str, runners: Any, input_shapes: Any, tuning_config: Any, inputs: Any = None, **how: Any
    ) -> Any:
        result = search(self, custom_op, runners, input_shapes, tuning_config, inputs=inputs, **how)
        hit, place, tactic, _ = result
        runner = runners[place]
        extras = () if inputs is None else runner.get_cache_key_extras(inputs)
        key = AutoTuner._get_cache_key(custom_op, runner, input_shapes, tuning_config, extras)
        own = inputs is not None and tuple(self._get_input_sizes(inputs)) == tuple(input_shapes)
        watch.lookups.append(
            Lookup(
                custom_op,
                key.file_key,
                tuple(self._profiling_policy(tuning_config)),
                hit,
                tactic if hit else None,
                _offers(runner, inputs, input_shapes, tactic) if hit and own else None,
            )
        )
        return result

    def watched_profile(self: Any, *args: Any, **kwargs: Any) -> Any:
        if watch.lookups:
            watch.lookups[-1] = replace(watch.lookups[-1], timings=watch.lookups[-1].timings + 1)
        return 1.0 if only_count else profile(self, *args, **kwargs)

    with _patched() as patch:
        patch(AutoTuner, "search_cache", watched_search)
        patch(AutoTuner, "_profile_single_kernel", watched_profile)
        yield watch


def _offers(runner: Any, inputs: Any, shapes: Iterable[Iterable[int]], tactic: Any) -> bool:
    """Whether a runner lists a tactic for inputs of these very shapes. The default (-1) is always there."""
    from flashinfer.autotuner import OptimizationProfile, StaticDim

    dimensions = [[StaticDim(size) for size in shape] for shape in shapes]
    profile = OptimizationProfile(dimensions, [None] * len(dimensions))
    return tactic == -1 or _hashable(tactic) in map(_hashable, runner.get_valid_tactics(inputs, profile))


def _hashable(tactic: Any) -> Any:
    """A tactic as FlashInfer keeps what it has read: sequences of any kind as tuples."""
    if isinstance(tactic, int | str | float | None):
        return tactic
    return tuple(map(_hashable, tactic))


@dataclass(frozen=True)
class Chosen:
    """What FlashInfer chose for one custom op of a call; ``ms`` is its timer's answer, None where it was not asked."""

    custom_op: str
    tactic: Any
    ms: float | None


@contextlib.contextmanager
def watched_choices(*, timed: bool) -> Iterator[list[Chosen]]:
    """List the choices of the process's tuner, which works as ever; ``timed`` asks its timer for each."""
    from flashinfer.autotuner import AutoTuner

    choose = vars(AutoTuner).get("choose_one")
    chosen: list[Chosen] = []

    def watched(self: Any, custom_op: str, runners: Any, tuning_config: Any, inputs: Any, **kwargs: Any) -> Any:
        runner, tactic = choose(self, custom_op, runners, tuning_config, inputs, **kwargs)
        ms = self._profile_single_kernel(runner, inputs, tactic, tuning_config, **kwargs) if timed else None
        chosen.append(Chosen(custom_op, tactic, ms))
        return runner, tactic

    with _patched() as patch:
        patch(AutoTuner, "choose_one", watched)
        yield chosen


@dataclass(frozen=True)
class _RunnerTraits:
    """What a runner's profiling launches do beyond running the tactic.

    ``cycle``: launches after which the profiler has used each of its inputs once. ``code_by_bucket``: whether a tactic
    may be other code, still to be loaded, in another bucket.
    """

    cycle: int = 1
    code_by_bucket: bool = True


# MoERunner: GemmProfilerBackend::runProfiler steps to the next of NUM_ROUTING_SAMPLES = 16 routings with every launch,
# and they differ by up to 20 % in time. A cuBLASLt tactic is a place in a list made for each shape.
_TRAITS = {"MoERunner": _RunnerTraits(cycle=16, code_by_bucket=False)}

# What this process knows of an op's tactics from earlier buckets: (custom op, key extras, tactics) -> by place.
_known: defaultdict[tuple[Any, ...], Known] = defaultdict(Known)

Search = Callable[..., RaceResult]  # (candidates, stopwatch, cycle=...): candidates are places in FlashInfer's list


@dataclass(frozen=True)
class Raced:
    """One profile that was raced. ``result`` names tactics by their place in ``tactics``; ``seconds`` is wall time."""

    custom_op: str
    runner: str
    shapes: tuple[tuple[int, ...], ...]
    tactics: tuple[Any, ...]
    result: RaceResult
    seconds: float


def racing_obstacle() -> str | None:
    """Why this FlashInfer cannot race: a private name that is missing or changed. None where it can."""
    import flashinfer.autotuner.autotuner as autotuner
    from flashinfer.tactics_blocklist import TacticsBlocklist

    wanted: list[tuple[Any, str, tuple[str, ...]]] = [
        (autotuner.AutoTuner, "choose_one", ("custom_op", "runners", "tuning_config", "inputs")),
        (autotuner.AutoTuner, "_profile_single_kernel", ("runner", "inputs", "tactic", "tuning_config")),
        (TacticsBlocklist, "filter", ("custom_op", "runner", "tactics")),
        (autotuner, "_profile_measurement_scope", ()),
    ]
    for owner, name, parameters in wanted:
        function = vars(owner).get(name)
        if function is None or not set(parameters) <= set(inspect.signature(function).parameters):
            return f"this FlashInfer has no {owner.__name__}.{name}({', '.join(parameters)})"
    return None


@contextlib.contextmanager
def racing(search: Search, first_of: Callable[[str], Sequence[Any]] = lambda custom_op: ()) -> Iterator[list[Raced]]:
    """Let ``search`` choose where FlashInfer's tuner would time every tactic, and list what was raced.

    ``first_of`` names the tactics of a custom op that go first in a tie; FlashInfer's own order follows.

    FlashInfer's ``choose_one`` still makes the inputs, asks for the tactics, blocks, skips, stores and writes; only
    its timer is answered, so that its minimum is the search's winner. A profile that ``search`` cannot time as its
    policy demands (cold L2, CUDA graphs, averages over ranks) is left to FlashInfer's own timer.
    """
    import flashinfer.autotuner.autotuner as autotuner
    from flashinfer.tactics_blocklist import TacticsBlocklist

    tuner_class = autotuner.AutoTuner
    choose, profile, keep = (
        vars(owner).get(name)
        for owner, name in (
            (tuner_class, "choose_one"),
            (tuner_class, "_profile_single_kernel"),
            (TacticsBlocklist, "filter"),
        )
    )
    raced: list[Raced] = []
    present = _Present()

    def watched_choose(self: Any, custom_op: str, *args: Any, **kwargs: Any) -> Any:
        outer = present.custom_op
        present.custom_op = custom_op
        try:
            return choose(self, custom_op, *args, **kwargs)
        finally:
            present.custom_op, present.offered, present.answers = outer, None, None

    def watched_filter(self: Any, custom_op: str, runner: Any, tactics: Any) -> Any:
        kept = keep(self, custom_op, runner, tactics)
        present.offered = (runner, list(kept)) if custom_op == present.custom_op else None
        present.answers = None
        return kept

    def answering(self: Any, runner: Any, inputs: Any, tactic: Any, tuning_config: Any, **kwargs: Any) -> float:
        timer = functools.partial(profile, self, runner, inputs)
        if present.answers is None:
            if present.offered is None or present.offered[0] is not runner or not _raceable(self, tuning_config):
                return float(timer(tactic, tuning_config, **kwargs))
            offered = present.offered[1]
            tactics = tuple(offered if offered and offered[0] == tactic else [tactic, *offered])
            call = {name: value for name, value in kwargs.items() if name != "input_tensor_batches"}
            stopwatch: Stopwatch
            if any(getattr(tensor, "is_cuda", False) for tensor in inputs):
                stopwatch = _gpu_stopwatch(present.custom_op, runner, inputs, tactics, call)
            else:
                stopwatch = _borrowed_timer(functools.partial(timer, tuning_config=tuning_config, **call), tactics)
            started = time.monotonic()
            with autotuner._profile_measurement_scope():
                order = in_tie_order(tactics, first_of(present.custom_op))
                result = search(order, stopwatch, cycle=_traits(runner).cycle)
            seconds = time.monotonic() - started
            shapes = self._get_input_sizes(inputs)
            raced.append(Raced(present.custom_op, type(runner).__name__, shapes, tactics, result, seconds))
            present.answers = _answers(tactics, result)
        expected, answer = next(present.answers)
        assert expected == tactic, "FlashInfer's tuner asks for its tactics in the order in which it lists them"
        if isinstance(answer, Exception):
            raise answer
        return answer

    with _patched() as patch:
        patch(tuner_class, "choose_one", watched_choose)
        patch(TacticsBlocklist, "filter", watched_filter)
        patch(tuner_class, "_profile_single_kernel", answering)
        yield raced


class _Present:
    """The profile that the tuner is at: its op, the tactics offered for its runner, the answers still to give."""

    custom_op: str = ""
    offered: tuple[Any, list[Any]] | None = None
    answers: Iterator[tuple[Any, float | Exception]] | None = None


def _raceable(tuner: Any, tuning_config: Any) -> bool:
    """Whether the op's policy is the one that the stopwatches keep: hot L2, eager launches, event timer, one rank."""
    from flashinfer.autotuner import get_autotune_process_group

    return (
        not tuning_config.use_cold_l2_cache
        and not tuning_config.use_cuda_graph
        and tuner._effective_measure_policy is None
        and not tuner._use_global_timer
        and get_autotune_process_group() is None
    )


def _answers(tactics: Sequence[Any], result: RaceResult) -> Iterator[tuple[Any, float | Exception]]:
    """What to tell the tuner for each tactic, in its order: the winner's time is the least, failures are raised."""
    least = result.times[result.winner] if result.winner is not None else 0.0
    for place, tactic in enumerate(tactics):
        if place in result.errors:
            yield tactic, result.errors[place]
        elif place == result.winner:
            yield tactic, least
        else:
            yield tactic, max(result.times[place], math.nextafter(least, math.inf))


def _traits(runner: Any) -> _RunnerTraits:
    return _TRAITS.get(type(runner).__name__, _RunnerTraits())


def _gpu_stopwatch(
    custom_op: str, runner: Any, inputs: Any, tactics: Sequence[Any], call: Mapping[str, Any]
) -> GpuStopwatch:
    code = (custom_op, runner.get_cache_key_extras(inputs), str(tactics))
    known = Known() if _traits(runner).code_by_bucket else _known[code]
    return GpuStopwatch(lambda place: runner(inputs, tactic=tactics[place], **call), known)


def _borrowed_timer(timer: Callable[..., float], tactics: Sequence[Any]) -> Stopwatch:
    """On tensors that are on no GPU: the timer that stands in for FlashInfer's."""

    def measure(
        bursts: Sequence[int], launches: int, *, warm: int = 0, rest_ms: float = 0.0
    ) -> list[float | Exception]:
        times: list[float | Exception] = []
        for place in bursts:
            try:
                times.append(timer(tactic=tactics[place], launches=launches + warm))
            except MemoryError:
                raise
            except Exception as error:
                times.append(error)
        return times

    return measure


@dataclass(frozen=True)
class TimedTactic:
    """One answer of FlashInfer's own timer, in milliseconds; None where the tactic raised."""

    runner: str
    tactic: Any
    ms: float | None


@contextlib.contextmanager
def watched_tactics(
    before: Callable[[str, Any], None] | None = None,
    on_no_memory: Callable[[str, Any], None] | None = None,
    on_error: Callable[[], None] | None = None,
) -> Iterator[list[TimedTactic]]:
    """List what FlashInfer's own loop times, which goes on as ever.

    ``before`` hears of each tactic ahead of it, ``on_error`` of one that raised, before the next is tried.

    With ``on_no_memory`` a tactic that runs out of memory is told of and skipped, where FlashInfer would give the whole
    profile up.
    """
    import torch
    from flashinfer.autotuner import AutoTuner

    profile = vars(AutoTuner).get("_profile_single_kernel")
    timed: list[TimedTactic] = []

    def watched(self: Any, runner: Any, inputs: Any, tactic: Any, *args: Any, **kwargs: Any) -> float:
        name = type(runner).__name__
        if before is not None:
            before(name, tactic)
        try:
            ms = float(profile(self, runner, inputs, tactic, *args, **kwargs))
        except (torch.cuda.OutOfMemoryError, MemoryError) as error:
            timed.append(TimedTactic(name, tactic, None))
            if on_no_memory is None:
                raise
            on_no_memory(name, tactic)
            raise RuntimeError("out of memory") from error
        except Exception:
            timed.append(TimedTactic(name, tactic, None))
            if on_error is not None:
                on_error()
            raise
        timed.append(TimedTactic(name, tactic, ms))
        return ms

    with _patched() as patch:
        patch(AutoTuner, "_profile_single_kernel", watched)
        yield timed


def blocklisted() -> frozenset[Place]:
    """What ``FLASHINFER_TACTICS_BLOCKLIST`` blocks here; nothing where its stamp is of another environment."""
    from flashinfer.autotuner import AutoTuner, _tactic_to_json

    blocked = set()
    for name, tactics in AutoTuner.get()._blocklist._invalid.items():
        custom_op, _, runner = name.rpartition("::")
        blocked |= {tactic_place(custom_op, runner, _tactic_to_json(tactic)) for tactic in tactics}
    return frozenset(blocked)


def block_tactics(tuner: Any, custom_op: str, blocked: Iterable[tuple[str, Any]]) -> None:
    """Add (runner, tactic) pairs to the tuner's blocklist, beside those of ``FLASHINFER_TACTICS_BLOCKLIST``."""
    from flashinfer.autotuner import _tactic_to_json_hashable

    for runner, tactic in blocked:
        tuner._blocklist._invalid.setdefault(f"{custom_op}::{runner}", set()).add(_tactic_to_json_hashable(tactic))


@contextlib.contextmanager
def launches_watched(before: Callable[[Any], Callable[[Any], Any] | None], *, on_gpu: bool) -> Iterator[None]:
    """Call ``before(tactic)`` ahead of each launch of a tactic; what it returns, if anything, changes the output.

    On a GPU that is each call of a runner. The simulated device calls none: there it is each question to its timer.
    """
    from flashinfer.autotuner import AutoTuner, TunableRunner

    if on_gpu:
        owner, name = TunableRunner, "__call__"
    else:
        owner, name = AutoTuner, "_profile_single_kernel"
    original = vars(owner)[name]

    def launched(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        change = before(kwargs.get("tactic", -1))
        output = original(self, inputs, *args, **kwargs)
        return output if change is None else change(output)

    def asked(self: Any, runner: Any, inputs: Any, tactic: Any, *args: Any, **kwargs: Any) -> Any:
        before(tactic)
        return original(self, runner, inputs, tactic, *args, **kwargs)

    with _patched() as patch:
        patch(owner, name, launched if on_gpu else asked)
        yield


def context_lost() -> bool:
    """Whether the CUDA context of this process is beyond use, as after an illegal access."""
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
