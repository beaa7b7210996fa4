"""The command reference, made from the program itself: ``python -m tests.command_reference > docs/commands.md``."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.models import ArgumentInfo

from autotune_planner.cli.app import app

HEAD = """# Commands

Made by `python -m tests.command_reference > docs/commands.md`; a test compares this file with what that prints.

Data goes to stdout, talk to stderr. What a command ends with: [exit-codes.md](exit-codes.md); what its documents hold:
[file-formats.md](file-formats.md). Colours are off with NO_COLOR, and where the output is not a terminal."""


class Parameter(NamedTuple):
    """One parameter of a command, as it is declared."""

    name: str
    kind: Any
    several: bool
    info: Any  # typer's OptionInfo or ArgumentInfo
    default: Any

    @property
    def is_argument(self) -> bool:
        return isinstance(self.info, ArgumentInfo)

    @property
    def names(self) -> tuple[str, ...]:
        """Inside ``Annotated`` the first name stands where the default does otherwise."""
        given = [self.info.default, *(self.info.param_decls or ())]
        names = tuple(name for name in given if isinstance(name, str))
        return names or (f"--{self.name.replace('_', '-')}",)

    @property
    def value(self) -> str | None:
        """What follows an option, None for a switch."""
        if self.kind is bool:
            return None
        if self.info.metavar:
            return str(self.info.metavar)
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            return "|".join(member.value for member in self.kind)
        return {int: "N", Path: "FILE"}.get(self.kind, self.name.upper())


def commands() -> dict[str, Callable[..., Any]]:
    """The functions of all commands by name."""
    found = (command.callback for command in app.registered_commands)
    return {callback.__name__: callback for callback in found if callback}


def parameters(command: Callable[..., Any]) -> list[Parameter]:
    hints = typing.get_type_hints(command, include_extras=True)
    found = []
    for name, declared in inspect.signature(command).parameters.items():
        if hints[name] is not typer.Context:
            kind, info = typing.get_args(hints[name])
            found.append(Parameter(name, _plain_kind(kind), typing.get_origin(kind) is list, info, declared.default))
    return found


def reference() -> str:
    """The whole of docs/commands.md."""
    lines = (line for name, command in commands().items() for line in _command(name, command))
    return "\n".join([HEAD, *lines]) + "\n"


def _plain_kind(kind: Any) -> Any:
    """``int`` of ``int``, ``int | None`` and ``list[int] | None``."""
    inner = [part for part in typing.get_args(kind) if part is not type(None)]
    return _plain_kind(inner[0]) if inner else kind


def _command(name: str, command: Callable[..., Any]) -> Iterator[str]:
    found = parameters(command)
    arguments = [parameter for parameter in found if parameter.is_argument]
    options = [parameter for parameter in found if not parameter.is_argument]
    usage = " ".join(["autotune-plan", name, *map(_argument, arguments), *(["[options]"] if options else [])])
    text = (f"    {line}" if line.startswith("#") else line for line in (inspect.getdoc(command) or "").splitlines())
    yield from ("", f"## {name}", "", f"    {usage}", "", *text)
    if arguments:
        yield from ("", "| argument | |", "|---|---|")
        yield from (f"| `{parameter.name.upper()}` | {_cell(parameter.info.help)} |" for parameter in arguments)
    if options:
        yield from ("", "| option | default | |", "|---|---|---|")
        yield from (f"| {_option(option)} | {_default(option)} | {_cell(option.info.help)} |" for option in options)


def _argument(parameter: Parameter) -> str:
    name = parameter.name.upper() + ("..." if parameter.several else "")
    return name if parameter.default is inspect.Parameter.empty else f"[{name}]"


def _option(option: Parameter) -> str:
    names = ", ".join(f"`{name}`" for name in option.names)
    return names if option.value is None else f"{names} `{_cell(option.value)}`"


def _default(option: Parameter) -> str:
    if option.default is inspect.Parameter.empty:
        return "required"
    if option.default is None or option.default is False:
        return ""
    return f"`{option.default.value if isinstance(option.default, Enum) else option.default}`"


def _cell(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")
