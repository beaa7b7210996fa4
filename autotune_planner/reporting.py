"""``report`` as a function: a plan, what its server makes of its cache, and the journal become one value to show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Literal

from autotune_planner import profiles
from autotune_planner.cache import sglang_layout
from autotune_planner.cache.check import FileReport
from autotune_planner.cache.coverage import Demand
from autotune_planner.cache.timings import QUARANTINE, Timings, read_timings
from autotune_planner.cache.v1 import Entry
from autotune_planner.checking import Checked
from autotune_planner.engines.resolved import Rank
from autotune_planner.errors import CacheFileError
from autotune_planner.plan.forecast import launch_seconds
from autotune_planner.plan.plan import Plan, PlannedOp
from autotune_planner.tuning.devices import SIMULATED
from autotune_planner.tuning.quarantine import Quarantine, Quarantined

State = Literal["tuned", "default", "absent"]


@dataclass(frozen=True)
class RunnerUp:
    """The fastest tactic beside the pick. ``behind`` is its time over the pick's, less one; below 0 where the two
    counted as equal and the order of FlashInfer decided."""

    tactic: Any
    time_us: float
    behind: float


@dataclass(frozen=True)
class Pick:
    """What a file holds for one planned bucket (tokens), and what the journal beside it measured.

    Times are medians of one launch of the custom op in microseconds, None where they were not measured; ``roofline_us``
    is the least that the GPU's data sheet allows, None for a GPU without a profile. ``candidates``, ``tied`` and
    ``spread`` say how many tactics were measured, how many counted as equal to the best, and the standard deviation of
    a final round as a ratio.
    """

    bucket: int
    key: str | None
    state: State
    runner: str | None
    tactic: Any
    policy: tuple[Any, ...] | None
    time_us: float | None
    fallback_us: float | None
    roofline_us: float | None
    runner_up: RunnerUp | None
    candidates: int | None
    tied: int | None
    spread: float | None

    @property
    def gain(self) -> float | None:
        """How many times faster than the default tactic (-1)."""
        return self.fallback_us / self.time_us if self.time_us and self.fallback_us else None

    @property
    def roofline_share(self) -> float | None:
        """Time at the roofline over the measured time."""
        return self.roofline_us / self.time_us if self.time_us and self.roofline_us else None


@dataclass(frozen=True)
class LayerReport:
    """One custom op and layer with its planned buckets, ascending. ``covers`` is the largest M of each pass."""

    custom_op: str
    layer: str
    shape: str
    covers: Mapping[str, int]
    picks: tuple[Pick, ...]


@dataclass(frozen=True)
class RankGroup:
    """Ranks whose files hold the same, or that have no readable file. ``others`` counts, by custom op, entries that the
    plan does not ask for."""

    ranks: tuple[Rank, ...]
    fates: tuple[str, ...]
    metadata: Mapping[str, Any] | None
    entries: int
    layers: tuple[LayerReport, ...]
    others: Mapping[str, int]

    @property
    def picks(self) -> tuple[Pick, ...]:
        return tuple(pick for layer in self.layers for pick in layer.picks)

    def count(self, state: State) -> int:
        """Planned buckets, over all layers, in this state."""
        return sum(pick.state == state for pick in self.picks)

    @property
    def gains(self) -> tuple[float, ...]:
        """Of all buckets where both times were measured, ascending."""
        return tuple(sorted(pick.gain for pick in self.picks if pick.gain is not None))

    @property
    def mean_gain(self) -> float | None:
        """Geometric mean of the gains."""
        return geometric_mean(self.gains) if self.gains else None


@dataclass(frozen=True)
class Report:
    """``quarantined`` are tactics that crashed, hung or computed nonsense in the environment of a rank's file."""

    plan: Plan
    checked: Checked
    groups: tuple[RankGroup, ...]
    quarantined: tuple[Quarantined, ...]

    @property
    def simulated(self) -> bool:
        """A simulated run wrote a rank's file: its tactics and times come from a cost model."""
        return any(str((group.metadata or {}).get("gpu")).startswith(SIMULATED) for group in self.groups)


