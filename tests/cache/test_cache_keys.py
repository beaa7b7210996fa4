"""Key texts against Python's own ``str(tuple)``, and the exact keys of real servers and real H200 files."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune_planner.cache.keys import CacheKey, Opaque, parse_key
from autotune_planner.errors import CacheFileError, ExitCode

DATA = Path(__file__).parents[1] / "data"
MOE_KEY = (
    "('trtllm::fused_moe::gemm1', 'MoERunner', ((8192, 1024), (8, 1024, 1024), (0,), (8, 1024, 512), (0,)), "
    "(torch.bfloat16, torch.bfloat16, torch.bfloat16, 4, 2, 2, 1, False, False, False, False, False, False, True, 3, "
    "False, True))"
)


def server_keys() -> list[str]:
    lines = (DATA / "truth" / "keys-sglang-0.5.23.jsonl").read_text().splitlines()
    return sorted({key for line in lines for key in json.loads(line).get("keys") or ()})


def file_keys() -> list[str]:
    files = sorted((DATA / "h200").glob("*.json"))
    return sorted({key for file in files for key in json.loads(file.read_text()) if not key.startswith("_")})


class Value:
    """Stands for an object whose repr is no literal, as torch's dtypes and enums are."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def plain(value: Any) -> Any:
    """Opaque values of either kind as their text, so that parsed and written values compare."""
    if isinstance(value, Value | Opaque):
        return ("opaque", repr(value))
    if isinstance(value, tuple | list):
        return type(value)(map(plain, value))
    return value


def test_a_real_key_is_taken_apart() -> None:
    key = parse_key(MOE_KEY)
    assert key.custom_op == "trtllm::fused_moe::gemm1"
    assert key.runner == "MoERunner"
    assert key.profile == ((8192, 1024), (8, 1024, 1024), (0,), (8, 1024, 512), (0,))
    bf16 = Opaque("torch.bfloat16")
    flags = (False, False, False, False, False, False, True, 3, False, True)
    assert key.extras == (bf16, bf16, bf16, 4, 2, 2, 1, *flags)
    assert key.bucket == 8192
    assert str(key) == MOE_KEY


@pytest.mark.parametrize("source", [server_keys, file_keys])
def test_every_recorded_key_prints_back_identically(source: Any) -> None:
    keys = source()
    assert len(keys) > 50
    for text in keys:
        key = parse_key(text)
        assert str(key) == text
        assert all(isinstance(dim, int) for shape in key.profile for dim in shape)
        assert key.bucket >= 1


@pytest.mark.parametrize(
    ("text", "bucket"),
    [
        ("('fp8_gemm', 'R', ((1, 512, 4096), (1, 4096, 14336), (), (), (1, -1, 14336), (-1,)), ())", 512),
        ("('fp8_gemm', 'R', ((512, 4096), (4096, 14336)), ())", 512),
        ("('trtllm_batch_decode_mla', 'R', ((64, 1, 128, 576), (64, 33)), ())", 64),
        ("('mxfp8_gemm', 'R', ((256, 1024), (1024, 2048), (-1,)), ('torch.bfloat16', True))", 256),
        ("('op', 'R', ((),), ())", 0),
        ("('op', 'R', (), ())", 0),
    ],
)
def test_bucket_is_the_token_dimension(text: str, bucket: int) -> None:
    assert parse_key(text).bucket == bucket


