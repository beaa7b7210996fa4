"""Debian's Chromium, headless, with no network but a loopback of its own."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

CHROMIUM = shutil.which("chromium")


@dataclass(frozen=True)
class Browsed:
    """``console`` are the messages of pages and of the policy that they set themselves."""

    out: str
    console: tuple[str, ...]


def browse(page: Path, profile: Path, *options: str) -> Browsed:
    """Open a page. ``options`` say what to do with it, such as ``--dump-dom``."""
    command = [
        CHROMIUM or "chromium",
        "--headless",
        "--no-sandbox",  # a container's root may not have one
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--allow-file-access-from-files",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={profile}",
        "--enable-logging=stderr",
        *options,
        page.as_uri(),
    ]
    done = subprocess.run(
        [*_without_network(), *command], capture_output=True, text=True, timeout=120, check=True, errors="replace"
    )
    return Browsed(done.stdout, tuple(line for line in done.stderr.splitlines() if "CONSOLE" in line))


def _without_network() -> list[str]:
    """A network namespace of its own where this user may have one; the resolver's rule holds in any case."""
    unshare = shutil.which("unshare")
    probe = [unshare or "unshare", "--map-root-user", "--net"]
    allowed = unshare and subprocess.run([*probe, "true"], capture_output=True, check=False).returncode == 0
    return probe if allowed else []