def make_report(plan: Plan, checked: Checked) -> Report:
    """Everything that a report shows. Reads the journal and the quarantine beside the rank files; writes nothing."""
    question = checked.report.question
    directory = Path(sglang_layout.cache_directory(question.place))
    groups = tuple(_groups(plan, checked, directory))
    stamps = {repr(group.metadata): group.metadata for group in groups if group.metadata is not None}
    quarantined = {
        item.place: item for stamp in stamps.values() for item in Quarantine(directory / QUARANTINE, stamp).items
    }
    return Report(plan, checked, groups, tuple(quarantined.values()))


def _groups(plan: Plan, checked: Checked, directory: Path) -> Iterator[RankGroup]:
    by_content: defaultdict[str, list[FileReport]] = defaultdict(list)
    for member in checked.report.files:
        by_content[member.file.digest if member.file.content else ""].append(member)
    for members in by_content.values():
        content = members[0].file.content
        entries = {entry.text: entry for entry in content.file.entries} if content else {}
        metadata = content.file.metadata if content else None
        layers = tuple(_layers(plan, checked.report.question.demands, entries, read_timings(directory, metadata)))
        yield RankGroup(
            ranks=tuple(member.file.rank for member in members),
            fates=tuple(member.fate for member in members),
            metadata=metadata,
            entries=len(entries),
            layers=layers,
            others=_others(entries, layers),
        )


def _others(entries: Mapping[str, Entry], layers: tuple[LayerReport, ...]) -> dict[str, int]:
    planned = {pick.key for layer in layers for pick in layer.picks}
    counts: defaultdict[str, int] = defaultdict(int)
    for text, entry in entries.items():
        if text not in planned:
            counts[_op_of(entry)] += 1
    return dict(counts)


def _op_of(entry: Entry) -> str:
    try:
        return entry.key.custom_op
    except CacheFileError:
        return "not a key"


def _layers(
    plan: Plan, demands: tuple[Demand, ...], entries: Mapping[str, Entry], timings: Timings
) -> Iterator[LayerReport]:
    """The two passes of a layer share its buckets; demands come in the order of the plan's ops."""
    figures = profiles.load("gpus", plan.resolved.gpu.profile) if plan.resolved.gpu.profile else None
    passes: dict[Any, list[tuple[PlannedOp, Demand]]] = {}
    for op, demand in zip(plan.ops, demands, strict=True):
        passes.setdefault((op.custom_op, op.layer, op.call), []).append((op, demand))
    for (custom_op, layer, call), members in passes.items():
        keys = {bucket: key.key for _, demand in members for bucket, key in demand.keys.items()}
        buckets = sorted({bucket for op, _ in members for bucket in op.buckets})
        yield LayerReport(
            custom_op=custom_op,
            layer=layer,
            shape=call.label,
            covers={op.phase: op.covers for op, _ in members},
            picks=tuple(
                _pick(
                    bucket,
                    keys.get(bucket),
                    entries,
                    timings,
                    launch_seconds(call, custom_op, bucket, figures) * 1e6 if figures else None,
                )
                for bucket in buckets
            ),
        )


def _pick(
    bucket: int, key: str | None, entries: Mapping[str, Entry], timings: Timings, roofline_us: float | None
) -> Pick:
    entry, measured = entries.get(key or ""), timings.get(key or "")
    own = measured.time_us(entry) if entry and measured else None
    other = measured.runner_up(entry) if entry and measured else None
    return Pick(
        bucket=bucket,
        key=key,
        state="absent" if entry is None else "default" if entry.tactic == -1 else "tuned",
        runner=entry.runner if entry else None,
        tactic=entry.tactic if entry else None,
        policy=entry.policy if entry else None,
        time_us=own,
        fallback_us=measured.fallback_us if entry and measured else None,
        roofline_us=roofline_us,
        runner_up=RunnerUp(*other, behind=other[1] / own - 1) if other and own else None,
        candidates=len(measured.medians) if own and measured else None,
        tied=measured.tied if own and measured else None,
        spread=measured.spread if own and measured else None,
    )
