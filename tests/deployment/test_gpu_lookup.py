"""GPUs by name, alias, driver's name and mapping."""

import pytest

from autotune_planner.deployment.gpus import load_gpu
from autotune_planner.deployment.model import Gpu
from autotune_planner.errors import DeploymentError


@pytest.mark.parametrize(
    ("written", "profile"),
    [
        ("H200", "H200-141G"),
        ("h200-141g", "H200-141G"),
        ("H100", "H100-80G"),
        ("b200", "B200-180G"),
        ("H20", "H20-96G"),
        ("RTX5090", "RTX5090-32G"),
        ("RTX 5090", "RTX5090-32G"),
        ("A100-80", "A100-80G"),
        ("gb300", "GB300-278G"),
        ("B300", "B300-269G"),
        ("NVIDIA B300 SXM6 AC", "B300-269G"),
        ("mi355x", "MI355X-288G"),
        ("NVIDIA H200", "H200-141G"),
        ("nvidia h100 80gb hbm3", "H100-80G"),
        ("Tesla T4", "T4-16G"),
    ],
)
def test_names_in_any_case(written, profile):
    assert load_gpu(written).profile == profile


def test_a_name_that_fits_two_gpus_is_refused_and_both_are_listed_first():
    with pytest.raises(DeploymentError) as caught:
        load_gpu("A100")
    assert caught.value.message == 'gpu "A100" is not known'
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("one of these, nearest first: A100-40G, A100-80G, A10-24G, ")
    assert caught.value.hint.endswith("; or a mapping that describes it")


@pytest.mark.parametrize("capability", ["9.0", 9.0])
def test_nvidia_mapping(capability):
    written = {"name": "NVIDIA H200 NVL", "memory_mib": 143771, "compute_capability": capability, "sm_count": 132}
    assert load_gpu(written) == Gpu("NVIDIA H200 NVL", "nvidia", 143771, (9, 0), 132)


def test_amd_mapping_needs_no_compute_capability():
    written = {"name": "AMD Instinct MI300X", "vendor": "amd", "arch": "gfx942", "memory_mib": 196592}
    assert load_gpu(written) == Gpu("AMD Instinct MI300X", "amd", 196592, None, None, arch="gfx942")


@pytest.mark.parametrize(
    ("mapping", "message", "hint"),
    [
        ({"name": "X"}, "gpu has no compute_capability, which is part of the cache path", None),
        (
            {"name": "X", "vendor": "amd"},
            "gpu has no arch, by which kernels choose their tiles",
            "add arch: gfx942 (rocminfo shows it)",
        ),
        ({"nmae": "X", "vendor": "amd"}, "gpu.name is missing", "add name: NVIDIA H200"),
        ({"name": "X", "compute_capability": "90"}, 'gpu.compute_capability is "90"; it takes major.minor', None),
        ({"name": "X", "vendor": "amd", "memory_mib": 0}, "gpu.memory_mib is 0; it takes 1 or more", None),
    ],
)
def test_mapping_that_is_not_a_gpu(mapping, message, hint):
    with pytest.raises(DeploymentError) as caught:
        load_gpu(mapping)
    assert caught.value.message.splitlines()[0] == message
    assert hint is None or caught.value.hint == hint
    assert caught.value.where is None
