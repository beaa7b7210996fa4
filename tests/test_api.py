"""The Python API: its names, their types, and the example."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def python(*arguments, **how):
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, **how)


def test_the_package_alone_imports_nothing_of_the_api():
    done = python("-c", "import sys, autotune_planner; print([name for name in sys.modules if 'autotune_' in name])")
    assert done.stdout.strip() == "['autotune_planner']"


def test_planning_needs_no_torch():
    script = (
        "import sys\n"
        "from autotune_planner import api\n"
        "found = api.plan(api.load_deployment('examples/qwen3-30b-h200-tp1.yaml'), environ={})\n"
        "assert isinstance(found, api.Plan) and len(found.units) == 42\n"  # 2 GEMMs x 21 buckets
        "assert not {'torch', 'flashinfer'} & set(sys.modules)\n"
    )
    assert python("-c", script, cwd=ROOT).stderr == ""


def test_every_name_is_there_and_documented():
    from autotune_planner import api

    for name in api.__all__:
        assert getattr(api, name).__doc__


def test_types_are_those_of_the_functions(tmp_path):
    """``py.typed`` is there, and a type checker uses it."""
    assert (ROOT / "autotune_planner" / "py.typed").is_file()
    script = tmp_path / "typed.py"
    script.write_text(
        "from autotune_planner import api\n"
        "planned: api.Plan = api.plan(api.load_deployment('a.yaml'))\n"
        "proved: bool = api.prove(planned).proved\n"
        "wrong: int = api.check(planned)\n"
    )
    done = python("-m", "mypy", "--strict", str(script), cwd=ROOT)
    assert "Found 1 error" in done.stdout
    assert 'typed.py:4: error: Incompatible types in assignment (expression has type "Checked"' in done.stdout


@pytest.mark.flashinfer
def test_the_example(tmp_path):
    done = python("examples/api.py", str(tmp_path), cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "prove: every call hits" in done.stdout
    assert "check: not used: simulated-file" in done.stdout
    assert "bench: extend with hot L2:" in done.stdout
    assert len(list(tmp_path.rglob("rank_*.json"))) == 4