@pytest.mark.parametrize(
    "extras",
    [
        None,
        (),
        (None, True, False, -1, 0, 1.5, -2.5e-07, 1e16, float("inf"), float("-inf")),
        ("torch.bfloat16", "it's, (quoted)", 'say "x"', "both ' and \"", "back\\slash\n", "))", "((1,),)"),
        (Value("torch.bfloat16"), Value("<ActivationType.Swiglu: 3>"), Value("<E.A: '>, ('>")),
        (((1, (2, 3)), "a"), (("x",),), Value("[1, 'a]']"), Value("{'a': (1, 2)}"), Value("frozenset({1})")),
        (Value("torch.Size([8, 64])"), Value("QuantFormat.NVFP4"), Value("Config(name='a)', n=(1, 2))")),
    ],
    ids=repr,
)
def test_extras_of_every_kind(extras: tuple[Any, ...] | None) -> None:
    fields = ("demo::op", "Runner", ((64,),))
    text = str(fields if extras is None else (*fields, extras))
    key = parse_key(text)
    assert plain(key.extras) == plain(extras)
    assert str(key) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not a tuple",
        "('op', 'R')",
        "('op', 'R', ((1, 2), (3,)), ()",
        "('op', 'R', ((1, 2), (3)), ())",
        "('op', 'R', ((1,2), (3,)), ())",
        "('op', 'R', ((1, 2), (3,)), (1,2))",
        "('op', 'R', ((1, 2), (3,)), (torch.bfloat16 4,))",
        "('op', 'R', ((1, 2), (3,)), (1, 2)))",
        "('op', 'R', ((1, 2), (3,)), ([1, 2),))",
        "('op', 'R', ((1, 2), (3,)), (<Enum.A: 3,))",
        "('op', 'R', ((1, 2), (3,)), ('open, 3))",
        "('op', 'R', ((1, -), (3,)), ())",
        "('op', 'R', ((1, 2), (3,)), (), ())",
        "('op', 'R', " + "(" * 50_000,
        "('op', 'R', ((1,),), " + "(" * 50_000 + ")" * 50_000 + ")",
        MOE_KEY[:-1],
        MOE_KEY[1:],
        MOE_KEY + " ",
    ],
)
def test_a_damaged_key_is_named(text: str) -> None:
    with pytest.raises(CacheFileError) as caught:
        parse_key(text)
    assert text[:160] in caught.value.message
    assert caught.value.exit_code == ExitCode.DIFFERENCE
    assert caught.value.hint


names = st.text(min_size=1, max_size=20)
profiles = st.lists(
    st.lists(st.integers(-1, 1 << 40), max_size=4).map(tuple),
    max_size=6,
).map(tuple)
opaque = st.sampled_from(
    [Value("torch.bfloat16"), Value("torch.float8_e4m3fn"), Value("<Kind.A: 3>"), Value("torch.Size([1, 2])")]
)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=12), opaque)
extras = st.one_of(
    st.none(),
    st.lists(st.recursive(scalars, lambda value: st.lists(value, max_size=3).map(tuple)), max_size=6).map(tuple),
)


@given(names, names, profiles, extras)
@settings(max_examples=400, deadline=None)
def test_any_key_round_trips(op: str, runner: str, profile: Any, extras: tuple[Any, ...] | None) -> None:
    fields = (op, runner, profile) if extras is None else (op, runner, profile, extras)
    text = str(fields)
    key = parse_key(text)
    assert (key.custom_op, key.runner, key.profile) == (op, runner, profile)
    assert plain(key.extras) == plain(extras)
    assert str(key) == text


@given(st.sampled_from([MOE_KEY, file_keys()[0]]), st.integers(0, 300), st.text(max_size=3))
@settings(max_examples=300, deadline=None)
def test_a_cut_or_changed_key_never_parses_to_another_text(text: str, at: int, replacement: str) -> None:
    damaged = text[:at] + replacement + text[at + 1 :]
    with contextlib.suppress(CacheFileError):
        assert str(parse_key(damaged)) == damaged


def test_a_hundred_thousand_keys_take_about_a_second() -> None:
    texts = [MOE_KEY.replace("8192, 1024", f"{m}, {1024 + n}", 1) for m in range(1, 1001) for n in range(100)]
    start = time.perf_counter()
    keys = [parse_key(text) for text in texts]
    assert time.perf_counter() - start < 5  # about one second; the slack is for a loaded machine
    assert keys[-1] == CacheKey(keys[0].custom_op, "MoERunner", ((1000, 1123), *keys[0].profile[1:]), keys[0].extras)
