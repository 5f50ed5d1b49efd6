"""Settings: what of a change is too much, and how sure one must be of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from qaeval_core.audit.drift import MIN_CLUSTERS, N_DRAWS
from qaeval_core.errors import ConfigError, nearest
from qaeval_core.plugins import Catalog, instance_maker

# In standard deviations of the reference, PSI, shares, and a share of the reference's rows.
TOLERANCES: Mapping[str, float] = MappingProxyType(
    {
        "mean": 0.1,
        "wasserstein": 0.1,
        "psi": 0.1,
        "undefined": 0.01,
        "quarantined": 0.01,
        "truncated": 0.01,
        "kept": 0.05,
        "rows": 0.2,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditStatistic:
    """A statistic that a plugin adds to audits.

    Attributes
    ----------
    measure : callable
        (reference, current) -> (effect, p): two `plugin_statistics.ColumnView`, a finite number
        that is 0 where nothing moved, and the chance in [0, 1] of such an effect then.
    tolerance : float or None
        Smallest effect of an alert, where settings give none; None shows it alone.
    """

    measure: Callable[[Any, Any], tuple[float, float]]
    tolerance: float | None = None


STATISTICS: Catalog[AuditStatistic] = Catalog(
    "qaeval.audit_statistics", {}, instance_maker(AuditStatistic)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """What raises an alert.

    Attributes
    ----------
    tolerances : mapping of statistic to number
        Effects below are no alert; those of `TOLERANCES` where it says none.
    columns : mapping of column to tolerances
        Those of one column.
    alpha : float
        Adjusted p-values above are no alert.
    n_draws, seed : int
        Of the bootstrap.
    min_clusters : int
        Fewer in either run: no verdict.

    Raises
    ------
    ConfigError
        If a statistic is unknown, or a number out of its range.

    Examples
    --------
    >>> settings = AuditSettings(tolerances={"mean": 0.2}, columns={"sas": {"mean": 0.05}})
    >>> [settings.tolerance(column, "mean") for column in ("sas", "f1")]
    [0.05, 0.2]
    """

    tolerances: Mapping[str, float] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    alpha: float = 0.01
    n_draws: int = N_DRAWS
    seed: int = 0
    min_clusters: int = MIN_CLUSTERS

    def __post_init__(self) -> None:
        for given in (self.tolerances, *self.columns.values()):
            for name, value in given.items():
                known = [*TOLERANCES, *STATISTICS]
                if name not in known:
                    raise ConfigError(
                        f"tolerances: no statistic {name!r}{nearest(name, known)} [QA0105]"
                    )
                if not value >= 0:
                    raise ConfigError(
                        f"the tolerance of {name} is {value}; it must be 0 or more [QA0104]"
                    )
        if not 1 / (self.n_draws + 1) <= self.alpha < 1:
            raise ConfigError(
                f"alpha is {self.alpha}; with {self.n_draws} draws it must be at least "
                f"{1 / (self.n_draws + 1):.2g} and below 1 [QA0104]"
            )
        if self.seed < 0:
            raise ConfigError(f"the seed is {self.seed}; it must be 0 or more [QA0104]")

    def tolerance(self, column: str, statistic: str) -> float | None:
        """Return the tolerance of a statistic; None where it is only shown."""
        own = {**self.tolerances, **self.columns.get(column, {})}
        if statistic in own or statistic in TOLERANCES:
            return own.get(statistic, TOLERANCES.get(statistic))
        return STATISTICS[statistic].tolerance if statistic in STATISTICS else None
