"""Summary: the few numbers of a run and of its columns that people and programs are shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from qaeval_core.audit.drift import moments_of
from qaeval_core.audit.run import AuditOutcome
from qaeval_core.profile.column_profile import Profile
from qaeval_core.profile.run_profile import RunProfile


def columns_of(profile: RunProfile | None) -> Mapping[str, Profile]:
    """Return the columns of a run, none where there is no run."""
    return profile.columns if profile is not None else {}


def run_summary(name: str, profile: RunProfile | None) -> dict[str, Any]:
    """Return id, rows, shares of them by name, and clusters."""
    found: dict[str, Any] = {"id": name}
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
