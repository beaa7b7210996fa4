"""``autotune-plan schema``: the deployment file as a JSON Schema, for editors."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

import typer


def schema(
    json: Annotated[bool, typer.Option("--json", help="Changes nothing: a schema is JSON.")] = False,
) -> None:
    """Print the JSON Schema (draft 7) of a deployment file.

    An editor with a YAML language server checks a file that starts with the line
    # yaml-language-server: $schema=deployment.schema.json
    """
    from autotune_planner.deployment.json_schema import deployment_schema

    print(jsonlib.dumps(deployment_schema(), indent=2))
