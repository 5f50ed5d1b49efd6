"""View: what a page of an audit reads of its outcome, and how much of it has room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qaeval_core.audit.compare import Row
from qaeval_core.audit.outcome import AuditOutcome, column_summary
from qaeval_core.audit.profile_folder import shown_run, time_of
from qaeval_core.audit.unusual_runs import Unusual, unusual
from qaeval_core.pages.html import aligned, shown
from qaeval_core.profile.column_profile import Profile
from qaeval_core.profile.run_profile import RunProfile

_MAX_RUNS = 60  # of the lines of a history


@dataclass(frozen=True, slots=True)
class AuditRoom:
    """How much of each kind a page may show, so that it stays small."""

    n_alerts: int
    n_columns: int
    n_charts: int
    n_dots: int
    n_tests: int
    n_examples: int
    n_chars: int  # of a signature


@dataclass(frozen=True, slots=True)
class AuditView:
    """An outcome as the parts of a page ask for it."""

    outcome: AuditOutcome
    room: AuditRoom

    @property
    def runs(self) -> list[RunProfile]:
        """The reference and the audited run, as far as there are."""
        both = (self.outcome.reference_profile, self.outcome.profile)
        return [own for own in both if own is not None]

    @property
    def names(self) -> list[str]:
        """Columns, those with alerts first."""
        alerted = {alert.column for alert in self.outcome.result.alerts}
        names = dict.fromkeys(name for run in reversed(self.runs) for name in run.columns)
        return sorted(names, key=lambda name: name not in alerted)

    @property
    def moved(self) -> list[str]:
        """Columns with alerts."""
        alerted = {alert.column for alert in self.outcome.result.alerts}
        return [name for name in self.names if name in alerted]

    @property
    def comparable(self) -> dict[str, list[Profile]]:
        """Columns that both runs count in the same cells."""
        found = {}
        for name in self.names:
            own = [run.columns[name] for run in self.runs if name in run.columns]
            if len({profile.cells for profile in own}) == 1:
                found[name] = own
        return found

    @property
    def looked_at(self) -> dict[tuple[str, str], Unusual]:
        """Means and undefined shares beside those of earlier runs."""
        own = self.outcome
        if own.profile is None:
            return {}
        means = [one.means for one in own.earlier]
        found = unusual(means, own.profile, own.request.settings)
        return {(one.column, one.statistic): one for one in found}

    def latest(self, name: str) -> Profile:
        """Return a column of the run, or of the reference where that alone has it."""
        return [run.columns[name] for run in self.runs if name in run.columns][-1]

    def test(self, column: str, label: str, statistic: str) -> Row | None:
        """Return one line of the tests."""
        for row in self.outcome.result.rows:
            if (row.column, row.slice, row.statistic) == (column, label, statistic):
                return row
        return None

    def means(self, name: str) -> list[tuple[float, float]]:
        """Return means of one way of scoring, by the time of their runs; this run's is the last."""
        outcome = self.outcome
        if outcome.profile is None or name not in outcome.profile.columns:
            return []
        current = outcome.profile.columns[name]
        points = [
            (time_of(one.run).timestamp(), one.means[name].mean)
            for one in outcome.earlier
            if name in one.means and one.means[name].signature == current.signature
        ]
        mean = column_summary(current)["mean"]
        if mean is not None:
            points.append((time_of(outcome.run).timestamp(), mean))
        return [point for point in points if point[1] == point[1]][-_MAX_RUNS:]

    @property
    def runs_by_time(self) -> dict[float, str]:
        """What people call the runs of a history."""
        own = self.outcome
        known = {time_of(one.run).timestamp(): shown_run(one.run, one.name) for one in own.earlier}
        return known | ({time_of(own.run).timestamp(): own.run_shown} if own.run else {})


def means_shown(*columns: Sequence[float | None]) -> list[list[str]]:
    """Return columns of means as a table shows them: those from -1 to 1 with the same decimals.

    Others have units of their own, and four digits each.

    Examples
    --------
    >>> means_shown([0.45, 97.25], [0.4079, None])
    [['0.4500', '97.25'], ['0.4079', '']]
    """
    found = []
    for own in columns:
        alike = [value if value is not None and abs(value) <= 1 else None for value in own]
        texts = zip(own, aligned([*alike, 0.5])[:-1], strict=True)
        found.append([text or shown(value) for value, text in texts])
    return found


def effect(row: Row) -> str:
    """Return an effect and its interval."""
    if row.effect is None:
        return ""
    edges = "" if row.low is None or row.high is None else f" [{row.low:+.3f}, {row.high:+.3f}]"
    return f"{row.effect:+.3f}{edges}"
