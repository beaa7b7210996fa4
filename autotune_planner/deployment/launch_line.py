"""A server's launch line: leading environment assignments, the command, its flags.

The flags are read against a release's flag table with the rules of the server's own parser (Python's ``argparse``):
``--flag value`` and ``--flag=value``, aliases, unambiguous prefixes, lists, JSON; the last of a repeated flag counts.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from autotune_planner.deployment import models
from autotune_planner.deployment.config_file import with_config_file
from autotune_planner.deployment.flag_table import FlagTable, flag_table
from autotune_planner.deployment.model import Deployment, Gpu, Model
from autotune_planner.deployment.suggestions import nearest_first
from autotune_planner.errors import DeploymentError
from autotune_planner.json_text import parse_json
from autotune_planner.values import dataclass

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)")
_SIZE_UNITS = {
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_LISTS = {"ints": "int", "floats": "float", "strs": "str"}
_SWITCHES = ("bool", "switch")
_SHOWN_MATCHES = 6


@dataclass(frozen=True)
class LaunchLine:
    """``values`` by server argument, only of flags that were given; ``flags`` are the words of the line after it."""

    values: Mapping[str, Any]
    env: Mapping[str, str]
    flags: tuple[str, ...]


def parse_launch_line(line: str | Sequence[str], table: FlagTable) -> LaunchLine:
    """Read a launch line, as one text or as words. ``DeploymentError`` where the server's parser refuses it."""
    words = _words(line)
    prefix, flags = _split_command(words)
    env = dict(word.split("=", 1) for word in prefix if _ASSIGNMENT.match(word))
    return LaunchLine(_Parser(table).parse(with_config_file(flags, table)), env, tuple(flags))


def deployment_of_launch_line(
    line: str | Sequence[str],
    *,
    gpu: Gpu,
    model_dir: str | None = None,
    engine: str = "sglang",
    engine_version: str | None = None,
    kv_token_capacity: int | None = None,
) -> Deployment:
    """The deployment of a launch line. Model paths stay as typed; ``model_dir`` holds their folders on this machine.

    ``DeploymentError`` where the server's parser refuses the line, or where no configuration of its model is here.
    """
    parsed = parse_launch_line(line, flag_table(engine, engine_version))
    values = dict(parsed.values)
    path = values.pop("model_path", None)
    if path is None:
        raise DeploymentError(
            "the launch line has no --model-path",
            code="missing-flag",
            where="--model-path",
            hint="--model-path /models/Qwen3-30B-A3B, as the server is given it",
        )
    model = _model_at(path, model_dir)
    if model is None:
        raise DeploymentError(
            f"no configuration of --model-path {path} is on this machine",
            code="unknown-model",
            where="--model-path",
            hint="--model-dir DIR, a folder that holds the model's folder with its config.json",
        )
    draft_path = values.get("speculative_draft_model_path")
    return Deployment(
        gpu=gpu,
        model=model,
        model_path=path,
        engine=engine,
        engine_version=engine_version,
        draft_model=None if draft_path is None else _model_at(draft_path, model_dir),
        flags=values,
        kv_token_capacity=kv_token_capacity,
        env=parsed.env,
        launch=parsed.flags,
    )


def _words(line: str | Sequence[str]) -> list[str]:
    if not isinstance(line, str):
        return list(line)
    try:
        return shlex.split(line.replace("\\\n", " "))
    except ValueError as error:
        raise DeploymentError(
            f"the launch line is not a shell command: {error}",
            code="launch-line",
            where="launch",
            hint="close every quote, or give the line as a list of words",
        ) from None


def _split_command(words: list[str]) -> tuple[list[str], list[str]]:
    """(what stands before the command, the flags after it).

    The command is ``python .. -m sglang.launch_server`` or ``sglang serve [MODEL]``; before it may stand assignments
    and whatever starts a process (``env``, ``nohup``, ``numactl --membind=0``). A bare list of flags has no command.
    """
    for at, (word, following) in enumerate(itertools.pairwise(words)):
        if (word, following) == ("-m", "sglang.launch_server"):
            return words[:at], words[at + 2 :]
        if os.path.basename(word) == "sglang" and following == "serve":
            flags = words[at + 2 :]
            return words[:at], ["--model-path", *flags] if flags and not flags[0].startswith("-") else flags
    bare = next((at for at, word in enumerate(words) if not _ASSIGNMENT.match(word)), len(words))
    if bare == len(words) or words[bare].startswith("-"):
        return words[:bare], words[bare:]
    raise DeploymentError(
        f"the launch line starts with {words[bare]!r}, which is no way to start the server",
        code="launch-line",
        where="launch",
        hint="python -m sglang.launch_server --model-path ..., or sglang serve --model-path ...",
    )


def _model_at(path: str, model_dir: str | None) -> Model | None:
    last = path.rstrip("/").rpartition("/")[2]
    places = [Path(model_dir, last)] if model_dir is not None and last else []
    found = next((place for place in (*places, Path(path)) if os.path.exists(place)), None)
    if found is not None:
        return models.load_model(found)
    profile = models.profile_of_hf_id(path)
    return None if profile is None else models.profile_model(profile)


