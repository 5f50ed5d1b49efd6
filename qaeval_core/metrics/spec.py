"""MetricSpec: everything the rest of the program may know about a metric."""

from __future__ import annotations

from dataclasses import dataclass

from qaeval_core.errors import ConfigError
from qaeval_core.metrics.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """One metric of the catalogue."""

    name: str
    title: str
    module: str  # file in qaeval_core.metrics with the definition
    settings: type[Settings]
    needs: tuple[str, ...]  # "words", "encoder", "causal_lm", "cross_encoder", "endpoint", ...
    roles: tuple[str, ...]  # input roles read
    optional_roles: tuple[str, ...] = ()  # read where there is such a column; null is a value
    statistic: str = ""  # what a metric of words is computed from
    outputs: tuple[str, ...]  # sub-scores; "" is the metric itself, "lrm" is <name>_lrm
    count_outputs: tuple[str, ...] = ()  # those that are counts
    text_outputs: tuple[str, ...] = ()  # those that are words of a few
    free_text_outputs: tuple[str, ...] = ()  # those that are texts, another in each row
    detail_outputs: tuple[str, ...] = ()  # those that are written on request, as JSON
    low: float
    high: float
    higher_is_better: bool
    is_symmetric: bool  # f(candidate, reference) == f(reference, candidate)
    over_windows: str  # "none", "mean"
    over_references: str  # "none", "max", "clip", "mean", "max of each part"
    over_examples: str  # "mean", "sum_of_statistics"
    source: str  # citation, with section

    @property
    def uncounted_outputs(self) -> tuple[str, ...]:
        """Outputs that are no scores: counts and texts."""
        return (*self.count_outputs, *self.undescribed_outputs)

    @property
    def undescribed_outputs(self) -> tuple[str, ...]:
        """Outputs that are texts."""
        return (*self.text_outputs, *self.free_text_outputs, *self.detail_outputs)

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ConfigError(f"metric {self.name}: low {self.low} is not below high {self.high}")
