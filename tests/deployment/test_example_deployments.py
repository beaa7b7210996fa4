"""The shipped examples load, and importing the package pulls in no tensor library."""

import subprocess
import sys
from pathlib import Path

import pytest

from autotune_planner.deployment.load import load_deployment

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_loads(path):
    found = load_deployment(path)
    assert found.engine_version == "0.5.23"  # examples stay as they are when a newer release gets rules
    assert found.model_path.startswith("/models/")


def test_the_examples_show_each_kind_of_deployment():
    found = [load_deployment(path) for path in EXAMPLES]
    assert {one.disaggregation for one in found} == {None, "prefill", "decode"}
    assert any(one.parallel.dp_attention for one in found)
    assert any(one.multimodal for one in found)
    assert any(one.launch for one in found)
    assert any(one.moe.a2a_backend == "flashinfer" and one.parallel.ep == 8 for one in found)
    assert any(one.parallel.pp == 2 and one.prefill.dynamic_chunking for one in found)
    assert any(one.model.architecture == "GptOssForCausalLM" for one in found)
    assert {"EAGLE", "EAGLE3", "NEXTN"} <= {one.speculative.algorithm for one in found}
    drafts = [one.draft_model for one in found if one.speculative.algorithm]
    assert [draft.architecture for draft in drafts if draft] == ["LlamaForCausalLMEagle3"]


def test_loading_imports_neither_torch_nor_flashinfer():
    script = (
        "import sys\n"
        "from autotune_planner.deployment.load import load_deployment\n"
        "load_deployment(sys.argv[1])\n"
        "print(sorted({'torch', 'flashinfer', 'numpy'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", script, str(EXAMPLES[0])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
