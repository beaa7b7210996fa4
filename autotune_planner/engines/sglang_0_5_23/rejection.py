"""How a rule of the server says no: the flag, the rule, and what to write instead."""

from __future__ import annotations

from autotune_planner.errors import DeploymentError


def rejected(flag: str, rule: str, hint: str, *, source: str) -> DeploymentError:
    """An error for a deployment that the server refuses at start. ``source`` is the server's own function."""
    return DeploymentError(f"{flag}: {rule} ({source})", code="server-rejects", where=flag, hint=hint)