class _Parser:
    """``argparse`` over a flag table: one value per server argument."""

    def __init__(self, table: FlagTable) -> None:
        self._table = table
        self._options: dict[str, tuple[str, bool]] = {}  # option -> (argument, its value if it is a switch)
        for name, flag in table.items():
            for option in (flag.get("cli_name") or option_of(name), *flag.get("aliases", ())):
                self._options[option] = (name, True)
                if flag["type"] == "switch":
                    self._options["--no-" + option.removeprefix("--")] = (name, False)

    def parse(self, words: Sequence[str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        stray: list[str] = []
        position = 0
        while position < len(words):
            word = words[position]
            position += 1
            option, attached = self._option(word)
            if option is None:
                stray.append(word)
                continue
            name, switched_on = self._options[option]
            following = [] if attached is not None else self._following(words, position)
            if self._table[name]["type"] in _SWITCHES:
                values[name] = self._switch(option, attached, switched_on)
                continue
            taken = [attached] if attached is not None else self._taken(name, following)
            position += 0 if attached is not None else len(taken)
            values[name] = self._value(option, name, taken)
        if stray:
            raise self._unrecognized(stray)
        return values

    def _option(self, word: str) -> tuple[str | None, str | None]:
        """The option that a word means and the value attached to it by ``=``; None for anything else."""
        if not word.startswith("--") or word == "--":
            return None, None
        if word in self._options:
            return word, None
        prefix, equals, value = word.partition("=")
        attached = value if equals else None
        if prefix in self._options:
            return prefix, attached
        matches = [option for option in self._options if option.startswith(prefix)]
        if len({self._options[option] for option in matches}) > 1:
            more = f" and {len(matches) - _SHOWN_MATCHES} more" if len(matches) > _SHOWN_MATCHES else ""
            raise DeploymentError(
                f"{prefix} is ambiguous: it could be {', '.join(matches[:_SHOWN_MATCHES])}{more}",
                code="ambiguous-flag",
                where=prefix,
                hint=f"write the flag in full: {matches[0]}, or another of them",
            )
        return (matches[0], attached) if matches else (None, None)

    def _following(self, words: Sequence[str], position: int) -> list[str]:
        """The words from here that can be values: up to the next flag. Negative numbers are values."""
        following = []
        for word in words[position:]:
            if word.startswith("-") and word != "-" and not _NEGATIVE_NUMBER.fullmatch(word) and " " not in word:
                break
            following.append(word)
        return following

    def _taken(self, name: str, following: list[str]) -> list[str]:
        flag = self._table[name]
        return following if flag["type"] in _LISTS or flag.get("nargs") == "*" else following[:1]

    def _switch(self, option: str, attached: str | None, value: bool) -> bool:
        if attached is None:
            return value
        raise DeploymentError(
            f"{option} is a switch and takes no value, got {attached!r}",
            code="flag-type",
            where=option,
            hint=f"write {option} alone, or leave it out",
        )

    def _value(self, option: str, name: str, words: list[str]) -> Any:
        flag = self._table[name]
        kind = flag["type"]
        if not words and flag.get("nargs") != "*":
            raise DeploymentError(
                f"{option} needs a value", code="flag-type", where=option, hint=f"{option} {_EXAMPLES[kind]}"
            )
        if kind in _LISTS:
            return [self._converted(option, flag, _LISTS[kind], word) for word in words]
        if flag.get("nargs") == "*":
            return list(words)
        return self._converted(option, flag, kind, words[0])

    def _converted(self, option: str, flag: Mapping[str, Any], kind: str, word: str) -> Any:
        try:
            value = _CONVERSIONS[kind](word)
        except ValueError:
            raise DeploymentError(
                f"{option} takes {_KINDS[kind]}, not {word if len(word) <= 60 else word[:57] + '...'!r}",
                code="flag-type",
                where=option,
                hint=f"{option} {_EXAMPLES[kind]}",
            ) from None
        choices = flag.get("choices")
        if choices and value not in choices:
            listed = nearest_first(word, [str(choice) for choice in choices])
            raise DeploymentError(
                f"{option} does not know {word!r}",
                code="flag-choice",
                where=option,
                hint="one of these, nearest first: " + ", ".join(listed),
            )
        return value

    def _unrecognized(self, words: list[str]) -> DeploymentError:
        flag = next((word.partition("=")[0] for word in words if word.startswith("--")), None)
        if flag is None:
            return DeploymentError(
                f"the server does not know what to do with {' '.join(words)}",
                code="unknown-flag",
                where=words[0],
                hint="every word is a flag or a value of the flag before it",
            )
        return DeploymentError(
            f"the server has no flag {flag}",
            code="unknown-flag",
            where=flag,
            hint=f"did you mean {nearest_first(flag, list(self._options))[0]}?",
        )


def option_of(name: str) -> str:
    """``tp_size -> --tp-size``."""
    return "--" + name.replace("_", "-")


def _size(word: str) -> int:
    """An integer, or a number with a unit: 4k, 1.5M, 16Ki; binary units take whole numbers only."""
    match = _SIZE.fullmatch(word.strip())
    if match is None:
        return int(word)
    number, unit = match.groups()
    if unit.endswith("i") and "." in number:
        raise ValueError(word)
    return int(Decimal(number) * _SIZE_UNITS[unit])


_CONVERSIONS: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "size": _size,
    "float": float,
    "str": str,
    "json": parse_json,
}
_KINDS = {
    "int": "an integer",
    "size": "an integer, or one with a unit such as 4k",
    "float": "a number",
    "str": "a text",
    "json": "a JSON value",
}
_EXAMPLES = {
    "int": "8",
    "size": "8192",
    "float": "0.85",
    "str": "NAME",
    "json": "'{\"key\": 1}'",
    "ints": "1 2 4",
    "floats": "0.5 1.0",
    "strs": "NAME NAME",
}
