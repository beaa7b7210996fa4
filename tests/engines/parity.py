"""Our ``compute --json`` against what the real SGLang 0.5.23 resolved or refused, field by field of the JSON contract.

    python -m tests.engines.parity > docs/parity.md

Each row's own flags go after ``--``, and what is compared is what the command prints. The truth's ``resolved.runtime``
is our ``runtime``, ``real`` holds what the server's own runner, gates and cache path gave (names with a dot included).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.command import call
from tests.engines.truth import CAPACITY, DATA, row, rows

TRUTH, RANDOM = "sglang-0.5.23.jsonl", "random-sglang-0.5.23.jsonl"
REAL_NAMES = {"eager_max_bs": "EagerRunner._eager_max_bs", "decode_autotune_bs": "_autotune_buffers.bs"}


@dataclass(frozen=True)
class Outcome:
    """What one call of the command gave: ``document`` is the plan, or the error for exit codes other than 0."""

    code: int
    document: dict[str, Any]


@dataclass(frozen=True)
class Compared:
    field: str
    ours: Any
    theirs: Any

    @property
    def equal(self) -> bool:
        return equal(self.ours, self.theirs)


def accepted(row) -> bool:
    """The server starts: rows with a ``runtime_error`` fail while its runners are built."""
    return "error" not in row and "runtime_error" not in row["resolved"]


@cache
def outcome(identity: str, name: str = TRUTH) -> Outcome:
    """``compute --json`` of one row's flags, in this process and with the row's environment only."""
    found = row(identity, name)
    capacity = found.get("resolved", {}).get("runtime", {}).get("assumed_token_capacity", CAPACITY)
    ours = ("--gpu", found["gpu"], "--model-dir", str(DATA / "models"), "--kv-token-capacity", str(capacity), "--json")
    done = call("compute", *ours, "--", *found["args"], environ=found.get("env"))
    return Outcome(done.code, json.loads(done.out))


def compared(identity: str, name: str = TRUTH) -> list[Compared]:
    """Every field of one row of the truth."""
    return compare(row(identity, name), outcome(identity, name))


def compare(found: dict[str, Any], ours: Outcome) -> list[Compared]:
    """Every field that the server's row ``found`` has: of the plan, or of the refusal."""
    if not accepted(found):
        return list(_refusal(found, ours))
    if ours.code:
        return [Compared("exit 0", ours.code, 0)]
    theirs, document = found["resolved"], ours.document
    both = list(_resolved(document, theirs))
    if "runtime" in theirs:
        both += _model(document, theirs["model"])
        both += _runtime(document, theirs["runtime"])
        both += _buffers(document, theirs["runtime"]["real"])
    else:
        both.append(Compared("model.dtype", document["model"]["dtype"], theirs["dtype"]))
    return both


def _refusal(found, ours: Outcome) -> Iterator[Compared]:
    kind = "runtime_error" if "error" not in found else f"error in {found['error_stage'].split(' ')[0]}"
    where, message, hint = (ours.document.get(part) for part in ("where", "message", "hint"))
    named = bool(where) and (where.startswith("--") or where in {*found["args"], *found.get("env", {})})
    yield Compared(f"refused: {kind}", (ours.code, named, bool(message), bool(hint)), (3, True, True, True))


def _resolved(document, theirs) -> Iterator[Compared]:
    for name, value in document["resolved"].items():
        if name not in theirs:  # the second set has fewer
            continue
        if isinstance(value, dict):
            for part, ours in value.items():
                yield Compared(f"resolved.{name}.{part}", ours, theirs[name][part])
        else:
            yield Compared(f"resolved.{name}", value, theirs[name])


def _model(document, theirs) -> list[Compared]:
    names = {"dtype": "dtype", "hidden_size": "hidden_size", "vocab_size": "vocab_size", "architecture": "arch"}
    return [Compared(f"model.{ours}", document["model"][ours], theirs[name]) for ours, name in names.items()]


def _runtime(document, theirs) -> Iterator[Compared]:
    for name, value in document["runtime"].items():
        if name == "capture_bs" and "capture_bs_error" in theirs:
            warned = any(warning["level"] == "error" for warning in document["warnings"])
            yield Compared("capture_bs_error: error-level warning", (value, warned), (None, True))
            continue
        for source in (theirs, theirs["real"]):
            their_name = REAL_NAMES.get(name, name) if source is theirs["real"] else name
            if their_name in source:
                shown = f"runtime.{name}" + (f" (real: {their_name})" if their_name != name else "")
                yield Compared(shown, value, source[their_name])


def _buffers(document, real) -> list[Compared]:
    ours = {buffer["name"]: [buffer["shape"], buffer["dtype"]] for buffer in document["buffers"]["decode"]}
    return [
        Compared("buffers.decode (name, shape, dtype)", ours, real["_autotune_buffers"]),
        Compared("buffers.gpu_bytes", document["buffers"]["gpu_bytes"], real["_autotune_buffers.gpu_bytes"]),
    ]


def equal(ours, theirs) -> bool:
    """Long lists of the truth are abridged to {len, first, last}."""
    if isinstance(theirs, dict) and {"len", "first", "last"} <= set(theirs):
        ends = ours[: len(theirs["first"])], ours[-len(theirs["last"]) :]
        return len(ours) == theirs["len"] and [list(end) for end in ends] == [theirs["first"], theirs["last"]]
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(equal(ours[name], value) for name, value in theirs.items())
    if isinstance(theirs, list) and isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(equal, ours, theirs))
    return ours == theirs


def table(name: str) -> tuple[str, int]:
    """The Markdown table of one set, and how many of its rows are equal in every field."""
    count, same, whole = Counter(), Counter(), 0
    for found in rows(name):
        both = compared(found["id"], name)
        whole += all(one.equal for one in both)
        for one in both:
            count[one.field] += 1
            same[one.field] += one.equal
    lines = ["| field | rows compared | equal |", "|---|---:|---:|"]
    lines += [f"| {field} | {count[field]} | {same[field]} |" for field in count]
    return "\n".join(lines), whole


def document() -> str:
    """docs/parity.md."""
    truth, whole = table(TRUTH)
    random, random_whole = table(RANDOM)
    return f"""# Parity with SGLang 0.5.23

Made by `python -m tests.engines.parity > docs/parity.md`; a test compares this file with what that prints.

Each row is one server configuration: its command line, its environment and its GPU, and what the released SGLang 0.5.23
code resolved, or the error it raised. `autotune-plan compute --json -- <the row's flags>` runs on each, and every field
that both have is compared. A row that the server refuses is equal if the command ends with exit code 3 and names the
flag or variable, the rule and what to write instead.

## Arguments, runtime values and buffers: {whole} of {len(rows(TRUTH))} rows equal in every field

`tests/data/truth/{TRUTH}`. `capture_bs` exists only where CUDA graphs are captured for decode.

{truth}

## Random command lines, arguments only: {random_whole} of {len(rows(RANDOM))} rows equal in every field

`tests/data/truth/{RANDOM}`: random flags over the same models and GPUs, resolved by the released wheel
with its GPU queries replaced.

{random}
"""


if __name__ == "__main__":
    print(document(), end="")
