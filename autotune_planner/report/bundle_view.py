"""``bundle`` and ``install`` for people and scripts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from autotune_planner.cache.bundle import Bundle
from autotune_planner.report.entry_text import printable
from autotune_planner.shipping import Verdict

INSTALL_SCHEMA = "autotune-plan/install@1"


def bundle_view(bundle: Bundle, out: Path) -> Group:
    return Group(
        Text(f"Packed {_rank_files(bundle)} into {out}, with {' '.join(_others(bundle))}"),
        Text(f"  for {bundle.directory} below SGLANG_CACHE_DIR"),
        Text(f"  made in {_environment(bundle)}"),
    )


def install_view(directory: Path, bundle: Bundle, verdict: Verdict) -> Group:
    lines = [Text(f"Installed {_rank_files(bundle)} in {directory}"), *(Text(f"  {name}") for name in bundle.ranks)]
    compared = ", ".join(verdict.compared) or "nothing: neither FlashInfer nor a deployment file is here"
    lines.append(Text(f"Sums are verified; of the environment was compared: {compared}"))
    if verdict.problems:
        lines.append(Text("Installed by --force, though the server would not load it:"))
        lines += [Text(printable(f"  {problem}")) for problem in verdict.problems]
    return Group(*lines)


def install_document(directory: Path, paths: Sequence[Path], verdict: Verdict) -> dict[str, Any]:
    """``forced_over``: why the server would not load what ``--force`` installed; empty otherwise."""
    return {
        "schema": INSTALL_SCHEMA,
        "directory": str(directory),
        "files": [str(path) for path in paths],
        "compared": list(verdict.compared),
        "forced_over": list(verdict.problems),
    }


def _rank_files(bundle: Bundle) -> str:
    return "1 rank file" if len(bundle.ranks) == 1 else f"{len(bundle.ranks)} rank files"


def _others(bundle: Bundle) -> list[str]:
    return [Path(name).name for name in bundle.files if name not in bundle.ranks]


def _environment(bundle: Bundle) -> str:
    stamp = bundle.metadata or {}
    return printable(
        f"FlashInfer {stamp.get('flashinfer_version')}, CUDA {stamp.get('cuda_version')}, {stamp.get('gpu')}"
    )
