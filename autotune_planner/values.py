"""Frozen dataclasses that are quick to make.

``dataclasses.dataclass(frozen=True)`` compiles six methods for each class, most of a millisecond: for the classes that
a plan needs, half as long as importing Typer, rich, PyYAML and pydantic together. Here one method is compiled for each
class, ``__init__``; the others are shared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import functools
    from dataclasses import dataclass as dataclass

    lazy = functools.cached_property
else:
    import dataclasses
    from operator import attrgetter

    def dataclass(*, frozen):
        """As ``dataclasses.dataclass(frozen=True)``, for classes without slots; ``fields``, ``replace``, ``asdict`` and
        ``FrozenInstanceError`` of that module hold for them."""
        assert frozen
        return _made

    class lazy:  # noqa: N801 - a decorator
        """As ``functools.cached_property``, without the lock that it takes before Python 3.12: half of the time of a
        first read, of which a large cache has hundreds of thousands."""

        def __init__(self, make):
            self._make = make
            self.__doc__ = make.__doc__

        def __set_name__(self, owner, name):
            self._name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self._make(instance)
            return value

    def _made(cls):
        cls.__doc__ = cls.__doc__ or cls.__name__  # or dataclasses would write the signature there
        own = set(vars(cls))
        made = dataclasses.dataclass(cls, repr=False, eq=False)
        compared = [field.name for field in dataclasses.fields(made) if field.compare]
        made._compared = attrgetter(*compared) if compared else _nothing
        for method in (_Value.__eq__, _Value.__hash__, _Value.__repr__, _Value.__setattr__, _Value.__delattr__):
            if method.__name__ not in own:
                setattr(made, method.__name__, method)
        return made

    def _nothing(value):
        return ()

    class _Value:
        def __eq__(self, other):
            if other.__class__ is not self.__class__:
                return NotImplemented
            compared = self.__class__._compared
            return compared(self) == compared(other)

        def __hash__(self):
            return hash(self.__class__._compared(self))

        def __repr__(self):
            shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
            return f"{self.__class__.__qualname__}({', '.join(shown)})"

        def __setattr__(self, name, value):
            """``__init__`` sets each field once; afterwards nothing does."""
            if name in self.__dict__ or name not in self.__dataclass_fields__:
                raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
            object.__setattr__(self, name, value)

        def __delattr__(self, name):
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
