"""The tables of a report as rows of text, which its page and its Markdown share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autotune_planner.cache.check import Served
from autotune_planner.cache.metadata import StampMatch, compare_stamp
from autotune_planner.report.check_view import rank_names
from autotune_planner.report.entry_text import gain_text, policy_text, printable, tactic_text
from autotune_planner.report.evidence import evidence_lines
from autotune_planner.report.plan_view import budget_rows, nothing_to_tune_reason
from autotune_planner.reporting import LayerReport, Pick, RankGroup, Report

NOT_MEASURED = "not measured"
SIMULATED_NOTE = "Simulated device: tactics, times and gains come from a cost model, not from a GPU"

_LEVELS = ("problem", "note")


@dataclass(frozen=True)
class Table:
    """Rows of equal length. ``right`` are the columns of figures."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()


@dataclass(frozen=True)
class HeatCell:
    """One bucket of one layer: ``warmth`` from 3 (twice as fast as the default or more) to 0 (slower), or the state
    where no time was measured."""

    text: str
    warmth: str


def facts(report: Report, group: RankGroup) -> Table:
    """What a reader wants to know first of a group of ranks."""
    counted = len(group.picks)
    rows = [
        ("ranks", rank_names(group.ranks)),
        ("directory", printable(str(report.checked.report.files[0].file.path.parent))),
        ("planned buckets in the cache", f"{counted - group.count('absent')} of {counted}{_kept(group)}"),
        ("gain over the default tactic", _gain(group)),
        ("quarantined tactics", str(len(report.quarantined))),
    ]
    if not counted:
        rows.insert(2, ("nothing to tune", nothing_to_tune_reason(report.plan)))
    if group.others:
        others = ", ".join(f"{count} of {printable(op)}" for op, count in group.others.items())
        rows.append(("entries beside the plan", others))
    return Table(("", ""), tuple(rows))


def _kept(group: RankGroup) -> str:
    count = group.count("default")
    return f"; {count} keep the default tactic" if count else ""


def _gain(group: RankGroup) -> str:
    if group.mean_gain is None:
        return f"{NOT_MEASURED}: no journal of a run in this environment lies beside the rank files"
    gains = group.gains
    return (
        f"{gain_text(group.mean_gain)} in the geometric mean of {len(gains)} buckets, "
        f"{gain_text(gains[0])} to {gain_text(gains[-1])}"
    )


def findings(report: Report) -> Table:
    """What ``check`` found, problems first."""
    found = sorted(report.checked.findings, key=lambda finding: _LEVELS.index(finding.level))
    return Table(
        ("level", "what", "try", "code"),
        tuple((each.level, printable(each.message), printable(each.hint or ""), each.code) for each in found),
    )


def sizes(served: Served) -> Table:
    """How many sizes M what serves, by op, layer and pass, with the share of the prefill tokens of the traffic."""
    rows = []
    for found, share in zip(served.coverage, served.shares, strict=True):
        demand = found.demand
        counts = [str(count) if count else "-" for count in found.sizes().values()]
        production = "-" if share is None else f"{share['tuned'] + share['clamped']:.1%}"
        name = (demand.custom_op, demand.layer, demand.phase.upper(), str(demand.largest))
        rows.append((*name, *counts, production))
    header = ("op", "layer", "pass", "M up to", "tuned", "clamped", "tuned at start", "fall back", "of prefill tokens")
    return Table(header, tuple(rows), tuple(range(3, 9)))


def gaps(served: Served) -> Table:
    """Sizes that no loaded entry serves, and why."""
    rows = [
        (
            f"{found.demand.custom_op} {found.demand.layer} {found.demand.phase.upper()}",
            str(gap.first) if gap.first == gap.last else f"{gap.first}..{gap.last}",
            "tuned at start" if gap.state == "at_start" else "fall back",
            printable(gap.reason),
        )
        for found in served.coverage
        for gap in found.gaps()
    ]
    return Table(("op, layer, pass", "M", "state", "why"), tuple(rows))


def heat_rows(group: RankGroup) -> Iterator[tuple[int, list[HeatCell]]]:
    """A row for each bucket, a cell for each layer: the gain, or only whether the cache has the bucket."""
    columns = [{pick.bucket: pick for pick in layer.picks} for layer in group.layers]
    for bucket in sorted({bucket for column in columns for bucket in column}):
        yield bucket, [_heat(column.get(bucket)) for column in columns]


def _heat(pick: Pick | None) -> HeatCell:
    if pick is None:
        return HeatCell("", "outside")
    if pick.gain is None:
        return HeatCell("default" if pick.state == "default" else pick.state, pick.state)
    gain = pick.gain
    return HeatCell(gain_text(gain), "3" if gain >= 2 else "2" if gain >= 1.2 else "1" if gain >= 1 else "0")


