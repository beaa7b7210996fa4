"""Commands on damaged files: exit 0, 2 or 5 with a message, never a traceback, and the file stays as it is."""

import random
from pathlib import Path

import pytest

from tests.cache.test_damaged_files import damaged

H200 = Path(__file__).parents[1] / "data" / "h200"
SOUND = H200 / "shard_bucket_64.json"


@pytest.mark.parametrize("seed", range(60))
def test_cache_commands(cli, tmp_path, seed):
    path = tmp_path / "rank_tp0_pp0_dp0.json"
    content = damaged(SOUND.read_bytes(), random.Random(seed))
    path.write_bytes(content)
    for arguments in (
        ("show", path),
        ("show", tmp_path, "--json"),
        ("show", path, "--csv"),
        ("diff", SOUND, path),
        ("diff", "--ranks", tmp_path),
        ("merge", "-o", tmp_path / "store", path),
        ("install", path, "--cache-dir", tmp_path / "new"),
    ):
        result = cli(*arguments)
        assert result.code in (0, 2, 5)
        assert "Traceback" not in result.err
        assert result.code == 0 or result.out == "" or arguments[0] == "diff" or "--json" in arguments
    assert path.read_bytes() == content
