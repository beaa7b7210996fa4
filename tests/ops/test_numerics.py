"""The float32 reference against arithmetic by hand, and what counts as agreement."""

import math

import pytest

torch = pytest.importorskip("torch")

from autotune_planner.ops.numerics import disagreement, gated_moe  # noqa: E402

pytestmark = pytest.mark.flashinfer


def test_one_token_by_hand():
    """x = [1, 2]; linear row [1, 0] -> 1; gate row [0, 1] -> 2; silu(2) = 2 / (1 + e^-2) = 1.7616; fc2 = [3, -1]."""
    x = torch.tensor([[1.0, 2.0]])
    fc1 = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    fc2 = torch.tensor([[[3.0], [-1.0]]])
    found = gated_moe(x, torch.tensor([[0]]), torch.tensor([[0.5]]), fc1, fc2)
    hidden = 1.0 * 2.0 / (1 + math.exp(-2.0))
    assert found.tolist() == [pytest.approx([0.5 * 3 * hidden, -0.5 * hidden])]


def test_every_choice_is_summed_and_other_ranks_experts_add_nothing():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((3, 4), generator=generator)
    fc1, fc2 = torch.randn((2, 6, 4), generator=generator), torch.randn((2, 4, 3), generator=generator)
    experts = torch.tensor([[0, 1], [1, 5], [6, 7]])
    scales = torch.tensor([[0.25, 0.75], [0.5, 0.5], [0.5, 0.5]])

    def one(token, expert):
        linear, gate = fc1[expert, :3] @ x[token], fc1[expert, 3:] @ x[token]
        return fc2[expert] @ (torch.nn.functional.silu(gate) * linear)

    found = gated_moe(x, experts, scales, fc1, fc2)
    torch.testing.assert_close(found[0], 0.25 * one(0, 0) + 0.75 * one(0, 1))
    torch.testing.assert_close(found[1], 0.5 * one(1, 1))
    assert found[2].tolist() == [0.0] * 4


class TestAgreement:
    reference = torch.linspace(-2, 2, 1000)

    def test_rounding_agrees(self):
        assert disagreement(self.reference.bfloat16(), self.reference) is None
        assert disagreement(self.reference.half(), self.reference) is None

    def test_a_wrong_element_does_not(self):
        wrong = self.reference.clone()
        wrong[500] += 0.1
        assert disagreement(wrong.bfloat16(), self.reference).startswith("1 of 1000 elements are off")

    def test_a_wrong_scale_does_not(self):
        assert "are off" in disagreement((self.reference * 1.1).bfloat16(), self.reference)

    def test_rows_left_out_do_not(self):
        wrong = self.reference.clone()
        wrong[:100] = 0
        assert "are off" in disagreement(wrong.bfloat16(), self.reference)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_not_finite(self, value):
        wrong = self.reference.clone()
        wrong[3] = value
        assert disagreement(wrong.bfloat16(), self.reference) == "1 of 1000 elements are not finite"
