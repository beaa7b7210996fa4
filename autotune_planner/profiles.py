"""The one lookup of package data: ``profiles/{gpus,models,engines}/NAME.yaml``, and the flags of an engine in
``engines/NAME.flags.json``: half a thousand, which YAML takes 40 times as long to read.

In a checkout the data is the top-level ``profiles/`` folder; in an installed wheel ``autotune_planner/profiles/``.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

Kind = Literal["gpus", "models", "engines"]

_PACKAGE = Path(__file__).resolve().parent


@cache
def root() -> Path:
    """Folder that holds ``gpus/``, ``models/`` and ``engines/``."""
    installed = _PACKAGE / "profiles"
    return installed if installed.is_dir() else _PACKAGE.parent / "profiles"


@cache
def names(kind: Kind) -> tuple[str, ...]:
    """Profile names of one kind, sorted."""
    return tuple(sorted(path.stem for path in (root() / kind).glob("*.yaml")))


@cache
def load(kind: Kind, name: str) -> dict[str, Any]:
    """Content of one profile. The caller must not change it. ``KeyError`` if there is none of that name."""
    path = root() / kind / f"{name}.yaml"
    if name not in names(kind):
        raise KeyError(name)
    content = _read(path)
    if kind == "engines":
        content["flags"] = json.loads(path.with_name(f"{name}.flags.json").read_text(encoding="utf-8"))
    return content


@cache
def table(name: Literal["notices", "builds", "search"]) -> dict[str, Any]:
    """Content of a table beside the profiles. The caller must not change it."""
    return _read(root() / f"{name}.yaml")


def _read(path: Path) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    assert isinstance(content, dict), path
    return content
