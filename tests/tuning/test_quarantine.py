"""The quarantine file: FlashInfer's own form, durable, and of one environment."""

import json

import pytest

from autotune_planner.tuning.quarantine import Quarantine, Quarantined

METADATA = {"flashinfer_version": "0.7.2", "gpu": "NVIDIA H200"}
GEMM1 = "trtllm::fused_moe::gemm1"


def item(tactic=7, **changes):
    values = {
        "custom_op": GEMM1,
        "runner": "MoERunner",
        "tactic": tactic,
        "fault": "crash",
        "reason": "killed by SIGSEGV",
        "bucket": 64,
        "shape": "E128 H2048 I768 k8",
        **changes,
    }
    return Quarantined(**values)


def test_it_is_flashinfers_form(tmp_path):
    path = tmp_path / "quarantine.json"
    Quarantine(path, METADATA).add([item(7), item(9), item([1, 2], custom_op="op", runner="R")])
    content = json.loads(path.read_text())
    assert content["invalid_tactics"] == {f"{GEMM1}::MoERunner": [7, 9], "op::R": [[1, 2]]}
    assert content["_metadata"].items() >= METADATA.items()
    assert content["details"][0]["bucket"] == 64


@pytest.mark.flashinfer
def test_flashinfers_own_loader_blocks_what_is_in_it(tmp_path):
    from flashinfer.tactics_blocklist import TacticsBlocklist

    from autotune_planner.tuning.flashinfer_internals import collect_metadata

    class MoERunner:
        pass

    path = tmp_path / "quarantine.json"
    Quarantine(path, collect_metadata()).add([item(7), item((3, 4))])
    blocklist = TacticsBlocklist()
    assert blocklist.load(str(path))
    assert blocklist.filter(GEMM1, MoERunner(), [6, 7, (3, 4), (4, 3), 8]) == [6, (4, 3), 8]
    assert blocklist.filter("trtllm::fused_moe::gemm2", MoERunner(), [7]) == [7]


def test_it_is_read_again(tmp_path):
    path = tmp_path / "quarantine.json"
    Quarantine(path, METADATA).add([item(7)])
    Quarantine(path, METADATA).add([item(7, bucket=128), item(8)])  # the same tactic once
    found = Quarantine(path, METADATA)
    assert [(one.tactic, one.bucket) for one in found.items] == [(7, 64), (8, 64)]
    assert found.of(GEMM1) == found.items
    assert found.of("another") == ()


def test_another_environment_begins_anew(tmp_path):
    path = tmp_path / "quarantine.json"
    Quarantine(path, METADATA).add([item()])
    assert Quarantine(path, {**METADATA, "gpu": "NVIDIA H100"}).items == ()


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"_metadata": {}}', '{"_metadata": 1, "details": 2}'])
def test_a_damaged_file_is_empty(tmp_path, content):
    path = tmp_path / "quarantine.json"
    path.write_text(content)
    assert Quarantine(path, METADATA).items == ()


def test_fresh(tmp_path):
    path = tmp_path / "quarantine.json"
    quarantine = Quarantine(path, METADATA)
    quarantine.add([item()])
    quarantine.clear()
    assert quarantine.items == ()
    assert not path.exists()


@pytest.mark.parametrize("content", [b"\xff\xfe{", b'{"invalid_tactics": 5}', b"[" * 100_000, b"[]"])
def test_a_damaged_file_is_known_as_such(tmp_path, content):
    path = tmp_path / "quarantine.json"
    path.write_bytes(content)
    quarantine = Quarantine(path, METADATA)
    assert (quarantine.items, quarantine.damaged) == ((), True)
    quarantine.add([item(7)])
    again = Quarantine(path, METADATA)
    assert ([one.tactic for one in again.items], again.damaged) == ([7], False)


def test_no_file_and_another_environments_are_not_damaged(tmp_path):
    path = tmp_path / "quarantine.json"
    assert not Quarantine(path, METADATA).damaged
    Quarantine(path, {**METADATA, "gpu": "NVIDIA B200"}).add([item(7)])
    other = Quarantine(path, METADATA)
    assert (other.items, other.damaged) == ((), False)
