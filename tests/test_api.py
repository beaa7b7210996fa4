"""The Python API: its names, their types, and the example."""

import subprocess
import sys
from pathlib import Path

import pytest

from autotune_planner.errors import UsageError

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


@pytest.fixture(scope="module")
def planned():
    from autotune_planner import api

    return api.plan(api.load_deployment(ROOT / "examples" / "qwen3-30b-h200-tp1.yaml"), environ={})


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [
        *(("tune", "gpus", value) for value in (-1, 0, "1", 1.5)),
        *(("bench", "sizes", value) for value in ([], ["a"], [0], [-1], [64, None], "64", 64)),
        *((function, "device", "foo") for function in ("tune", "prove", "bench")),
        ("tune", "strategy", "fast"),
        *(("tune", "formats", value) for value in ((), "v1", ("v3",))),
        *(("tune", "time_budget", value) for value in (0, -1, "5m")),
    ],
)
def test_a_wrong_argument_is_wrong_usage_with_a_hint(planned, function, name, value):
    from autotune_planner import api

    with pytest.raises(UsageError) as raised:
        getattr(api, function)(planned, **{name: value})
    assert (raised.value.code, raised.value.where) == ("usage", name)
    assert raised.value.hint.startswith(f"{name}: ")
    assert repr(value) in raised.value.message


@pytest.mark.parametrize("function", ["plan", "tune", "check", "prove", "bench"])
def test_a_file_s_name_is_no_plan_and_no_deployment(function):
    from autotune_planner import api

    with pytest.raises(UsageError) as raised:
        getattr(api, function)("deployment.yaml")
    assert "load_deployment(FILE)" in raised.value.hint


def test_a_script_on_stdin_starts_no_process():
    script = (
        "from autotune_planner import api, errors\n"
        "planned = api.plan(api.load_deployment('examples/qwen3-30b-h200-tp1.yaml'), environ={})\n"
        "try:\n"
        "    api.prove(planned)\n"
        "except errors.UsageError as error:\n"
        "    print(error.message, error.hint)\n"
    )
    done = python("-", input=script, cwd=ROOT)
    assert "read from stdin" in done.stdout
    assert "save it as a file" in done.stdout


@pytest.mark.flashinfer
def test_a_script_without_a_guard_is_told_of_it(tmp_path):
    """Each process that is started reads the script, and fails at its calls."""
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from autotune_planner import api, errors\n"
        "planned = api.plan(api.load_deployment('examples/qwen3-30b-h200-tp1.yaml'), environ={})\n"
        "try:\n"
        "    api.tune(planned)\n"
        "except errors.NotPossibleHereError as error:\n"
        "    print(error.code, error.hint)\n"
    )
    done = python(str(script), cwd=ROOT)
    assert done.stdout.startswith("cuda-query-failed ")
    assert 'keeps its calls below if __name__ == "__main__":' in done.stdout


@pytest.mark.flashinfer
def test_the_example(tmp_path):
    done = python("examples/api.py", str(tmp_path), cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "prove: every call hits" in done.stdout
    assert "check: not used: simulated-file" in done.stdout
    assert "bench: M = 8192 with hot L2:" in done.stdout
    assert len(list(tmp_path.rglob("rank_*.json"))) == 4
