"""``--config FILE`` of a launch line: a YAML file of flags, which the server reads before the line's own.

Source of the rules: SGLang's ``utils/server_args_config_parser.ConfigArgumentMerger``. The file is YAML 1.1, as the
server's parser has it: ``no`` and ``off`` are false.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune_planner.deployment.fields import shown
from autotune_planner.deployment.flag_table import FlagTable
from autotune_planner.deployment.text_files import read_text
from autotune_planner.errors import DeploymentError

_FLAG = "--config"
_OTHERWISE = "give the flags of that file on the line itself"


def with_config_file(words: Sequence[str], table: FlagTable) -> list[str]:
    """The flags of a launch line with those of its file before them, so that the line's own win.

    The server reads the file of ``--config FILE`` only, not of ``--config=FILE``. ``DeploymentError`` where it refuses
    the file, and where the file is not on this machine.
    """
    given = list(words)
    if _FLAG not in given:
        return given
    at = given.index(_FLAG)
    if given.count(_FLAG) > 1 or at + 1 == len(given):
        raise _refused("takes one file", f"{_FLAG} server.yaml")
    path = given[at + 1]
    return [*_words_of(_content(path), table, path), *given[:at], *given[at + 2 :]]


def _content(path: str) -> Mapping[Any, Any]:
    import yaml

    if Path(path).suffix.lower() not in (".yaml", ".yml"):
        raise _refused(f"takes a file that ends in .yaml, not {shown(path)}", f"{_FLAG} server.yaml")
    text = read_text(path, f"the file of {_FLAG}", f"run this beside it, or {_OTHERWISE}")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise _refused(f"{path} has aliases, which may grow without bound", _OTHERWISE)
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise _refused(f"{path} is not valid YAML: {reason}", "correct it") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise _refused(f"{path} is not a mapping of flags", "write lines such as tp-size: 8")
    return content


def _words_of(content: Mapping[Any, Any], table: FlagTable, path: str) -> list[str]:
    switches, refused = _keys(table)
    words: list[str] = []
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if not isinstance(key, str) or name in refused:
            raise _refused(f"the server does not take {shown(key)} from {path}", f"write --{key} on the line itself")
        if isinstance(value, bool) and name in switches:
            words += [f"--{key}"] if value else []
        elif isinstance(value, bool):
            words += [f"--{key}", str(value).lower()]
        elif isinstance(value, list):
            words += [f"--{key}", *map(str, value)] if value else []
        else:
            words += [f"--{key}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


def _keys(table: FlagTable) -> tuple[set[str], set[str]]:
    """(switches that take true and false, flags that the server does not read from a file), by every long name."""
    switches: set[str] = set()
    refused: set[str] = set()
    for name, flag in table.items():
        options = (flag.get("cli_name") or f"--{name}", *flag.get("aliases", ()))
        names = {name} | {option[2:].replace("-", "_") for option in options if option.startswith("--")}
        if flag["type"] == "switch":
            refused |= names | {f"no_{one}" for one in names}
        elif flag.get("config_file") is False:
            refused |= names
        elif flag["type"] == "bool":
            switches |= names
    return switches, refused


def _refused(problem: str, hint: str) -> DeploymentError:
    return DeploymentError(problem, code="launch-line", where=_FLAG, hint=hint)
