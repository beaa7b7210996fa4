"""float32 references of quantized formats, by hand and against FlashInfer-free arithmetic on the CPU."""

import math

import pytest

torch = pytest.importorskip("torch")

from autotune_planner.ops.base import BoundCall  # noqa: E402
from autotune_planner.ops.cutlass_fused_moe import CutlassFusedMoe, _Decoded  # noqa: E402
from autotune_planner.ops.mm_fp4 import CuteDslMmFp4  # noqa: E402
from autotune_planner.ops.mm_mxfp8 import CuteDslMmMxfp8  # noqa: E402
from autotune_planner.ops.numerics import (  # noqa: E402
    Gate,
    compared_rows,
    disagreement,
    e2m1,
    gated_moe,
    not_finite,
    problem_of,
    rows_of,
)

pytestmark = pytest.mark.flashinfer


def test_every_fp4_number():
    """E2M1: 1 sign, 2 exponent and 1 mantissa bits with a bias of 1; the low half of a byte comes first."""
    packed = torch.tensor([[low | (low + 1) << 4 for low in range(0, 16, 2)]], dtype=torch.uint8)
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert e2m1(packed).tolist() == [positive + [-one for one in positive]]


def test_gate_of_gpt_oss_by_hand():
    """Up 3 + bias 5 is clamped to 7, gate 9 to 7: 7 * sigmoid(1.702 * 7) * (7 + 1), then fc2 2 and its bias 0.5."""
    gate = Gate(torch.tensor([[5.0, 0.0]]), torch.tensor([[0.5]]), alpha=1.702, beta=1.0, limit=7.0)
    x, fc1, fc2 = torch.tensor([[1.0]]), torch.tensor([[[3.0], [9.0]]]), torch.tensor([[[2.0]]])
    found = gated_moe(x, torch.tensor([[0]]), torch.tensor([[0.25]]), fc1, fc2, gate_of=gate)
    hidden = 7 / (1 + math.exp(-1.702 * 7)) * 8
    assert found.item() == pytest.approx(0.25 * (2 * hidden + 0.5))


def test_an_activation_rounded_in_between():
    """silu(2) x 1 = 1.7616, in FP8 E4M3 1.75: the spacing between 1 and 2 is 1 / 8."""
    x, fc1, fc2 = torch.tensor([[1.0]]), torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[1.0]]])
    arguments = (x, torch.tensor([[0]]), torch.tensor([[1.0]]), fc1, fc2)
    assert gated_moe(*arguments).item() == pytest.approx(2 / (1 + math.exp(-2)))
    assert gated_moe(*arguments, between=torch.float8_e4m3fn).item() == 1.75


@pytest.mark.parametrize("quant", ["bf16", "fp8"])
def test_moe_of_quantized_weights(quant):
    """A MoE as a kernel runs it: float32 sums, the hidden activation rounded to bf16 and then to FP8."""
    call = CutlassFusedMoe(8, 8, 256, 128, 2, 1, 1, 64, quant=quant)
    bound = call.prepare("cpu")(64)
    reference = bound.reference(torch.arange(64))
    assert reference.shape == (64, 256)
    torch.testing.assert_close(bound.reference(torch.tensor([3, 60])), reference[[3, 60]])
    assert bool(torch.isfinite(reference).all())
    assert float(reference.abs().mean()) > 0
    assert disagreement(reference.bfloat16(), reference, bound.tolerance) is None
    assert bound.tolerance == (1.0 if quant == "bf16" else 8.0)


def test_linears_of_quantized_weights():
    for call, m in ((CuteDslMmFp4(n=64, k=128), 8), (CuteDslMmMxfp8(n=64, k=128), 8)):
        reference = call.prepare("cpu")(m).reference(torch.arange(m))
        assert tuple(reference.shape) == call.output(m).shape
        assert bool(torch.isfinite(reference).all())


def test_without_a_reference_only_finiteness_counts():
    good, bad = torch.ones(1, 4), torch.tensor([[1.0, math.nan]])
    assert problem_of(BoundCall(lambda: good, None)) is None
    assert problem_of(BoundCall(lambda: bad, None)) == "1 of 2 elements are not finite" == not_finite(bad)


def test_mxfp4_experts_repeat_and_are_decoded_as_packed():
    """Expert 8 is the second of seven patterns; the numbers of its first byte are 2^-6 times its two halves'."""
    call = CutlassFusedMoe(16, 16, 128, 128, 2, 1, 1, 64, quant="w4a16_mxfp4")
    decoded = _Decoded(call, "fc2_expert_weights", "cpu")
    assert decoded[8] is decoded[1]
    assert decoded[8].shape == (128, 128)
    assert not torch.equal(decoded[1], decoded[2])
    byte = int(call._packed("fc2_expert_weights", 1, "cpu")[0, 0])
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    numbers = [(-1) ** (half >> 3) * magnitudes[half & 7] / 64 for half in (byte & 15, byte >> 4)]
    assert decoded[1][0, :2].tolist() == numbers


def test_mxfp4_weights_are_laid_out_expert_by_expert(monkeypatch):
    """FlashInfer's layout needs a GPU: bytes in reverse stand in for it. 16 experts: patterns 0 to 6 twice, 0 and 1."""
    import flashinfer.fused_moe as fused_moe

    monkeypatch.setattr(
        fused_moe, "interleave_moe_weights_for_sm90_mixed_gemm", lambda weight, kind: weight.flip(-1), raising=True
    )
    call = CutlassFusedMoe(16, 16, 256, 128, 2, 1, 1, 64, quant="w4a16_mxfp4", biased=True)
    tensors = {spec.name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in call.weights()}
    call._fill(tensors)
    for name in ("fc1_expert_weights", "fc2_expert_weights"):
        for expert in range(16):
            assert torch.equal(tensors[name][expert], call._packed(name, expert % 7, "cpu").flip(-1))
    reference = call.prepare("cpu")(8).reference(torch.arange(8))
    assert bool(torch.isfinite(reference).all())
    assert float(reference.abs().mean()) > 0


def test_rows_of_any_dtype():
    x = torch.tensor([[1.0, -2.0], [0.5, 4.0], [8.0, 0.0]])  # all of them FP8 numbers
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
        assert rows_of(x.to(dtype), torch.tensor([2, 0])).tolist() == [[8.0, 0.0], [1.0, -2.0]]


def test_a_wrong_row_is_found_among_many():
    """512 of 8192 rows are compared, every sixteenth: a wrong tile of 64 rows has four of them."""
    rows = compared_rows(8192)
    assert (len(rows), int(rows[0]), int(rows[-1]), int(rows.diff().max())) == (512, 0, 8191, 17)
    assert compared_rows(5).tolist() == [0, 1, 2, 3, 4]
    assert compared_rows(1).tolist() == [0]
    right = torch.ones(8192, 8)
    wrong = right.clone()
    wrong[640:704] = 2.0
    assert problem_of(BoundCall(lambda: right.bfloat16(), lambda rows: right[rows])) is None
    assert "32 of 4096 elements are off" in problem_of(BoundCall(lambda: wrong.bfloat16(), lambda rows: right[rows]))


def test_a_tolerance_multiplies_what_is_allowed():
    """Off by 0.1 where the output's dtype allows 2^-6 x (2 + 2) = 0.0625, and twice as much 0.125."""
    reference = torch.full((4,), 2.0)
    wrong = (reference + 0.1).bfloat16()
    assert disagreement(wrong, reference) is not None
    assert disagreement(wrong, reference, 2.0) is None
