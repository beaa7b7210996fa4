"""The Python API: the names of the package, what they are, and the example."""

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


@pytest.mark.parametrize("first", ["", "import autotune_planner.plan.plan\n", "import autotune_planner.cli.app\n"])
def test_plan_is_the_function_whatever_was_imported_before(first):
    """A subpackage has the same name."""
    script = (
        f"{first}from autotune_planner import load_deployment, plan\n"
        "import autotune_planner\n"
        "from autotune_planner.plan.plan import Plan\n"
        "assert autotune_planner.plan is plan\n"
        "found = plan(load_deployment('examples/qwen3-30b-h200-tp1.yaml'), environ={})\n"
        "assert isinstance(found, Plan) and isinstance(found, autotune_planner.Plan)\n"
        "print(len(found.units))\n"
    )
    done = python("-c", script, cwd=ROOT)
    assert (done.stdout.strip(), done.stderr) == ("42", "")  # 2 GEMMs x 21 buckets


def test_planning_needs_no_torch():
    script = (
        "import sys\n"
        "import autotune_planner\n"
        "autotune_planner.plan(autotune_planner.load_deployment('examples/qwen3-30b-h200-tp1.yaml'), environ={})\n"
        "assert not {'torch', 'flashinfer'} & set(sys.modules)\n"
    )
    assert python("-c", script, cwd=ROOT).stderr == ""


def test_every_name_is_there_and_documented():
    import autotune_planner

    for name in autotune_planner.__all__:
        assert getattr(autotune_planner, name).__doc__
    assert set(autotune_planner.__all__) == {*__import__("autotune_planner.api").api.__all__, "__version__"}
    with pytest.raises(AttributeError, match="nothing"):
        _ = autotune_planner.nothing


def test_types_are_those_of_the_functions(tmp_path):
    """``py.typed`` is there, and a type checker sees functions where a subpackage has the name."""
    assert (ROOT / "autotune_planner" / "py.typed").is_file()
    script = tmp_path / "typed.py"
    script.write_text(
        "import autotune_planner\n"
        "from autotune_planner import load_deployment, plan\n"
        "planned: autotune_planner.Plan = plan(load_deployment('a.yaml'))\n"
        "proved: bool = autotune_planner.prove(planned).proved\n"
        "wrong: int = autotune_planner.check(planned)\n"
    )
    done = python("-m", "mypy", "--strict", str(script), cwd=ROOT)
    assert "Found 1 error" in done.stdout
    assert 'typed.py:5: error: Incompatible types in assignment (expression has type "Checked"' in done.stdout


@pytest.mark.flashinfer
def test_the_example(tmp_path):
    done = python("examples/api.py", str(tmp_path), cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "prove: every call hits" in done.stdout
    assert "check: not used: simulated-file" in done.stdout
    assert "bench: extend with hot L2:" in done.stdout
    assert len(list(tmp_path.rglob("rank_*.json"))) == 4
