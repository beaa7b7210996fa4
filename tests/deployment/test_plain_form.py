"""The form that needs no pydantic: where it reads a file at all, it reads what pydantic reads."""

from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from autotune_planner.deployment.fields import known_keys
from autotune_planner.deployment.plain_form import PlainForm, plain_form
from autotune_planner.deployment.schema import DeploymentForm
from autotune_planner.deployment.yaml_source import read_yaml
from tests.deployment.test_deployment_properties import values

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
SECTIONS = [name for name in known_keys(()) if known_keys((name,)) and name != "gpu"]

scalars = (
    st.sampled_from([None, True, False, 0, 1, 8, -1, 2**31 - 1, 2**31, 0.5, 1.0, "", "8", "prefill", "decode", "a\0b"])
    | st.integers()
    | st.text(max_size=4)
)
contents = st.fixed_dictionaries(
    {"gpu": st.sampled_from(["H200", "", None, 1, {"name": "x", "compute_capability": "9.0"}])},
    optional={
        **{
            name: st.dictionaries(
                st.sampled_from([*known_keys((name,)), "other"]), scalars | st.lists(scalars, max_size=3), max_size=3
            )
            | values
            for name in SECTIONS
        },
        **{name: scalars | values for name in known_keys(()) if name not in (*SECTIONS, "gpu", "flags", "env")},
        "flags": st.dictionaries(
            st.sampled_from(["page_size", "tp_size", "--page-size", "Page", "enable_dp_attention"]), values, max_size=3
        ),
        "env": st.dictionaries(st.sampled_from(["SGLANG_CACHE_DIR", "A", "a b", "A\n", "é"]), scalars, max_size=3),
        "unknown": scalars,
    },
)


def by_name(form):
    """Either form as plain values."""
    if isinstance(form, BaseModel):
        return {name: by_name(getattr(form, name)) for name in type(form).model_fields}
    if is_dataclass(form):
        return {field.name: by_name(getattr(form, field.name)) for field in fields(form)}
    return list(form) if isinstance(form, tuple) else form


@settings(max_examples=400)
@given(contents)
def test_what_is_plain_is_what_pydantic_reads(content):
    plain = plain_form(content)
    if plain is not None:
        assert by_name(plain) == by_name(DeploymentForm.model_validate(content))


def test_both_forms_have_the_same_fields():
    assert by_name(PlainForm(gpu="H200")) == by_name(DeploymentForm(gpu="H200"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_of_a_known_gpu_is_plain(path):
    content = read_yaml(path).content
    assert isinstance(content["gpu"], dict) or plain_form(content) is not None


@pytest.mark.parametrize(
    "change", [{"gpu": None}, {"decode": {"max_running_requests": 2**31}}, {"flags": {"tp_size": 8}}, {"flgs": {}}]
)
def test_mistakes_are_left_to_pydantic(change):
    content = {"gpu": "H200", **change}
    assert plain_form(content) is None
    with pytest.raises(ValidationError):
        DeploymentForm.model_validate(content)
