"""Compiled modules: what is missing is built and reported before anything is timed."""

import importlib

import pytest

from autotune_planner.ops.base import JitModule
from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.tuning.messages import ModuleBuilding, ModuleReady, ModulesReady
from autotune_planner.tuning.worker import _build
from tests.tuning import jit_modules
from tests.tuning.plans import qwen3_moe

THERE = JitModule("there", "tests.tuning.jit_modules:gen_there_module", 2)
MISSING = JitModule("missing", "tests.tuning.jit_modules:gen_missing_module", 2)
BROKEN = JitModule("broken", "tests.tuning.jit_modules:gen_broken_module", 2)


def built(*modules):
    """``(messages, names of the modules that were built)``."""
    jit_modules.builds.clear()
    messages = []
    _build(modules, messages.append)
    return messages, list(jit_modules.builds)


def test_a_module_that_is_there_is_not_built():
    assert built(THERE) == ([ModuleReady("there", 0.0), ModulesReady()], [])


def test_a_missing_module_is_announced_built_and_timed():
    messages, names = built(MISSING)
    announced, ready, last = messages
    assert announced == ModuleBuilding(
        "missing", ("cached_ops/missing/first.cuda.o", "cached_ops/missing/second.cuda.o")
    )
    assert ready.name == "missing"
    assert ready.seconds > 0
    assert last == ModulesReady()
    assert names == ["missing"]


def test_modules_are_reported_one_after_another():
    messages, names = built(THERE, MISSING)
    assert [type(message) for message in messages] == [ModuleReady, ModuleBuilding, ModuleReady, ModulesReady]
    assert names == ["missing"]


def test_nothing_to_build():
    assert built() == ([ModulesReady()], [])


def test_a_build_that_fails_is_not_swallowed():
    with pytest.raises(RuntimeError, match="nvcc"):
        built(THERE, BROKEN)


@pytest.fixture
def compiler_target(monkeypatch, tmp_path):
    """FlashInfer describes builds for one architecture, with generated sources in a folder of the test's own."""
    from flashinfer.jit import env
    from flashinfer.jit.core import current_compilation_context

    monkeypatch.setattr(env, "FLASHINFER_GEN_SRC_DIR", tmp_path / "generated")
    monkeypatch.setattr(env, "FLASHINFER_JIT_DIR", tmp_path / "cached_ops")

    def target(capability):
        major, minor = capability
        suffix = "a" if capability >= (9, 0) else ""
        monkeypatch.setattr(current_compilation_context, "TARGET_CUDA_ARCHS", {(major, f"{minor}{suffix}")})

    return target


def described(module):
    source, function = module.generator.split(":")
    return getattr(importlib.import_module(source), function)()


@pytest.mark.flashinfer
@pytest.mark.parametrize("call", [BmmFp8(n=4096, k=4096), qwen3_moe()], ids=["linear", "moe"])
def test_objects_of_a_cold_build_on_sm90(compiler_target, call):
    compiler_target((9, 0))
    (module,) = call.jit_modules((9, 0))
    spec = described(module)
    assert spec.name == module.name
    assert len(spec.get_object_paths()) == module.objects
    assert not spec.is_compiled


@pytest.mark.flashinfer
@pytest.mark.parametrize("capability", [(8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)])
def test_every_architecture_s_module_is_flashinfer_s(compiler_target, capability):
    compiler_target(capability)
    for call in (BmmFp8(n=4096, k=4096), qwen3_moe()):
        assert call.unsupported_reason(capability) is None
        for module in call.jit_modules(capability):
            assert described(module).name == module.name
