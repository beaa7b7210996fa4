"""What the server makes of its ranks' files. Rules are those of the wheels of SGLang 0.5.23 and FlashInfer 0.7.2."""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune_planner.cache.rank_files import neighbours, read_rank_files
from autotune_planner.cache.sglang_layout import cache_directory
from autotune_planner.cache.v1 import Entry
from autotune_planner.deployment.gpus import load_gpu
from autotune_planner.deployment.model import Moe, Parallel
from autotune_planner.errors import NotPossibleHereError
from autotune_planner.pipeline import Target, check_same_gpu
from tests.cache.checks import H200, checked, content_of, problems, publish, question
from tests.cache.journals import record, write_journal
from tests.engines.truth import row


def test_complete_identical_files_are_used(tmp_path: Path) -> None:
    asked = question(tmp_path)
    publish(asked, content_of(asked))
    report, found = checked(asked)
    assert found == {}
    assert [member.fate for member in report.files] == ["loads"] * 4
    assert [(len(group.ranks), group.differ) for group in report.groups] == [(4, None)]


def test_paths_are_those_of_the_real_server(tmp_path: Path) -> None:
    truth = row("q30-h200-tp4-ep4", "keys-sglang-0.5.23.jsonl")
    asked = question(tmp_path)
    paths = [str(file.path) for file in read_rank_files(asked.place)]
    assert str(tmp_path) + truth["cache_path"].removeprefix("/cache") in paths
    assert len(set(paths)) == 4


# A check that cannot fail is none: one thing is broken at a time.


def first_key(content: dict[str, Any]) -> str:
    return next(key for key in content if not key.startswith("_"))


