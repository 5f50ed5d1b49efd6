"""Outcome: what an audit found, and numbers of it that page and JSON share.

Statuses: ``ok``; ``alert``; ``too_few``, where there are too few clusters for a verdict and nothing
else is an alert; ``first_run``, with nothing to compare with; ``incomplete``, where the run is not
complete or the reference cannot be had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from qaeval_core.audit.cause import Cause
from qaeval_core.audit.compare import AuditResult
from qaeval_core.audit.drift import moments_of
from qaeval_core.audit.paired import PairedColumn
from qaeval_core.audit.profile_folder import shown_run
from qaeval_core.audit.request import AuditRequest
from qaeval_core.audit.unusual_runs import EarlierRun
from qaeval_core.made import HowMade
from qaeval_core.profile.column_profile import Profile
from qaeval_core.profile.run_profile import RunProfile
from qaeval_core.storage.path import StoragePath

AuditStatus = Literal["ok", "alert", "too_few", "first_run", "incomplete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOutcome:
    """What an audit found, and what it was found from.

    Attributes
    ----------
    status : str
    why : str
        Why it is incomplete; "" where it is not.
    run, reference : str
        Ids of runs, or the path that the user named; "" where there is none.
    profile, reference_profile : RunProfile, optional
    earlier : sequence of EarlierRun
        Runs before this one, the oldest first.
    cause : Cause, optional
        The one slice that moved.
    paired : tuple of PairedColumn
        Differences of rows that both runs have; empty where fewer than half are in both.
    share_matched : float, optional
        Of the rows, those that both runs have; None where the reference is a profile: that knows
        no rows.
    """

    status: AuditStatus
    out: StoragePath
    request: AuditRequest
    why: str = ""
    run: str = ""
    reference: str = ""
    profile: RunProfile | None = None
    reference_profile: RunProfile | None = None
    result: AuditResult = field(default_factory=AuditResult)
    earlier: Sequence[EarlierRun] = ()
    cause: Cause | None = None
    notes: tuple[str, ...] = ()
    paired: tuple[PairedColumn, ...] = ()
    share_matched: float | None = None

    @property
    def alert_lines(self) -> list[str]:
        """What moved, a line for each column; of one cause that is the largest alert alone."""
        if self.cause is None:
            return self.result.alert_lines()
        first: dict[str, str] = {}
        for alert in self.result.alerts:
            first.setdefault(alert.column or alert.text, alert.text)
        return list(first.values())

    @property
    def run_shown(self) -> str:
        """The run as people call it."""
        return shown_run(self.run, self.profile.name if self.profile else "")

    @property
    def reference_shown(self) -> str:
        """The reference as people call it."""
        own = self.reference_profile
        return shown_run(self.reference, own.name if own is not None else "")


def made_of(outcome: AuditOutcome) -> HowMade:
    """Return how the report of an outcome is made, under the name of its run."""
    own = outcome.profile
    return HowMade.now(outcome.out.name if own is None else own.name or outcome.out.name)


def columns_of(profile: RunProfile | None) -> Mapping[str, Profile]:
    """Return the columns of a run, none where there is no run."""
    return profile.columns if profile is not None else {}


def run_summary(name: str, profile: RunProfile | None) -> dict[str, Any]:
    """Return id, rows, shares of them by name, and clusters."""
    found: dict[str, Any] = {"id": name, "name": name if profile is None else profile.name}
    if profile is not None:
        rates = {own: counts[:, 0].sum(axis=1).tolist() for own, counts in profile.rates.items()}
        found |= {
            "rows": rates["rows"][0],
            **{own: n_true for own, (n_true, _) in rates.items() if own != "rows"},
            "cluster": profile.cluster,
            "clusters": int(profile.clusters.counts()[0]),
        }
    return found


def signatures(outcome: AuditOutcome) -> dict[str, dict[str, str | None]]:
    """Return how each column was made in both runs; None where a run has no such column."""
    before, now = columns_of(outcome.reference_profile), columns_of(outcome.profile)
    return {
        name: {
            "reference": before[name].signature if name in before else None,
            "current": now[name].signature if name in now else None,
        }
        for name in dict.fromkeys([*now, *before])
    }


def column_summary(profile: Profile) -> dict[str, Any]:
    """Return counts and mean over all rows, and what the mean can be at most.

    ``bounds``: the mean if all undefined values were the lowest or the highest.
    """
    counts = profile.counts[0].sum(axis=0, dtype="int64")
    n, n_undefined = int(counts[:-1].sum()), int(counts[-1])
    mean = moments_of(profile, 0)[0]
    total = 0.0 if math.isnan(mean) else mean * n
    ends = (profile.low, profile.high)
    has_bounds = n + n_undefined > 0 and all(map(math.isfinite, ends))
    return {
        "n": n,
        "undefined": n_undefined,
        "undefined_by_reason": {
            reason: n_rows
            for reason, own in sorted(profile.reasons.items())
            if (n_rows := int(own[0].sum()))
        },
        "mean": None if math.isnan(mean) else mean,
        "bounds": [(total + end * n_undefined) / (n + n_undefined) for end in ends]
        if has_bounds
        else None,
    }
