"""What an op should have computed, in float32, and whether it did. Imports torch when called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from autotune_planner.ops.base import BoundCall

# Unit roundoff of the output's dtype, times what a long accumulation and one rounded intermediate add to it.
_RELATIVE = {"bfloat16": 2**-8 * 4, "float16": 2**-11 * 4}
_OUTLIERS = 1e-4  # share of elements that may be beyond that: the tail of a sum's rounding, met in 16 million elements
_FAR = 8  # times the tolerance, which no element may be beyond
EXPERTS_AT_ONCE = 8  # whose float32 copies exist at a time; with one at a time the GPU waits for the host
COMPARED_ROWS = 512  # of an output: of 8192 rows every sixteenth, so some of every tile


class Gate(NamedTuple):
    """What gpt-oss adds to a SwiGLU: biases (local experts, width), and scalars for every expert."""

    fc1_bias: Any
    fc2_bias: Any
    alpha: float
    beta: float
    limit: float


def gated_moe(
    x: Any, experts: Any, scales: Any, fc1: Any, fc2: Any, *, gate_of: Gate | None = None, between: Any = None
) -> Any:
    """SwiGLU MoE of the experts that this rank holds, (tokens, hidden) float32.

    ``fc1`` is (local experts, 2 * intermediate, hidden), its first half the linear part and its second the gate;
    ``fc2`` is (local experts, hidden, intermediate); both need no more than a shape and one matrix for an index.
    ``experts`` (tokens, top_k) are global ids of rank 0: ids at or above the local count belong to other ranks and add
    nothing. ``scales`` weigh each choice. ``between`` is the dtype that the kernel rounds the hidden activation to.
    """
    import torch

    local = fc1.shape[0]
    counts = torch.bincount(experts.flatten(), minlength=local)[:local].tolist()  # the one time that the host waits
    order = experts.flatten().argsort(stable=True)[: sum(counts)]  # routed rows, expert by expert
    tokens = order // experts.shape[1]
    inputs, outputs = x.float()[tokens].split(counts), []
    busy = [expert for expert in range(local) if counts[expert]]
    for start in range(0, len(busy), EXPERTS_AT_ONCE):
        group = busy[start : start + EXPERTS_AT_ONCE]
        rows = torch.nn.utils.rnn.pad_sequence([inputs[expert] for expert in group], batch_first=True)
        first = rows @ _stacked(fc1, group)
        if gate_of is None:
            linear, gate = first.chunk(2, dim=-1)
            hidden = torch.nn.functional.silu(gate) * linear
        else:
            linear, gate = (first + gate_of.fc1_bias[group].float()[:, None]).chunk(2, dim=-1)
            gate, linear = gate.clamp(max=gate_of.limit), linear.clamp(-gate_of.limit, gate_of.limit)
            hidden = gate * torch.sigmoid(gate_of.alpha * gate) * (linear + gate_of.beta)
        if between is not None:
            hidden = hidden.to(between).float()
        second = hidden @ _stacked(fc2, group)
        if gate_of is not None:
            second += gate_of.fc2_bias[group].float()[:, None]
        outputs += [second[place, : counts[expert]] for place, expert in enumerate(group)]
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    if outputs:
        out.index_add_(0, tokens, torch.cat(outputs) * scales.flatten()[order].float()[:, None])
    return out


def _stacked(weights: Any, group: Sequence[int]) -> Any:
    """The transposed matrices of some experts, (experts, columns, rows) float32; put together as bytes, as in
    ``rows_of``."""
    import torch

    matrices = [weights[expert] for expert in group]
    return torch.stack([one.view(torch.uint8) for one in matrices]).view(matrices[0].dtype).float().transpose(1, 2)


def e2m1(packed: Any) -> Any:
    """The FP4 numbers of packed bytes, (rows, columns / 2) -> (rows, columns) float32; the low half comes first."""
    import torch

    magnitudes = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    table = torch.tensor((*magnitudes, *(-one for one in magnitudes)), dtype=torch.float32, device=packed.device)
    halves = torch.stack((packed & 15, packed >> 4), dim=-1)
    return table[halves.long()].flatten(-2)


def problem_of(call: BoundCall) -> str | None:
    """What is wrong with a call's output; None where nothing is, or nobody can say more than that it is finite."""
    output = call()
    output = output.reshape(-1, output.shape[-1])
    problem = not_finite(output)
    if problem is not None or call.reference is None:
        return problem
    rows = compared_rows(output.shape[0], output.device)
    return disagreement(output[rows], call.reference(rows), call.tolerance)


def compared_rows(m: int, device: Any = None) -> Any:
    """Which of M = m rows are compared: all of them, or 512 evenly spread ones, the first and the last included."""
    import torch

    count = min(m, COMPARED_ROWS)
    return torch.arange(count, device=device) * (m - 1) // max(count - 1, 1)


def rows_of(x: Any, rows: Any) -> Any:
    """Those rows as float32. FP8 is indexed as bytes, since not every release of torch can index it on a GPU."""
    import torch

    if x.element_size() == 1:
        return x.view(torch.uint8)[rows].view(x.dtype).float()
    return x[rows].float()


def not_finite(output: Any) -> str | None:
    """How much of an output is not a number, as text; None where all of it is."""
    import torch

    wrong = int((~torch.isfinite(output)).sum())
    return f"{wrong} of {output.numel()} elements are not finite" if wrong else None


def disagreement(output: Any, reference: Any, tolerance: float = 1.0) -> str | None:
    """What is wrong with an output beside its float32 reference of the same shape; None where they agree.

    An element may differ by the dtype's roundoff, four times over, of its own size and of the reference's root mean
    square: a sum of many terms is as exact as its terms, not as itself. One in ten thousand may differ by more, but
    none by eight times as much: a tile, a row or an expert that is wrong is off by its whole size. ``tolerance``
    multiplies what is allowed.
    """
    if (broken := not_finite(output)) is not None:
        return broken
    if not_finite(reference) is not None:  # says nothing of the output
        return None
    scale = reference.square().mean().sqrt()
    if scale == 0:  # a rank none of whose experts is chosen
        wrong = int((output != 0).sum())
        return f"{wrong} of {output.numel()} elements are not zero, as a float32 reference is" if wrong else None
    relative = tolerance * _RELATIVE[str(output.dtype).removeprefix("torch.")]
    allowed = reference.abs().add_(scale).mul_(relative)
    ratio = (output.float() - reference).abs_().div_(allowed)
    beyond, worst = int((ratio > 1).sum()), float(ratio.max())
    if beyond <= _OUTLIERS * output.numel() and worst <= _FAR:
        return None
    return f"{beyond} of {output.numel()} elements are off by up to {worst * relative:.2g} of a float32 reference"
