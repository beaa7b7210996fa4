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
        """Off by 1 where an element may be off by 2^-6 of 0 and of the root mean square, 1.155, times 8: 0.14."""
        wrong = self.reference.clone()
        wrong[500] += 1
        assert disagreement(wrong.bfloat16(), self.reference).startswith("1 of 1000 elements are off")

    def test_the_tail_of_rounding_agrees(self):
        """One in 10000 may be off by three times the tolerance: 3 x 2^-6 x (2 + 1.155) = 0.148; two may not."""
        reference = torch.full((10000,), 2.0)
        wrong = reference.clone()
        wrong[17] += 0.14
        assert disagreement(wrong.bfloat16(), reference) is None
        wrong[18] += 0.14
        assert disagreement(wrong.bfloat16(), reference).startswith("2 of 10000 elements are off")

    def test_a_wrong_scale_does_not(self):
        assert "are off" in disagreement((self.reference * 1.1).bfloat16(), self.reference)

    def test_one_row_left_out_does_not(self):
        """A row in 8192 is 1.2 in 10000, and it is off by its whole size."""
        reference = torch.randn((8192, 16), generator=torch.Generator().manual_seed(0))
        wrong = reference.clone()
        wrong[77] = 0
        assert "are off" in disagreement(wrong.bfloat16(), reference)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_not_finite(self, value):
        wrong = self.reference.clone()
        wrong[3] = value
        assert disagreement(wrong.bfloat16(), self.reference) == "1 of 1000 elements are not finite"


def test_a_long_accumulation_in_bfloat16_steps_agrees():
    """A MoE as a kernel computes it: bf16 inputs and weights, float32 sums, a bf16 intermediate, a bf16 output."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape, std=1.0):
        return (torch.randn(shape, generator=generator) * std).bfloat16()

    x, fc1, fc2 = random(256, 512), random(4, 512, 512, std=0.05), random(4, 512, 256, std=0.05)
    experts = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(256)])
    scales = torch.full((256, 2), 0.5)
    out = torch.zeros((256, 512))
    for token in range(256):
        for choice in range(2):
            expert = experts[token, choice]
            linear, gate = (fc1[expert].float() @ x[token].float()).chunk(2)
            hidden = (torch.nn.functional.silu(gate) * linear).bfloat16()
            out[token] += 0.5 * (fc2[expert].float() @ hidden.float())
    assert disagreement(out.bfloat16(), gated_moe(x, experts, scales, fc1, fc2)) is None


def test_a_rank_none_of_whose_experts_is_chosen_gives_zero():
    zero = torch.zeros(2, 8)
    assert disagreement(zero.bfloat16(), zero) is None
    assert disagreement(torch.eye(2, 8).bfloat16(), zero) == "2 of 16 elements are not zero, as a float32 reference is"


def test_a_reference_that_is_not_finite_blames_nobody():
    assert disagreement(torch.ones(1, 2, dtype=torch.bfloat16), torch.tensor([[1.0, float("nan")]])) is None


@pytest.mark.parametrize("seed", range(20))
def test_one_token_on_one_of_eight_ranks(seed):
    """Experts 0 to 15 of 128 are here: every other token has none of its eight among them."""
    torch.manual_seed(seed)
    x, fc1, fc2 = torch.randn(1, 32), torch.randn(16, 64, 32) * 0.1, torch.randn(16, 32, 32) * 0.1
    experts, scales = torch.randperm(128)[None, :8], torch.full((1, 8), 0.125)
    reference = gated_moe(x, experts, scales, fc1, fc2)
    assert bool((reference == 0).all()) == bool((experts >= 16).all())
    assert disagreement(reference.bfloat16(), reference) is None
