"""Oracle tests: skipped without the server's wheel; the counts of a run are printed at its end."""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from pathlib import Path

import pytest

from tests.oracle.comparison import Judged, judge, verdicts
from tests.oracle.configurations import examples, random_configurations

SERVER, RELEASE = "sglang", "0.5.23"
_JUDGED = pytest.StashKey[dict[str, Judged]]()


def _obstacle() -> str | None:
    try:
        found = importlib.metadata.version(SERVER)
    except importlib.metadata.PackageNotFoundError:
        return f"{SERVER} {RELEASE} is not installed here: make oracle"
    return None if found == RELEASE else f"{SERVER} {found} is installed here, these tests are of {RELEASE}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    obstacle = _obstacle()
    for item in items:
        if obstacle and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=obstacle))


@pytest.fixture(scope="session")
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Judged]:
    """Every configuration by its name, resolved by both."""
    found = judge([*examples(), *random_configurations()], tmp_path_factory.mktemp("oracle"))
    request.config.stash[_JUDGED] = {one.configuration.name: one for one in found}
    return request.config.stash[_JUDGED]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash.get(_JUDGED, {})
    if not found:
        return
    terminalreporter.section(f"{SERVER} {RELEASE} and autotune-plan compute")
    for kind, prefix in (("examples", ""), ("random", "random-")):
        members = [one for one in found.values() if one.configuration.name.startswith("random-") == bool(prefix)]
        count = Counter(one.verdict for one in members)
        terminalreporter.write_line(f"{kind}: " + ", ".join(f"{count[name]} {name}" for name in verdicts()))
    compared = [one for member in found.values() for one in member.compared]
    terminalreporter.write_line(f"fields: {sum(one.equal for one in compared)} of {len(compared)} equal")
