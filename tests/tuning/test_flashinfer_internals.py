"""FlashInfer's private names are replaced only inside the contexts, and all of them come back."""

import importlib
import importlib.metadata
import importlib.util
import os

import pytest

from autotune_planner.errors import NotPossibleHereError
from autotune_planner.tuning import flashinfer_internals as internals
from autotune_planner.tuning.contexts import tuning_contexts
from autotune_planner.tuning.keys import exact_keys
from tests.tuning.plans import H200, small_plan

FLASHINFER = pytest.mark.flashinfer


@pytest.fixture(scope="module")
def owners():
    """Everything that ``without_gpu``, ``fresh_tuner`` and ``watched_tuner`` replace attributes of."""
    import flashinfer.autotuner.autotuner as autotuner
    import flashinfer.fused_moe.core as fused_moe
    import flashinfer.gemm.gemm_base as gemm
    import flashinfer.utils as utils
    import torch

    exact_keys(small_plan())  # modules that are imported on first use are there from now on
    autotuner.AutoTuner.get()
    return [torch.cuda, fused_moe, gemm, utils, autotuner, autotuner.AutoTuner, autotuner.tqdm]


def attributes(owners):
    return [{name: id(value) for name, value in vars(owner).items()} for owner in owners]


def without_gpu():
    return internals.without_gpu((9, 0), H200.name, lambda *_: 1.0)


def call_every_op():
    for unit in small_plan().units:
        unit.call.prepare("meta")(unit.bucket)()


@FLASHINFER
def test_everything_replaced_is_put_back(owners):
    before = attributes(owners)
    with without_gpu():
        assert attributes(owners) != before
        with internals.fresh_tuner(), internals.watched_tuner(), tuning_contexts(None):
            call_every_op()
    assert attributes(owners) == before


@FLASHINFER
def test_everything_replaced_is_put_back_after_an_error(owners):
    before = attributes(owners)

    def fail():
        with without_gpu(), internals.fresh_tuner(), internals.watched_tuner():
            call_every_op()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert attributes(owners) == before


@FLASHINFER
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("torch.cuda", "get_device_name"),
        ("flashinfer.fused_moe.core", "get_compute_capability"),
        ("flashinfer.gemm.gemm_base", "get_compute_capability"),
        ("flashinfer.autotuner.autotuner:AutoTuner", "_profile_single_kernel"),
        ("flashinfer.autotuner.autotuner:AutoTuner", "_get_l2_cache_size_in_bytes"),
    ],
)
def test_a_missing_hook_is_named_and_the_others_come_back(owners, monkeypatch, owner, name):
    module, _, attribute = owner.partition(":")
    target = importlib.import_module(module)
    monkeypatch.delattr(getattr(target, attribute) if attribute else target, name)
    before = attributes(owners)
    with pytest.raises(NotPossibleHereError, match=name) as raised, without_gpu():
        pass
    assert raised.value.code == "flashinfer-unknown"
    assert attributes(owners) == before


@FLASHINFER
@pytest.mark.parametrize("name", ["search_cache", "_profile_single_kernel"])
def test_a_watch_without_its_hook_is_refused(owners, monkeypatch, name):
    monkeypatch.delattr(owners[5], name)
    before = attributes(owners)
    with pytest.raises(NotPossibleHereError, match=name) as raised, internals.watched_tuner():
        pass
    assert raised.value.code == "flashinfer-unknown"
    assert attributes(owners) == before


@FLASHINFER
def test_no_stand_in_module_survives():
    from flashinfer.fused_moe.core import get_cutlass_fused_moe_module
    from flashinfer.gemm.gemm_base import get_gemm_module

    def cached():
        return [function.cache_info().currsize for function in (get_cutlass_fused_moe_module, get_gemm_module)]

    with without_gpu(), internals.fresh_tuner():
        call_every_op()
        assert cached() == [1, 1]
    assert cached() == [0, 0]


@FLASHINFER
def test_silence_ends_with_its_context(owners, capfd):
    from flashinfer.jit.core import logger

    before, level = attributes(owners), logger.level
    with internals.silenced(), without_gpu(), internals.fresh_tuner(), tuning_contexts(None):
        call_every_op()
        logger.warning("not now")
    assert capfd.readouterr() == ("", "")
    assert (attributes(owners), logger.level) == (before, level)


@FLASHINFER
def test_a_fresh_tuner_leaves_the_process_tuner_alone():
    from flashinfer.autotuner import AutoTuner

    ours = AutoTuner.get()
    entries = dict(ours.profiling_cache)
    with without_gpu(), internals.fresh_tuner() as tuner:
        assert AutoTuner.get() is tuner is not ours
        with tuning_contexts(small_plan().units[-1]):
            call_every_op()
        assert tuner.profiling_cache
    assert AutoTuner.get() is ours
    assert ours.profiling_cache == entries


@FLASHINFER
def test_the_stamp_of_a_file_names_the_gpu_that_is_stood_in_for():
    with without_gpu():
        metadata = internals.collect_metadata()
    assert metadata["gpu"] == "NVIDIA H200"
    assert metadata["flashinfer_version"] == importlib.metadata.version("flashinfer-python")


@FLASHINFER
def test_a_watch_counts_lookups_and_timings():
    # One bucket of one GEMM: the profile is missed and timed (8 stand-in algorithms and the default), then found.
    unit = small_plan().units[-1]
    with without_gpu(), internals.fresh_tuner(), internals.watched_tuner() as watch:
        launch = unit.call.prepare("meta")(unit.bucket)
        with tuning_contexts(unit):
            launch()
        assert (watch.misses, watch.hits, watch.timings) == (["fp8_gemm"], ["fp8_gemm"], 9)
        watch.reset()
        with tuning_contexts(unit):
            launch()
        assert (watch.misses, watch.hits, watch.timings) == ([], ["fp8_gemm"] * 2, 0)


def test_the_installed_version_is_the_distribution_s():
    assert internals.installed_version() == importlib.metadata.version("flashinfer-python")


def test_no_flashinfer_no_version(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert internals.installed_version() is None


@pytest.mark.parametrize("error", [ImportError("no module named tvm_ffi"), OSError("libcuda.so.1: no such file")])
def test_a_flashinfer_that_does_not_load_is_not_possible_here(monkeypatch, error):
    def fail(name):
        raise error

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(NotPossibleHereError, match=str(error)) as raised:
        internals.import_flashinfer(quiet=False)
    assert raised.value.code == "flashinfer-missing"


@pytest.mark.parametrize("level", [None, "debug"])
def test_a_quiet_import_does_not_silence_child_processes(monkeypatch, level):
    seen = []
    monkeypatch.setattr(importlib, "import_module", lambda name: seen.append(os.environ["FLASHINFER_LOGGING_LEVEL"]))
    monkeypatch.delenv("FLASHINFER_LOGGING_LEVEL", raising=False)
    if level is not None:
        monkeypatch.setenv("FLASHINFER_LOGGING_LEVEL", level)
    internals.import_flashinfer(quiet=True)
    assert seen == [level or "error"]
    assert os.environ.get("FLASHINFER_LOGGING_LEVEL") == level