def with_key(content: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return {key.replace(old, new) if key == first_key(content) else key: value for key, value in content.items()}


def with_value(content: dict[str, Any], place: int, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(content)
    changed[first_key(content)][place] = value
    return changed


COLD = ["cuda_graph_profile_replays", 1, "l2_cache_policy", "cold"]


def with_stamp(content: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**content, "_metadata": {**H200, **fields}}


@pytest.mark.parametrize(
    ("broken", "code", "says"),
    [
        (lambda c: with_key(c, "(1, 2048)", "(1, 2040)"), "tuned-at-start", "asked for (1, 2048)"),
        (lambda c: with_key(c, "MoERunner", "OtherRunner"), "tuned-at-start", "runner OtherRunner"),
        (lambda c: with_key(c, ", False))", ", True))"), "tuned-at-start", "extra 16 is True, asked for False"),
        (lambda c: with_value(c, 2, COLD), "tuned-at-start", "measured with 1 cold; the server asks for no-graph hot"),
        (lambda c: with_value(c, 1, 4), "edited-file", "_generation"),
        (lambda c: with_stamp(c, cudnn_version="92101"), "stamp-stuck", "cudnn_version 92101 against 91900"),
        (lambda c: with_stamp(c, cudnn_version="unknown"), "stamp-healed", "did not know cudnn_version"),
        (lambda c: {**c, "_metadata": "0.7.2"}, "stamp-healed", "did not know flashinfer_version, cuda_version"),
        (lambda c: with_stamp(c, gpu="simulated NVIDIA H200"), "simulated-file", "a simulated run wrote it"),
        (lambda c: {k: v for k, v in c.items() if k != first_key(c)}, "tuned-at-start", "M 1..1"),
    ],
)
def test_one_broken_field(tmp_path: Path, broken: Any, code: str, says: str) -> None:
    asked = question(tmp_path)
    publish(asked, broken(content_of(asked)))
    _, found = checked(asked)
    assert code in problems(found)
    assert says in found[code].message


@pytest.mark.parametrize("change", [lambda c: with_value(c, 1, 4), lambda c: with_stamp(c, cudnn_version="92101")])
def test_what_a_run_writes_anew_is_neither_deleted_nor_tuned_afresh(tmp_path: Path, change: Any) -> None:
    asked = question(tmp_path)
    publish(asked, change(content_of(asked)))
    _, found = checked(asked)
    hints = [found[code].hint for code in problems(found)]
    assert all(hint.endswith(asked.run_command) for hint in hints)
    assert not any("delete" in hint for hint in hints)


@pytest.mark.parametrize(
    ("tactic", "says"),
    [
        ("a", 'tactic "a" of trtllm::fused_moe::gemm1 at bucket 1 is none of MoERunner, which takes a number'),
        (None, "tactic null of"),
        (1.5, "tactic 1.5 of"),
        ([64, 3], "tactic [64, 3] of"),
        (-2, "is negative, as only the default is, -1"),
    ],
)
def test_a_tactic_that_no_runner_takes_is_found_without_a_generation(tmp_path: Path, tactic: Any, says: str) -> None:
    asked = question(tmp_path)
    broken = with_value(content_of(asked), 1, tactic)
    del broken["_generation"]
    publish(asked, broken)
    report, found = checked(asked)
    assert problems(found) == ["damaged-tactic"]
    assert says in found["damaged-tactic"].message
    assert {member.fate for member in report.files} == {"loads"}  # FlashInfer does not look at it


def test_a_tactic_that_was_not_measured_is_found_by_the_journal(tmp_path: Path) -> None:
    asked = question(tmp_path)
    content = content_of(asked)
    key = first_key(content)
    entry = Entry(key, content[key][0], 3, None)
    for tactic, codes in ((3, []), (5, []), (4, ["damaged-tactic"])):
        broken = with_value(content, 1, tactic)
        del broken["_generation"]
        (path, *_) = publish(asked, broken)
        write_journal(path.parent, record(entry, H200, {3: 10.0, 5: 11.0, -1: 25.0}))
        _, found = checked(asked)
        assert problems(found) == codes
    assert "none of the 3 that the run in the journal beside it measured" in found["damaged-tactic"].message
    write_journal(path.parent, record(entry, {**H200, "gpu": "NVIDIA H100"}, {3: 10.0}))
    assert problems(checked(asked)[1]) == []  # a journal of another environment has no say


def test_a_damaged_tactic_that_nobody_asks_for_does_no_harm(tmp_path: Path) -> None:
    asked = question(tmp_path)
    content = content_of(asked)
    del content["_generation"]
    publish(asked, {**content, first_key(content).replace("2048", "4096"): ["MoERunner", "a"]})
    assert problems(checked(asked)[1]) == []


def test_a_file_that_cannot_be_read_is_to_be_made_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said of what it holds, and nothing is to be deleted."""
    asked = question(tmp_path, parallel=Parallel(tp=1))
    (path,) = publish(asked, content_of(asked))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("autotune_planner.cache.files.open", refuse, raising=False)
    _, found = checked(asked)
    assert problems(found) == ["unreadable-file"]
    assert "Permission denied" in found["unreadable-file"].message
    hint = found["unreadable-file"].hint or ""
    assert f"make it readable: chmod a+r {path}" in hint
    assert "delete" not in hint


def test_a_pipe_in_the_place_of_a_file(tmp_path: Path) -> None:
    asked = question(tmp_path, parallel=Parallel(tp=1))
    (path,) = publish(asked, b"")
    path.unlink()
    os.mkfifo(path)
    _, found = checked(asked)
    assert problems(found) == ["unreadable-file"]
    assert "not a regular file" in found["unreadable-file"].message


def test_a_wildcard_loads_and_is_named(tmp_path: Path) -> None:
    asked = question(tmp_path)
    publish(asked, content_of(asked, cudnn_version="*"))
    report, found = checked(asked)
    assert problems(found) == []
    assert list(found) == ["wildcard"]
    assert report.files[0].fate == "loads"


def test_a_missing_policy_counts_as_hot(tmp_path: Path) -> None:
    """Enough for the CUTLASS MoE, which is measured hot: nothing is profiled again."""
    asked = question(tmp_path)
    content = {key: value if key.startswith("_") else value[:2] for key, value in content_of(asked).items()}
    del content["_generation"]
    publish(asked, content)
    assert checked(asked)[1] == {}


def test_an_h100_file_on_an_h200(tmp_path: Path) -> None:
    """One shared SGLANG_CACHE_DIR: both are SM90, the path is the same; the H200 tunes at every start."""
    asked = question(tmp_path)
    publish(asked, content_of(asked, gpu="NVIDIA H100 80GB HBM3"))
    report, found = checked(asked)
    assert problems(found) == ["other-gpu-file"]
    assert "never rewrites" in found["other-gpu-file"].message
    assert "cache directory of its own" in (found["other-gpu-file"].hint or "")
    assert {member.fate for member in report.files} == {"ignored"}
    assert all(gap.state == "at_start" for cover in report.served[0].coverage for gap in cover.gaps())


# Ranks.


def test_tp4_with_rank_3_missing_tunes_on_all_ranks(tmp_path: Path) -> None:
    asked = question(tmp_path)
    publish(asked, content_of(asked))[3].unlink()
    report, found = checked(asked)
    assert [member.fate for member in report.files] == ["deleted"] * 3 + ["absent"]
    assert problems(found) == ["ranks-differ"]
    assert "all 4 ranks will delete their files" in found["ranks-differ"].message
    assert "rank_tp3_pp0_dp0 is missing" in found["ranks-differ"].message
    assert [len(served.ranks) for served in report.served] == [4]
    assert report.served[0].coverage[0].sizes()["tuned"] == 0


@pytest.mark.parametrize("raw", [b"", b"  \n", b"{", b"[]", b"\xff\xfe"])
def test_a_damaged_file_among_good_ones(tmp_path: Path, raw: bytes) -> None:
    asked = question(tmp_path)
    publish(asked, content_of(asked))[1].write_bytes(raw)
    report, found = checked(asked)
    assert [member.fate for member in report.files] == ["deleted"] * 4
    assert set(problems(found)) == {"ranks-differ", "damaged-file"}
    assert "rank_tp1_pp0_dp0 cannot be read" in found["ranks-differ"].message


def test_a_truncated_file_of_a_single_rank_ends_the_server(tmp_path: Path) -> None:
    asked = question(tmp_path, parallel=Parallel(tp=1))
    publish(asked, json.dumps(content_of(asked)).encode()[:300])
    report, found = checked(asked)
    assert [member.fate for member in report.files] == ["fails"]
    assert problems(found) == ["damaged-file"]
    assert "fails at start" in found["damaged-file"].message
    assert report.served == ()


def test_equally_damaged_files_are_not_deleted(tmp_path: Path) -> None:
    """Their digests are all empty, hence equal; then each rank's load raises."""
    asked = question(tmp_path)
    publish(asked, b"")
    report, found = checked(asked)
    assert [member.fate for member in report.files] == ["fails"] * 4
    assert problems(found) == ["damaged-file"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: with_value(c, 1, 4), "differ in 1 tactics"),
        (lambda c: with_value(c, 2, None), "differ in 1 policies"),
        (lambda c: {**c, "_metadata": {**H200, "cudnn_version": "1"}}, "_metadata (cudnn_version)"),
        (lambda c: {k: v for k, v in c.items() if k != first_key(c)}, "1 keys that one of them lacks"),
        (lambda c: {**c, "_last_updated_by": {"gpu": "x"}}, "what is no entry"),
    ],
)
def test_a_rank_with_another_content(tmp_path: Path, change: Any, says: str) -> None:
    asked = question(tmp_path)
    content = content_of(asked)
    publish(asked, content)[2].write_text(json.dumps(change(content)))
    report, found = checked(asked)
    assert report.groups[0].differ is not None
    assert says in report.groups[0].differ
    assert "ranks-differ" in problems(found)


