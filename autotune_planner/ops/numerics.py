"""What an op should have computed, in float32, and whether it did. Imports torch when called."""

from __future__ import annotations

from typing import Any

# Unit roundoff of the output's dtype, times what a long accumulation and one rounded intermediate add to it.
_RELATIVE = {"bfloat16": 2**-8 * 4, "float16": 2**-11 * 4}
_OUTLIERS = 1e-4  # share of elements that may be beyond that: the tail of a sum's rounding, met in 16 million elements
_FAR = 8  # times the tolerance, which no element may be beyond


def gated_moe(x: Any, experts: Any, scales: Any, fc1: Any, fc2: Any) -> Any:
    """SwiGLU MoE of the experts that this rank holds, (tokens, hidden) float32.

    ``fc1`` is (local experts, 2 * intermediate, hidden), its first half the linear part and its second the gate;
    ``fc2`` is (local experts, hidden, intermediate). ``experts`` (tokens, top_k) are global ids of rank 0: ids at or
    above the local count belong to other ranks and add nothing. ``scales`` weigh each choice.
    """
    import torch

    inputs, out = x.float(), torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in range(fc1.shape[0]):
        rows, choice = (experts == expert).nonzero(as_tuple=True)
        if rows.numel() == 0:
            continue
        linear, gate = (inputs[rows] @ fc1[expert].float().T).chunk(2, dim=1)
        hidden = torch.nn.functional.silu(gate) * linear
        out.index_add_(0, rows, (hidden @ fc2[expert].float().T) * scales[rows, choice].float()[:, None])
    return out


def disagreement(output: Any, reference: Any) -> str | None:
    """What is wrong with an output beside its float32 reference of the same shape; None where they agree.

    An element may differ by the dtype's roundoff, four times over, of its own size and of the reference's root mean
    square: a sum of many terms is as exact as its terms, not as itself. One in ten thousand may differ by more, but
    none by eight times as much: a tile, a row or an expert that is wrong is off by its whole size.
    """
    import torch

    if not bool(torch.isfinite(output).all()):
        return f"{int((~torch.isfinite(output)).sum())} of {output.numel()} elements are not finite"
    relative = _RELATIVE[str(output.dtype).removeprefix("torch.")]
    allowed = reference.abs().add_(reference.square().mean().sqrt()).mul_(relative)
    ratio = (output.float() - reference).abs_().div_(allowed)
    beyond, worst = int((ratio > 1).sum()), float(ratio.max())
    if beyond <= _OUTLIERS * output.numel() and worst <= _FAR:
        return None
    return f"{beyond} of {output.numel()} elements are off by up to {worst * relative:.2g} of a float32 reference"
