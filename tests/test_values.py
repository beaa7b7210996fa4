"""``values.dataclass`` against the standard library's ``dataclass(frozen=True)``, of which it is the quicker make."""

import dataclasses
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_planner.values import dataclass


@dataclass(frozen=True)
class Quick:
    a: int
    b: Any = None
    c: dict = dataclasses.field(default_factory=dict, repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class Stock:
    a: int
    b: Any = None
    c: dict = dataclasses.field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Longer(Quick):
    """A class that inherits, with text of its own."""

    d: int = 4

    def __repr__(self):
        return f"d={self.d}"


@dataclass(frozen=True)
class Empty:
    pass


values = st.tuples(
    st.integers(0, 2), st.none() | st.integers(0, 1) | st.text(max_size=2), st.just({}) | st.just({1: 2})
)


@given(values, values)
def test_equality_hash_and_text_are_those_of_the_standard_library(left, right):
    assert (Quick(*left) == Quick(*right)) == (Stock(*left) == Stock(*right))
    assert repr(Quick(*left)) == repr(Stock(*left)).replace("Stock", "Quick")
    if Quick(*left) == Quick(*right):
        assert hash(Quick(*left)) == hash(Quick(*right))


def test_functions_of_the_standard_library_hold():
    quick = Quick(1, Quick(2))
    assert dataclasses.replace(quick, a=3) == Quick(3, Quick(2))
    assert dataclasses.asdict(quick) == dataclasses.asdict(Stock(1, Stock(2)))
    assert [field.name for field in dataclasses.fields(quick)] == ["a", "b", "c"]
    assert pickle.loads(pickle.dumps(quick)) == quick
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
        Quick()


@pytest.mark.parametrize("name", ["a", "b", "new"])
def test_nothing_is_set_afterwards(name):
    quick = Quick(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(quick, name, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(quick, "a")
    assert quick == Quick(1)


def test_other_classes_are_never_equal():
    assert Quick(1) != Stock(1)
    assert Quick(1) != Longer(1)
    assert Empty() == Empty()
    assert {Empty(): 1}[Empty()] == 1


def test_methods_of_the_class_itself_stay():
    assert repr(Longer(1)) == "d=4"
    assert Longer(1, d=5) == Longer(1, d=5) != Longer(1, d=6)
