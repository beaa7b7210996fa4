"""``launch:`` of a deployment file: a launch line beside fields, each thing said twice said equally."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from autotune_planner.deployment.field_flags import FIELD_OF_FLAG
from autotune_planner.deployment.fields import FieldPath, dotted, shown
from autotune_planner.deployment.flag_table import flag_table
from autotune_planner.deployment.launch_line import LaunchLine, option_of, parse_launch_line
from autotune_planner.deployment.model import SourceMarks
from autotune_planner.deployment.plain_form import PlainForm
from autotune_planner.deployment.problems import mark_of
from autotune_planner.errors import DeploymentError

if TYPE_CHECKING:
    from autotune_planner.deployment.schema import DeploymentForm


def launch_of_file(form: DeploymentForm | PlainForm, marks: SourceMarks) -> LaunchLine:
    """Read the launch line of a file and compare it with the file's fields.

    ``DeploymentError`` names file, line and flag where the server's parser refuses the line, and shows both values
    where a flag and a field, or two environment settings, disagree.
    """
    assert form.launch is not None
    place = mark_of(("launch",), marks)
    table = flag_table(form.engine, form.engine_version, mark_of(("engine",), marks))
    try:
        line = parse_launch_line(form.launch, table)
    except DeploymentError as error:
        error.where = _within(place, error.where)
        raise
    for path, name, written in _said_in_fields(form):
        if name in line.values and not _equal(written, line.values[name]):
            said = f"the launch line gives {option_of(name)} {shown(line.values[name])}"
            raise _disagreement(path, written, said, marks)
    for variable, written in form.env.items():
        if line.env.get(variable, written) != written:
            said = f"the launch line sets {variable}={line.env[variable]}"
            raise _disagreement(("env", variable), written, said, marks)
    return line


def _said_in_fields(form: DeploymentForm | PlainForm) -> Iterator[tuple[FieldPath, str, Any]]:
    """(place, server argument, value) of everything that the file's own fields say."""
    for name, path in FIELD_OF_FLAG.items():
        value: Any = form
        for part in path:
            value = getattr(value, part)
        if value is not None:
            yield path, name, value
    for name, value in form.flags.items():
        if value is not None:
            yield ("flags", name), name, value


def _equal(field: Any, flag: Any) -> bool:
    if isinstance(field, (list, tuple)) or isinstance(flag, (list, tuple)):
        return list(_listed(field)) == list(_listed(flag))
    return bool(field == flag) and isinstance(field, bool) == isinstance(flag, bool)


def _listed(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) else [value]


def _disagreement(path: FieldPath, written: Any, said: str, marks: SourceMarks) -> DeploymentError:
    place = mark_of(("launch",), marks)
    return DeploymentError(
        f"{dotted(path)} is {shown(written)}, but {said}" + (f" at {place}" if place else ""),
        code="disagreement",
        where=mark_of(path, marks),
        hint="keep one of the two, or write both alike",
    )


def _within(place: str | None, flag: str | None) -> str | None:
    if place is None:
        return flag
    return place if flag in (None, "launch") else f"{place}: launch ({flag})"