def test_layout_of_the_text_is_no_difference(tmp_path: Path) -> None:
    """The server compares what the JSON says, sorted."""
    asked = question(tmp_path)
    content = content_of(asked)
    reordered = dict(reversed(list(content.items())))
    publish(asked, content)[2].write_text(json.dumps(reordered))
    report, found = checked(asked)
    assert report.groups[0].differ is None
    assert problems(found) == []


def test_expert_parallel_ranks_with_unequal_shapes_never_agree(tmp_path: Path) -> None:
    """sglang#40320: the whole file is compared, so ranks that hold other experts tune at every start."""
    asked = question(tmp_path)
    content = content_of(asked)
    other = {key.replace("(32, 1536, 2048)", "(33, 1536, 2048)"): value for key, value in content.items()}
    assert other.keys() != content.keys()
    publish(asked, content)[3].write_text(json.dumps(other))
    report, found = checked(asked)
    assert report.groups[0].other_shapes
    assert "shapes (42 keys of the one, 42 of the other)" in found["ranks-differ"].message
    assert "tune at every start" in found["ranks-differ"].message


def test_pipeline_stages_may_differ(tmp_path: Path) -> None:
    """tp2 pp2: four files, compared within each stage only."""
    asked = question(tmp_path, "q30-h200-tp2", parallel=Parallel(tp=2, pp=2))
    content = content_of(asked)
    paths = publish(asked, content)
    assert len(set(paths)) == 4
    second = with_value(content, 1, 4)
    del second["_generation"]
    for path in paths:
        if "_pp1_" in path.name:
            path.write_text(json.dumps(second))
    report, found = checked(asked)
    assert [group.differ for group in report.groups] == [None, None]
    assert problems(found) == []
    assert [len(served.ranks) for served in report.served] == [2, 2]


