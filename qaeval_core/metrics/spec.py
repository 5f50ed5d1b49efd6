"""MetricSpec: everything the rest of the program may know about a metric."""

from __future__ import annotations

from dataclasses import dataclass

from qaeval_core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """One metric of the catalogue."""

    name: str
    title: str
    needs: tuple[str, ...]  # "encoder", "causal_lm"
    roles: tuple[str, ...]  # input roles read
    outputs: tuple[str, ...]  # sub-scores; "" is the metric itself, "lrm" is <name>_lrm
    low: float
    high: float
    higher_is_better: bool
    is_symmetric: bool  # f(candidate, reference) == f(reference, candidate)
    over_windows: str  # "none", "mean"
    over_references: str  # "none", "max"
    over_examples: str  # "mean", "sum_of_statistics"
    source: str  # citation, with section

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ConfigError(f"metric {self.name}: low {self.low} is not below high {self.high}")
