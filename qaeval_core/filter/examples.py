"""Examples: rows that a page shows of a filter: at the margin, of each reason, and labels it keeps.

They are chosen by their numbers; their texts are read as the second pass meets them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qaeval_core.filter.corpus_rows import NO_TWIN, STEP, CorpusRows
from qaeval_core.filter.facts import KEPT
from qaeval_core.filter.labels import LabeledRows

_N_REASON = 5
_N_WRONG = 20


@dataclass(frozen=True, slots=True)
class ExampleRows:
    """Rows, by their numbers over the whole corpus.

    Attributes
    ----------
    margin : sequence of int
        Those on both sides of the cut.
    reasons : mapping of reason to sequence of int
        The first rows that it dropped.
    twins : mapping of int to int
        The row that each duplicate among them is one of.
    wrong : sequence of int
        Rows that are labeled bad and yet kept, the first of ``n_wrong``.
    """

    margin: Sequence[int] = ()
    reasons: Mapping[str, Sequence[int]] = field(default_factory=dict)
    twins: Mapping[int, int] = field(default_factory=dict)
    wrong: Sequence[int] = ()
    n_wrong: int = 0

    @classmethod
    def of(
        cls, rows: CorpusRows, margin: Sequence[int], labeled: LabeledRows | None
    ) -> ExampleRows:
        """Return the examples of rows of which all is decided."""
        reasons = _first_rows(rows)
        twins = {}
        if rows.twin is not None:
            known = {row: int(rows.twin[row]) for own in reasons.values() for row in own}
            twins = {row: twin for row, twin in known.items() if twin != NO_TWIN}
        if labeled is None:
            return cls(margin, reasons, twins)
        is_bad = ~labeled.is_good & ~labeled.is_blank
        wrong = labeled.rows[is_bad & (rows.reason[labeled.rows] == KEPT)].tolist()
        return cls(margin, reasons, twins, wrong[:_N_WRONG], len(wrong))

    @property
    def rows(self) -> list[int]:
        """All of them, in order."""
        dropped = [row for own in self.reasons.values() for row in own]
        return sorted({*self.margin, *dropped, *self.twins.values(), *self.wrong})

    def content(self, found: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """Return what filter.json says of them, by what the second pass read of each."""
        return {
            "examples": [dict(found[row]) for row in sorted(self.margin)],
            "reason_examples": {
                reason: [self._dropped(row, found) for row in own]
                for reason, own in self.reasons.items()
            },
            "bad_and_kept": {"n": self.n_wrong, "rows": [dict(found[row]) for row in self.wrong]},
        }

    def _dropped(self, row: int, found: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        if row not in self.twins:
            return dict(found[row])
        twin = found[self.twins[row]]
        repeats = {"id": twin["id"], "question": twin["texts"].get("question")}
        return {**found[row], "repeats": repeats}


def _first_rows(rows: CorpusRows) -> dict[str, list[int]]:
    """Return the first rows of each reason that dropped some."""
    found: dict[str, list[int]] = {}
    missing = {code: reason for code, reason in enumerate(rows.stages.reasons) if code != KEPT}
    for start in range(0, len(rows), STEP):
        part = np.asarray(rows.reason[start : start + STEP])
        for code in sorted(missing.keys() & set(np.unique(part).tolist())):
            own = found.setdefault(missing[code], [])
            own += (start + np.flatnonzero(part == code)[: _N_REASON - len(own)]).tolist()
            if len(own) == _N_REASON:
                del missing[code]
    return {name: found[name] for name in rows.stages.reasons if name in found}
