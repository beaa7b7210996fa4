"""The command in this process, as a plain function: for property tests, and for comparisons over many rows."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from unittest import mock

from autotune_planner.cli.main import main


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def call(*arguments: object, environ: Mapping[str, str] | None = None) -> Result:
    """One call with no environment but ``environ``, the cache directory /cache and a home."""
    whole = {"SGLANG_CACHE_DIR": "/cache", "HOME": "/home/operator", "NO_COLOR": "1", **(environ or {})}
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        mock.patch.dict(os.environ, whole, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Result(code, out.getvalue(), err.getvalue())
