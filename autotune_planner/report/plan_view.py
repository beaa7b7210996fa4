"""``compute`` for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleRenderable, Group
from rich.table import Table
from rich.text import Text

from autotune_planner.cache import sglang_layout
from autotune_planner.engines.resolved import CachePlace, Notice, PassDecision, Resolved, UnseenOp
from autotune_planner.ops.base import OpCall
from autotune_planner.plan.modules import build_seconds, is_estimate, modules_of
from autotune_planner.plan.plan import Plan, PlannedOp
from autotune_planner.report.evidence import evidence_lines
from autotune_planner.report.memory_view import memory_view

if TYPE_CHECKING:
    from autotune_planner.tuning.keys import PlannedKey

_LEVEL_STYLE = {"info": "cyan", "warning": "yellow", "error": "red"}


def plan_view(plan: Plan, place: CachePlace, *, keys: Sequence[PlannedKey] | None, explain: bool) -> Group:
    """Budgets, passes with reasons, buckets, and the files that every rank of the server will open."""
    resolved = plan.resolved
    parts: list[ConsoleRenderable] = [Text(headline(resolved), style="bold"), Text()]
    if resolved.gpu.vendor != "amd":  # judged for tiles only
        parts += [_budgets(resolved), Text(), _passes(resolved.passes), Text()]
    if plan.tiles is not None:
        from autotune_planner.report.tiles_view import tiles_view  # few deployments have traffic

        parts += [tiles_view(plan.tiles), Text()]
    if plan.ops:
        parts += [
            _ops(plan.ops),
            *_untuned_by_server(plan.ops),
            *map(Text, evidence_lines(plan.ops)),
            *_modules(plan),
            Text(),
        ]
        parts += [_not_tuned(resolved.unseen_ops), Text(), _cache_files(place)]
    else:
        parts.append(Text(f"Nothing to tune: {nothing_to_tune_reason(plan)}"))
        if resolved.unseen_ops:
            parts += [Text(), _not_tuned(resolved.unseen_ops)]
    if resolved.gpu.vendor != "amd":
        parts += memory_view(plan)
    if explain:
        parts += [Text(), *_derivations(resolved)]
    if keys is not None:
        parts += [Text(), *_keys(keys)]
    return Group(*parts)


def nothing_to_tune_reason(plan: Plan) -> str:
    """Why a plan has no work units."""
    said = ("shapes-do-not-divide", "op-not-planned")
    errors = [notice.message for notice in plan.resolved.notices if notice.code in said]
    reason = plan.resolved.no_autotune_reason or next(iter(errors), None)
    return reason or "the server would autotune, but this deployment reaches no op that its tuner can tune"


def print_notices(console: Console, notices: Iterable[Notice]) -> None:
    """Warnings, one paragraph each, most severe first."""
    order = {"error": 0, "warning": 1, "info": 2}
    for notice in sorted(notices, key=lambda notice: order[notice.level]):
        style = _LEVEL_STYLE[notice.level]
        console.print(Text.assemble((f"{notice.level}: ", style), notice.message, (f" [{notice.code}]", "dim")))


def headline(resolved: Resolved) -> str:
    """Model, GPU and server in one line."""
    release = resolved.release
    return (
        f"{resolved.model_path} on {resolved.gpu.name}, {release.name} {release.version} "
        f"(FlashInfer {release.flashinfer_version})"
    )


def budget_rows(resolved: Resolved) -> list[tuple[str, str]]:
    """The sizes that a rank works with, by name."""
    arguments, runtime = resolved.arguments, resolved.runtime
    rows: list[tuple[str, object]] = [
        ("tensor / attention-DP / expert / pipeline parallel", _parallel(resolved)),
        ("chunked_prefill_size (per rank)", arguments.chunked_prefill_size),
        ("max_prefill_tokens", arguments.max_prefill_tokens),
        ("EXTEND budget (tokens per rank)", arguments.autotune_extend_ceiling),
        ("running requests per DP worker", runtime.max_running_requests_per_dp_worker),
        (
            "DECODE dummy (requests x tokens)",
            f"{runtime.decode_autotune_bs} x {runtime.decode_autotune_tokens_per_req}",
        ),
        ("MoE runner / all-to-all", f"{arguments.moe_runner_backend} / {arguments.moe_a2a_backend}"),
        ("attention backend, page size", f"{arguments.attention_backend}, {arguments.page_size}"),
        ("quantization", arguments.quantization or "none"),
    ]
    return [(name, str(value)) for name, value in rows]


def _budgets(resolved: Resolved) -> Table:
    table = _table("Budgets")
    table.add_column("per rank")
    table.add_column("value")
    for row in budget_rows(resolved):
        table.add_row(*row)
    return table


def _parallel(resolved: Resolved) -> str:
    arguments = resolved.arguments
    return f"{arguments.tp_size} / {arguments.attn_dp_size} / {arguments.ep_size} / {arguments.pp_size}"


def _passes(passes: Sequence[PassDecision]) -> Table:
    table = _table("Passes that the server runs at start")
    for name in ("pass", "runs", "requests", "tokens each", "tokens", "MoE rows"):
        table.add_column(name, justify="left" if name in ("pass", "runs") else "right")
    table.add_column("reason", overflow="fold")
    for decision in passes:
        sizes = (decision.batch_size, decision.tokens_per_request, decision.tokens_per_rank, decision.moe_rows)
        table.add_row(
            decision.name.upper(),
            "yes" if decision.run else "no",
            *("-" if size is None else str(size) for size in sizes),
            decision.reason,
        )
    return table


def _ops(ops: Sequence[PlannedOp]) -> Table:
    """One row for each op and layer: its phases share buckets."""
    table = _table("Ops and buckets that are tuned here")
    for name in ("op", "layer"):
        table.add_column(name, no_wrap=True)
    table.add_column("shape", overflow="fold", min_width=14)
    for name in ("buckets", "up to"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("DECODE", "EXTEND"):
        table.add_column(name, overflow="fold", min_width=14)
    rows: dict[tuple[str, str, OpCall], dict[str, PlannedOp]] = {}
    for op in ops:
        rows.setdefault((op.custom_op, op.layer, op.call), {})[op.phase] = op
    for (custom_op, layer, call), phases in rows.items():
        buckets = sorted({bucket for op in phases.values() for bucket in op.buckets})
        table.add_row(
            custom_op.removeprefix("flashinfer::"),
            layer,
            call.label,
            str(len(buckets)),
            str(buckets[-1]),
            *(_reached(phases.get(phase)) for phase in ("decode", "extend")),
        )
    return table


def _reached(op: PlannedOp | None) -> str:
    """Sizes of one phase, and what reaches them."""
    return "-" if op is None else f"M 1..{op.covers}: {op.reason}"


def _untuned_by_server(ops: Sequence[PlannedOp]) -> Iterator[Text]:
    """Why sizes are planned that the server leaves untuned, the ops of each reason together."""
    layers: dict[str, list[str]] = {}
    for op in ops:
        if op.beyond is not None:
            layers.setdefault(op.beyond, []).append(op.layer)
    for reason, names in layers.items():
        yield Text(f"Beyond the server, {', '.join(dict.fromkeys(names))}: {reason}")


def _modules(plan: Plan) -> Iterator[Text]:
    """Compiled modules, with the time of a cold build on one core."""
    for module in modules_of(plan):
        seconds = build_seconds(module.name, 1)
        time = "a time that nobody measured"
        if seconds is not None:
            time = f"{'an estimated ' if is_estimate(module.name) else ''}{seconds / 60:.0f} core-minutes"
        yield Text(f"Compiled module {module.name}: {module.objects} objects, {time} where it is not there yet")


def _not_tuned(ops: Sequence[UnseenOp]) -> Table:
    table = _table("Not tuned ahead of time")
    for name in ("layer", "what"):
        table.add_column(name, no_wrap=True)
    table.add_column("why", overflow="fold")
    for op in ops:
        table.add_row(op.layer, op.what, op.reason)
    return table


def _cache_files(place: CachePlace) -> Text:
    names = list(dict.fromkeys(sglang_layout.rank_file_name(rank) for rank in place.ranks))
    shown = names if len(names) <= 3 else [names[0], "..", names[-1]]
    return Text.assemble(
        ("Cache that the server opens: ", "bold"),
        f"{sglang_layout.cache_directory(place)}\n",
        f"  {len(names)} rank files: {' '.join(shown)}" if len(names) > 1 else f"  {names[0]}",
    )


def _derivations(resolved: Resolved) -> Iterator[Text]:
    yield Text("How the numbers came about", style="bold")
    for derivation in resolved.derivations:
        steps = " -> ".join(f"{text} ({source})" if source else text for text, source in derivation.steps)
        value = f"{derivation.label} {derivation.value}" if derivation.label else derivation.value
        yield Text(f"  {derivation.field}: {steps} -> {value}")


def _keys(keys: Sequence[PlannedKey]) -> Iterator[Text]:
    by_server = sum(key.tuned_by_server for key in keys)
    yield Text(f"{len(keys)} cache keys ({by_server} that the server would tune itself, marked *)", style="bold")
    for key in keys:
        if key.tuned_by_server:
            yield Text(f"* {key.key}")
    for reason in dict.fromkeys(key.beyond for key in keys if not key.tuned_by_server):
        yield Text(f"Beyond the server: {reason}")
        yield from (Text(f"  {key.key}") for key in keys if not key.tuned_by_server and key.beyond == reason)


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
