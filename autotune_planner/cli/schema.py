"""``autotune-plan schema``: the deployment file as a JSON Schema, for editors."""

from __future__ import annotations

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
    from autotune_planner.json_text import json_text

    print(json_text(deployment_schema()))
