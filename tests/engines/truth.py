"""Rows of the real server as deployments: what SGLang 0.5.23 resolved, run on its own code."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from autotune_planner import profiles
from autotune_planner.deployment.gpus import load_gpu
from autotune_planner.deployment.model import Deployment
from autotune_planner.deployment.models import load_model

DATA = Path(__file__).parents[1] / "data" / "truth"
CAPACITY = 1_000_000  # KV tokens per rank that the truth assumed


@cache
def rows(name="sglang-0.5.23.jsonl"):
    return tuple(json.loads(line) for line in (DATA / name).read_text().splitlines())


def row(identity, name="sglang-0.5.23.jsonl"):
    return next(row for row in rows(name) if row["id"] == identity)


def deployment_of(row, capacity=CAPACITY):
    """A deployment whose fields and flags say what the row's command line says."""
    given = parse(row["args"])
    path = given.pop("model_path")
    table = profiles.load("engines", "sglang-0.5.23")["field_flags"]
    deployment = Deployment(
        gpu=load_gpu(row["gpu"]),
        model=load_model(DATA / "models" / Path(path).name),
        model_path=path,
        kv_token_capacity=capacity,
        env={"SGLANG_CACHE_DIR": "/cache", **row.get("env", {})},
    )
    for field, flag in table.items():
        if flag in given:
            section, _, name = field.partition(".")
            value = given.pop(flag)
            if not name:
                deployment = replace(deployment, **{section: None if value == "null" else value})
            else:
                value = tuple(value) if isinstance(value, list) else value
                deployment = replace(deployment, **{section: replace(getattr(deployment, section), **{name: value})})
    return replace(deployment, flags=given)


def parse(arguments):
    """``--flag value`` pairs by the release's table; the truth writes flags in full."""
    table = profiles.load("engines", "sglang-0.5.23")["flags"]
    spelled = {flag["cli_name"]: name for name, flag in table.items() if "cli_name" in flag}
    parsed, position = {}, 0
    while position < len(arguments):
        name = arguments[position].removeprefix("--").replace("-", "_")
        name = spelled.get(arguments[position], name)
        position += 1
        values = []
        while position < len(arguments) and not arguments[position].startswith("--"):
            values.append(arguments[position])
            position += 1
        kind = table[name]["type"] if name in table else "str"
        parsed[name] = convert(kind, values)
    return parsed


def convert(kind, values):
    if kind == "bool":
        return True
    if kind == "ints":
        return [int(value) for value in values]
    if kind in ("int", "size"):
        return int(values[0])
    if kind == "float":
        return float(values[0])
    return json.loads(values[0]) if kind == "json" else values[0]