def picks(layer: LayerReport) -> Table:
    """Every planned bucket of a layer: its tactic, the times of it, of the default and at the roofline, the runner-up
    and how far it is behind, and how many of the measured tactics counted as equal to the best."""
    header = (
        "bucket", "tactic", "us", "default us", "gain", "runner-up", "behind", "spread", "equal",
        "roofline us", "of roofline", "policy",
    )  # fmt: skip
    return Table(header, tuple(map(_pick_row, layer.picks)), (0, 2, 3, 4, *range(6, 11)))


def _pick_row(pick: Pick) -> tuple[str, ...]:
    other = pick.runner_up
    return (
        str(pick.bucket),
        "not in the cache" if pick.state == "absent" else tactic_text(pick.tactic),
        _us(pick.time_us),
        _us(pick.fallback_us),
        gain_text(pick.gain),
        "-" if other is None else tactic_text(other.tactic),
        _percent(None if other is None else other.behind, 2),
        _percent(pick.spread, 2),
        "-" if pick.tied is None else f"{pick.tied} of {pick.candidates}",
        _us(pick.roofline_us),
        _percent(pick.roofline_share, 0),
        "-" if pick.state == "absent" else policy_text(pick.policy),
    )


def _us(time: float | None) -> str:
    return "-" if time is None else f"{time:.2f}"


def _percent(ratio: float | None, digits: int) -> str:
    return "-" if ratio is None else f"{ratio:.{digits}%}"


def quarantined(report: Report) -> Table:
    rows = [
        (item.custom_op, item.runner, tactic_text(item.tactic), str(item.bucket), item.shape, item.fault, item.reason)
        for item in report.quarantined
    ]
    header = ("op", "runner", "tactic", "met at M", "shape", "fault", "reason")
    return Table(header, tuple(tuple(map(printable, row)) for row in rows), (3,))


def environment(report: Report) -> Table:
    """FlashInfer's stamp of the server's environment, against that of each group's files."""
    question = report.checked.report.question
    stamped = [group for group in report.groups if group.metadata is not None]
    matches = [compare_stamp(group.metadata, question.environment) for group in stamped]
    header = ["field", question.environment_name]
    for group in stamped:
        header += [rank_names(group.ranks), "match"]
    rows = []
    for place, (field, value) in enumerate(question.environment.items()):
        row = [field, value]
        for match in matches:
            row += _saved(match, place)
        rows.append(tuple(printable(text) for text in row))
    return Table(tuple(map(printable, header)), tuple(rows))


def _saved(match: StampMatch, place: int) -> list[str]:
    found = match.fields[place]
    return ["missing" if found.saved is None else str(found.saved), found.match]


def budgets(report: Report) -> Table:
    return Table(("per rank", "value"), tuple(budget_rows(report.plan.resolved)))


def passes(report: Report) -> Table:
    """The passes that the server runs at start."""
    rows = []
    for decision in report.plan.resolved.passes:
        counts = (decision.batch_size, decision.tokens_per_request, decision.tokens_per_rank, decision.moe_rows)
        figures = ("-" if count is None else str(count) for count in counts)
        rows.append((decision.name.upper(), "yes" if decision.run else "no", *figures, decision.reason))
    header = ("pass", "runs", "requests", "tokens each", "tokens", "MoE rows", "reason")
    return Table(header, tuple(rows), (2, 3, 4, 5))


def notices(report: Report) -> Table:
    """The plan's own warnings, most severe first."""
    order = ("error", "warning", "info")
    found = sorted(report.plan.resolved.notices, key=lambda notice: order.index(notice.level))
    rows = [(each.level, printable(each.message), each.code) for each in found]
    rows += [("info", line, "evidence") for line in evidence_lines(report.plan.ops)]
    return Table(("level", "what", "code"), tuple(rows))


def derivation(report: Report) -> Table:
    """How each number came about, step by step."""
    rows = []
    for found in report.plan.resolved.derivations:
        steps = [f"{text} ({source})" if source else text for text, source in found.steps]
        value = f"{found.label} {found.value}" if found.label else found.value
        rows.append((found.field, printable(" -> ".join(steps)), printable(value)))
    return Table(("number", "from a flag or default over the server's rules", "value"), tuple(rows))


def files(report: Report) -> Table:
    """What becomes of each rank's file at start."""
    rows = [(member.file.path.name, member.fate, _held(member.file.content)) for member in report.checked.report.files]
    return Table(("file", "at start", "entries"), tuple(rows), (2,))


def _held(content: Any) -> str:
    return str(len(content.file.entries)) if content else "-"


def whose(groups: Sequence[Any], group: Any) -> str:
    """Names the ranks of a group where there are several groups."""
    return f" of {rank_names(group.ranks)}" if len(groups) > 1 else ""
