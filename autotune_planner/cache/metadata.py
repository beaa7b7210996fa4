"""Whether FlashInfer loads a file in an environment: its ``_metadata`` stamp compared field by field.

Source: FlashInfer 0.7.2, ``autotuner/autotuner.py``: ``_classify_metadata_mismatches``, ``AutoTuner.load_configs`` and
``AutoTuner.save_configs``. All or nothing: one field that differs and no entry is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Match = Literal["equal", "wildcard", "soft", "hard"]
Outcome = Literal["loads", "unchecked", "healed", "stuck"]

_WILDCARD = "*"
_INDETERMINATE = (None, "unknown", "None")  # what a writer records that could not tell; None: the field is missing


@dataclass(frozen=True)
class FieldMatch:
    """One field of the environment. ``saved`` is the file's value, None where it has none.

    ``soft``: the writer did not know the value; ``hard``: it knew another one.
    """

    field: str
    saved: Any
    current: str
    match: Match


@dataclass(frozen=True)
class StampMatch:
    """A whole stamp. ``stamped`` is False for a file without one, which FlashInfer loads unchecked.

    ``ignored`` are fields of the file that this FlashInfer does not know; it does not compare them.
    """

    stamped: bool
    fields: tuple[FieldMatch, ...]
    ignored: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """What becomes of the file: its entries load (``unchecked``: and are stamped at the next save); they are
        ignored and the next save replaces the file (``healed``); they are ignored and every save is refused
        (``stuck``), so that the server tunes at each start until the file is deleted or moved."""
        if not self.stamped:
            return "unchecked"
        found = {field.match for field in self.fields}
        return "stuck" if "hard" in found else "healed" if "soft" in found else "loads"

    @property
    def loads(self) -> bool:
        return self.outcome in ("loads", "unchecked")

    def differing(self, match: Match) -> tuple[FieldMatch, ...]:
        """Fields that match in this way."""
        return tuple(field for field in self.fields if field.match == match)


def compare_stamp(saved: Mapping[str, Any] | None, current: Mapping[str, str]) -> StampMatch:
    """Compare a file's stamp with an environment, as FlashInfer's ``_collect_metadata`` gives it.

    ``saved`` is None for a file without a stamp, and empty where the stamp is no object: then every field is missing.
    """
    if saved is None:
        return StampMatch(stamped=False, fields=())
    fields = tuple(_compare_field(field, saved.get(field), value) for field, value in current.items())
    return StampMatch(True, fields, tuple(field for field in saved if field not in current))


def _compare_field(field: str, saved: Any, current: str) -> FieldMatch:
    if saved == current:
        match: Match = "equal"
    elif saved == _WILDCARD:
        match = "wildcard"
    else:
        match = "soft" if saved in _INDETERMINATE else "hard"
    return FieldMatch(field, saved, current, match)
