"""The command-line flags of a server release, as ``profiles/engines`` has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune_planner import profiles
from autotune_planner.errors import DeploymentError

FlagTable = Mapping[str, Mapping[str, Any]]
"""Server argument -> {type, choices, aliases, cli_name, nargs, config_file}."""


def flag_table(server: str, version: str | None, where: str | None = None) -> FlagTable:
    """Flags of a release; of the newest known one for None and for a release without a profile.

    Whether a release has rules is for ``engines/`` to say, which refuses it or stands in for it aloud.
    ``DeploymentError`` at ``where`` for a server without any profile.
    """
    releases = [name for name in profiles.names("engines") if name.startswith(f"{server}-")]
    if not releases:
        raise unknown_server(server, where)
    name = f"{server}-{version}"
    table: FlagTable = profiles.load("engines", name if name in releases else max(releases, key=_release))["flags"]
    return table


def unknown_server(server: str, where: str | None) -> DeploymentError:
    known = sorted({name.rpartition("-")[0] for name in profiles.names("engines")})
    return DeploymentError(
        f"no rules for the server {server}", code="unknown-engine", where=where, hint=f"known: {', '.join(known)}"
    )


def _release(name: str) -> list[int]:
    return [int(part) for part in name.rpartition("-")[2].split(".")]
