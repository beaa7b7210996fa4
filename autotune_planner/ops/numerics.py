"""What an op should have computed, in float32, and whether it did. Imports torch when called."""

from __future__ import annotations

from typing import Any

# Unit roundoff of the output's dtype, times what a long accumulation and one rounded intermediate may add to it.
_RELATIVE = {"bfloat16": 2**-8 * 4, "float16": 2**-11 * 4}


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
    square: a sum of many terms is as exact as its terms, not as itself.
    """
    import torch

    if not bool(torch.isfinite(output).all()):
        return f"{int((~torch.isfinite(output)).sum())} of {output.numel()} elements are not finite"
    relative = _RELATIVE[str(output.dtype).removeprefix("torch.")]
    scale = reference.square().mean().sqrt()
    excess = (output.float() - reference).abs() - relative * (reference.abs() + scale)
    worst = float(excess.max())
    if worst <= 0:
        return None
    wrong = int((excess > 0).sum())
    return f"{wrong} of {output.numel()} elements are off by more than {relative:.2g} of a float32 reference"
