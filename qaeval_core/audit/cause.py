"""Cause: the one slice whose rows are why an audit alarms, if there is one.

Profiles count each slice, so a run without the rows of one is its profile less that of the slice:
exactly what an audit of the other rows would count. The same tests are run again on what is left.
A slice is a cause if it is the only one of its column that moved, and nothing moves without it.

But: which rows slices of two columns share is not counted. What is left is looked at as a whole
and by the slices of the same column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from qaeval_core.audit.compare import AuditResult, compare
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.audit.unusual_runs import MIN_RUNS, EarlierRun, run_means, unusual
from qaeval_core.errors import QAEvalError
from qaeval_core.profile.run_profile import RunProfile
from qaeval_core.profile.slices import Slice

# Each is another comparison.
_MOST_TRIED = 3
# Other rows cannot be paired again from counts.
_OF_PAIRS = ("paired", "not_reproducible")


@dataclass(frozen=True, slots=True)
class Cause:
    """The one slice that moved.

    Attributes
    ----------
    by, slice : str
        Its column, and what it is called.
    columns : tuple of str
        Scores that moved in it, those that moved most first.
    not_apart : tuple of str
        Other columns whose slices may share its rows.
    is_shared : bool
        Whether slices of those moved, too: nobody knows whether they would have without it.
    """

    by: str
    slice: str
    columns: tuple[str, ...]
    not_apart: tuple[str, ...] = ()
    is_shared: bool = False

    @property
    def text(self) -> str:
        """What is said first."""
        if self.is_shared:
            return f"of slices by {self.by} only {self.slice} moved; without it the whole did not"
        return f"only {self.slice} moved; without it nothing did"

    @property
    def remark(self) -> str:
        """What is not known; nothing where slices are of one column."""
        if not self.not_apart:
            return ""
        names = ", ".join(self.not_apart)
        return f"slices by {names} share rows with it, and were not looked at without them"

    def content(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {"text": self.text, "remark": self.remark, **asdict(self)}


def find_cause(
    result: AuditResult,
    runs: tuple[RunProfile, RunProfile],
    settings: AuditSettings,
    *,
    earlier: Sequence[EarlierRun] = (),
    read: Callable[[str], RunProfile] | None = None,
    is_beside_last: bool = True,
) -> Cause | None:
    """Return the slice without which nothing moved; None where none or more than one did.

    Parameters
    ----------
    result : AuditResult
        Of the comparison of both runs.
    runs : pair of RunProfile
        Reference and current run.
    settings : AuditSettings
    earlier : sequence of EarlierRun
    read : callable, optional
        Returns the profile of an earlier run.
    is_beside_last : bool
        Whether rows are compared with those of the last earlier run.
    """
    if any(alert.kind in _OF_PAIRS for alert in result.alerts):
        return None
    search = _Search(result, runs, settings, earlier, read, is_beside_last)
    for own in search.candidates()[:_MOST_TRIED]:
        try:
            if search.is_still_without(own):
                return search.cause(own)
        except QAEvalError:  # An earlier run that cannot be read again: nothing is claimed.
            return None
    return None


@dataclass(frozen=True, slots=True)
class _Search:
    result: AuditResult
    runs: tuple[RunProfile, RunProfile]
    settings: AuditSettings
    earlier: Sequence[EarlierRun]
    read: Callable[[str], RunProfile] | None
    is_beside_last: bool

    def candidates(self) -> list[Slice]:
        """Return slices that alarm and are the only ones of their column, largest effects first."""
        known = {str(own): own for run in self.runs for own in run.slices.all}
        labels = dict.fromkeys(alert.slice for alert in self.result.alerts if alert.slice)
        moved = [known[label] for label in labels]
        columns = [own.by for own in moved]
        return [own for own in moved if columns.count(own.by) == 1]

    def is_still_without(self, own: Slice) -> bool:
        """Return whether an audit of the rows outside of a slice has a verdict and no alert."""
        before, now = (run.without(own) for run in self.runs)
        if before is None or now is None:
            return False
        n_rows = None
        if self.is_beside_last and self.earlier and self.read is not None:
            last = self.read(self.earlier[-1].run).without(own)
            if last is None:
                return False
            n_rows = last.n_rows
        left = compare(before, now, self.settings, n_rows_before=n_rows)
        if left.alerts or left.is_too_few:
            return False
        judged = {
            (row.column, row.statistic)
            for row in left.rows
            if not row.slice and row.status in ("no_alert", "not_excluded")
        }
        alarmed = {
            (row.column, row.statistic) for row in self.result.rows if row.alert and not row.slice
        }
        return alarmed <= judged and self._is_usual_without(own, now)

    def _is_usual_without(self, own: Slice, now: RunProfile) -> bool:
        asked = {one.column for one in self.result.alerts if one.kind == "unusual_run"}
        if len(self.earlier) < MIN_RUNS:
            return not asked
        means = [run_means(run) for run in self._earlier_without(own)]
        found = unusual(means, now, self.settings)
        looked_at = {one.column for one in found}
        return asked <= looked_at and not any(one.is_alert for one in found)

    def _earlier_without(self, own: Slice) -> Iterator[RunProfile]:
        for one in self.earlier:
            if self.read is not None and (run := self.read(one.run).without(own)) is not None:
                yield run

    def cause(self, own: Slice) -> Cause:
        """Return what is said of a slice."""
        alerts, label = self.result.alerts, str(own)
        columns = [one.column for one in alerts if one.slice == label and one.column]
        names = dict.fromkeys(name for run in self.runs for name in run.slices.values)
        return Cause(
            own.by,
            label,
            tuple(dict.fromkeys(columns)),
            tuple(name for name in names if name != own.by),
            any(one.slice and one.slice != label for one in alerts),
        )
