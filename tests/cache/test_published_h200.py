"""Files that ``run`` published on one H200 (docs/measurements/first-light-h200.md) against the planned keys."""

from pathlib import Path

import pytest

from autotune_planner.cache.v1 import read_v1
from autotune_planner.deployment.load import load_deployment
from autotune_planner.pipeline import plan
from autotune_planner.tuning.keys import exact_keys

pytestmark = pytest.mark.flashinfer

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "count"), [("qwen3-30b-h200-tp1", 42), ("llama-8b-fp8-h200-tp1", 84)])
def test_keys_and_policies_from_the_gpu_are_the_planned_ones(name, count):
    file = read_v1(ROOT / "tests" / "data" / "h200" / f"published_{name}.json")
    planned = exact_keys(plan(load_deployment(ROOT / "examples" / f"{name}.yaml"), {}))
    assert file.metadata["gpu"] == "NVIDIA H200"
    assert [entry.text for entry in file.entries] == [key.key for key in planned]
    assert [entry.policy for entry in file.entries] == [key.policy for key in planned]
    assert len(planned) == count