def test_attention_dp_ranks_are_one_group(tmp_path: Path) -> None:
    asked = question(tmp_path, "q30-h200-dpa8")
    publish(asked, content_of(asked))[7].unlink()
    report, found = checked(asked)
    assert [len(group.ranks) for group in report.groups] == [8]
    assert "rank_tp7_pp0_dp7 is missing" in found["ranks-differ"].message


def test_replicas_do_not_compare(tmp_path: Path) -> None:
    asked = question(tmp_path, "q30-h200-tp2", parallel=Parallel(tp=2, dp=2))
    content = content_of(asked)
    paths = publish(asked, content)
    for path in paths[2:]:
        path.unlink()
    report, found = checked(asked)
    assert [group.differ for group in report.groups] == [None, None]
    assert problems(found) == ["no-file"]
    assert "2 ranks" in found["no-file"].message


def test_no_file_at_all(tmp_path: Path) -> None:
    asked = question(tmp_path)
    report, found = checked(asked)
    assert problems(found) == ["no-file"]
    assert {member.fate for member in report.files} == {"absent"}
    assert found["no-file"].hint == "autotune-plan run deployment.yaml"


def test_caches_of_other_spellings_are_found(tmp_path: Path) -> None:
    theirs = question(tmp_path, model_path="/mnt/Qwen3-30B-A3B")
    (directory,) = {path.parent for path in publish(theirs, content_of(theirs))}
    assert neighbours(question(tmp_path).place) == (directory,)
    assert neighbours(theirs.place) == ()


# Whether the server reads it at all.


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"flags": {"disable_flashinfer_autotune": True}}, "--disable-flashinfer-autotune"),
        ({"flags": {"enable_deterministic_inference": True}}, "deterministic inference is on"),
        ({"env": {"SGLANG_FLASHINFER_AUTOTUNE_CACHE": "0"}}, "SGLANG_FLASHINFER_AUTOTUNE_CACHE=0"),
        ({"moe": Moe("triton")}, "no op needs it: the MoE runner is triton"),
        ({"gpu": load_gpu("A100-80G"), "parallel": Parallel(tp=4)}, "the GPU is SM80"),
    ],
)
def test_a_server_that_reads_no_cache(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    asked = question(tmp_path, **changes)
    asked = replace(asked, environment={**H200, "gpu": asked.resolved.gpu.name})
    publish(asked, content_of(question(tmp_path)))
    report, found = checked(asked)
    assert report.not_read is not None
    assert problems(found) == ["not-read"]
    assert says in found["not-read"].message
    assert {member.fate for member in report.files} == {"not read"}
    assert report.served == ()


@pytest.mark.parametrize(
    ("environment", "code"),
    [({"gpu": "unknown"}, "no-gpu-here"), ({"gpu": "NVIDIA H20"}, "other-gpu-here")],
)
def test_another_machine_than_the_deployments(tmp_path: Path, environment: dict[str, str], code: str) -> None:
    asked = replace(question(tmp_path), environment={**H200, **environment})
    publish(asked, content_of(asked))
    _, found = checked(asked)
    assert code in problems(found)


def test_another_flashinfer_looks_elsewhere(tmp_path: Path) -> None:
    asked = question(tmp_path)
    asked = replace(asked, place=replace(asked.place, flashinfer_version="0.7.4"))
    publish(asked, content_of(asked))
    _, found = checked(asked)
    assert found["flashinfer-not-pinned"].level == "note"
    assert problems(found) == []


@pytest.mark.parametrize(
    ("stamp", "replaced"),
    [
        ({}, True),
        ({"gpu": "unknown"}, True),
        ({"gpu": None}, True),
        ({"gpu": "*"}, True),
        ({"gpu": "simulated NVIDIA H20"}, True),
        ({"gpu": "NVIDIA H20"}, False),
    ],
)
def test_a_run_replaces_files_but_those_of_another_known_gpu(
    tmp_path: Path, stamp: dict[str, Any], replaced: bool
) -> None:
    """``stamp-healed`` and ``stamp-stuck`` advise the plain run: it must not end at the files themselves."""
    asked = question(tmp_path)
    publish(asked, with_stamp(content_of(asked), **stamp))
    directory = cache_directory(asked.place)
    target = Target(Path(directory), tuple(path.name for path in Path(directory).glob("rank_*.json")))
    with contextlib.nullcontext() if replaced else pytest.raises(NotPossibleHereError, match="NVIDIA H20"):
        check_same_gpu(target, "NVIDIA H200")


def test_one_entry_beside_the_plan_is_one(tmp_path: Path) -> None:
    asked = question(tmp_path)
    content = content_of(asked)
    del content["_generation"]
    content[first_key(content).replace("2048", "4096")] = ["MoERunner", 1]
    publish(asked, content)
    _, found = checked(asked)
    assert found["unasked-entries"].message.endswith(": 1 entry that this deployment does not ask for")


def test_entries_that_are_never_looked_up_are_counted(tmp_path: Path) -> None:
    asked = question(tmp_path)
    content = content_of(asked)
    del content["_generation"]
    key = first_key(content)
    content[key.partition(", (torch")[0] + ")"] = ["MoERunner", 1]
    content["no key"] = ["MoERunner", 1]
    content[key.replace("2048", "4096")] = ["MoERunner", 1]
    content[key.replace("MoERunner", "CudnnFp8GemmRunner")] = ["CudnnFp8GemmRunner", 1]
    publish(asked, content)
    _, found = checked(asked)
    assert problems(found) == []
    assert "1 key of 3 elements" in found["old-keys"].message
    assert "1 key that FlashInfer does not write" in found["no-keys"].message
    assert "2 entries that this deployment does not ask for" in found["unasked-entries"].message
    assert "1 cuDNN entry of an old form, not loaded" in found["cudnn-indices"].message


def test_a_note_of_an_older_writer_ends_the_server(tmp_path: Path) -> None:
    """FlashInfer 0.7.2 reads every name but its own three as an entry, once the stamp lets it."""
    asked = question(tmp_path)
    content = {**content_of(asked), "_last_updated_by": {"gpu": "NVIDIA H200"}}
    del content["_generation"]
    publish(asked, content)
    report, found = checked(asked)
    assert {member.fate for member in report.files} == {"fails"}
    assert problems(found) == ["damaged-file"]
    publish(asked, {**content, "_metadata": {**H200, "cudnn_version": "1"}})
    assert {member.fate for member in checked(asked)[0].files} == {"ignored"}


# Damaged files: never a traceback, never a changed file.


SMALL = {"_metadata": H200, "('op', 'R', ((1, 64), (8, 64)), (torch.bfloat16,))": ["R", 3, ["a", None, "b", "hot"]]}


def damaged(raw: bytes) -> st.SearchStrategy[bytes]:
    """Bytes cut, overwritten, inserted or repeated at random places."""

    def edit(edits: list[tuple[int, int, bytes]]) -> bytes:
        data = raw
        for at, length, patch in edits:
            place = at % (len(data) + 1)
            data = data[:place] + patch + data[place + length :]
        return data

    edits = st.tuples(st.integers(0, len(raw)), st.integers(0, 30), st.binary(max_size=6))
    return st.lists(edits, min_size=1, max_size=4).map(edit)


JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)
FILES = st.one_of(
    damaged(json.dumps(SMALL).encode()),
    st.dictionaries(
        st.sampled_from([*SMALL, "_records", "_generation", "_note", "(", "()"]), JSON_VALUES, max_size=4
    ).map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=40),
)


@settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=FILES, others=st.sampled_from(["same", "good", "absent"]))
def test_a_damaged_file_is_judged_and_left_alone(tmp_path: Path, raw: bytes, others: str) -> None:
    asked = question_for_fuzz(tmp_path)
    paths = publish(asked, raw if others == "same" else json.dumps(SMALL).encode())
    if others == "absent":
        paths[1].unlink()
    paths[0].write_bytes(raw)
    report, _ = checked(asked)
    assert paths[0].read_bytes() == raw
    fates = [member.fate for member in report.files]
    if others == "same":
        assert len(set(fates)) == 1
        assert fates[0] in ("loads", "ignored", "fails")
    assert "absent" in fates if others == "absent" else "absent" not in fates


_FUZZED: dict[Path, Any] = {}


def question_for_fuzz(root: Path) -> Any:
    if root not in _FUZZED:
        _FUZZED[root] = question(root, "q30-h200-tp2")
    return _FUZZED[root]


LOAD = """
import json, sys
from flashinfer.autotuner import AutoTuner
for path in sys.argv[1:]:
    try:
        print(AutoTuner.get().load_configs(path))
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.flashinfer
def test_flashinfer_raises_for_what_is_said_to_fail(tmp_path: Path) -> None:
    contents = {
        "empty": b"",
        "cut": json.dumps(SMALL).encode()[:99],
        "list": b"[]",
        "value": b'{"k": 3}',
        "note": b'{"_n": {}}',
    }
    paths = []
    for name, raw in contents.items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(raw)
    command = [sys.executable, "-c", LOAD, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split()[-5:] == ["JSONDecodeError", "JSONDecodeError", "TypeError", "TypeError", "KeyError"]
