"""Settings: what of a change is too much, and how sure one must be of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from qaeval_core.audit.drift import MIN_CLUSTERS, N_DRAWS
from qaeval_core.errors import ConfigError, nearest

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
                if name not in TOLERANCES:
                    raise ConfigError(f"no tolerance of {name!r}{nearest(name, list(TOLERANCES))}")
                if not value >= 0:
                    raise ConfigError(f"the tolerance of {name} is {value}, not at least 0")
        if not 1 / (self.n_draws + 1) <= self.alpha < 1:
            raise ConfigError(
                f"alpha is {self.alpha}: with {self.n_draws} draws it is from "
                f"{1 / (self.n_draws + 1):.2g} to below 1"
            )
        if self.seed < 0:
            raise ConfigError(f"the seed is {self.seed}, not at least 0")

    def tolerance(self, column: str, statistic: str) -> float | None:
        """Return the tolerance of a statistic; None where it is only shown."""
        own = self.columns.get(column, {})
        return own.get(statistic, self.tolerances.get(statistic, TOLERANCES.get(statistic)))
