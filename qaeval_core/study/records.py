"""Study: what is asked of scores and human ratings, and the records of what was found.

A record is one row of a table: plain values, None where undefined, with the reason beside it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError
from qaeval_core.stats.bootstrap import N_RESAMPLES

ALL_ROWS = "all"
# Fewer give no 95 % interval worth the name.
MIN_RESAMPLES = 20
SEGMENT, SYSTEM, DRAWS = "segment", "system", "draws"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRequest:
    """One study; the command line's words, checked for what can be checked without data."""

    scores: tuple[str, ...]
    human: tuple[str, ...]
    metrics: tuple[str, ...] = ()
    ratings: str | None = None
    on: str | None = None
    subsets: tuple[str, ...] = ()
    by: str | None = None
    system: str | None = None
    question: str | None = None
    n_draws: int = 0
    questions_per_draw: int = 30
    auc: str | None = None
    win_lose: str | None = None
    min_gap: float = 0.0
    forward_selection: bool = False
    compare: str | None = None
    cluster: str | None = None
    n_resamples: int = N_RESAMPLES
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.human:
            raise ConfigError("name at least one column of human ratings with --human")
        if (self.ratings is None) != (self.on is None):
            raise ConfigError("--with TABLE and --on KEY go together")
        if self.n_draws and (self.system is None or self.question is None):
            raise ConfigError("--draws needs --system COLUMN and --question COLUMN")
        if self.question is not None and self.system is None:
            raise ConfigError("--question needs --system COLUMN")
        if self.min_gap < 0:
            raise ConfigError(f"--min-gap is {self.min_gap:g}, needs 0 or more")
        self._check_numbers()

    def _check_numbers(self) -> None:
        if self.n_resamples < MIN_RESAMPLES:
            raise ConfigError(f"--resamples is {self.n_resamples}, needs {MIN_RESAMPLES} or more")
        if self.seed < 0:
            raise ConfigError(f"--seed is {self.seed}, needs 0 or more")
        if len(set(self.human)) < len(self.human):
            raise ConfigError(f"--human names a column twice: {', '.join(self.human)}")
        if self.min_gap and self.win_lose is None:
            raise ConfigError("--min-gap needs --win-lose COLUMN")
        if self.n_draws < 0 or self.questions_per_draw < 1:
            raise ConfigError("--draws needs 0 or more, --questions-per-draw 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationRecord:
    """A coefficient of a metric with a human column.

    ``n`` counts points: rows at segment level, systems at system level, draws x systems for
    draws. Rows left out are counted whatever the level.
    """

    level: str
    subset: str
    human: str
    metric: str
    coefficient: str
    value: float | None
    low: float | None
    high: float | None
    reason: str | None
    n: int
    n_undefined_metric: int  # rows with a rating and without a score
    n_undefined_human: int  # rows without a rating
    n_resamples: int
    n_undefined_resamples: int
    higher_is_better: bool
    aggregation: str  # of rows to systems; "" at segment level
    signature: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRecord:
    """Paired bootstrap of two metrics, on rows where both are defined; higher is better."""

    level: str
    subset: str
    human: str
    coefficient: str
    metric_a: str
    metric_b: str
    value_a: float | None  # the correlation, negated where lower scores are better
    value_b: float | None
    difference: float | None  # value_a - value_b
    low: float | None
    high: float | None
    p_value: float | None  # two-sided, not corrected for the number of comparisons
    reason: str | None
    n: int
    n_resamples: int
    n_undefined_resamples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AucRecord:
    """How well a metric tells positive rows from negative ones; higher is better."""

    subset: str
    label: str
    metric: str
    value: float | None
    low: float | None
    high: float | None
    reason: str | None
    n_positive: int
    n_negative: int
    n_undefined_metric: int
    n_undefined_label: int
    n_resamples: int
    n_undefined_resamples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WinLoseRecord:
    """How often a metric ranks two answers to one question as people do; ties do not agree."""

    subset: str
    human: str
    metric: str
    min_gap: float
    share: float | None
    low: float | None
    high: float | None
    reason: str | None
    n_pairs: int
    n_agree: int
    n_tied: int
    n_disagree: int
    n_undefined: int
    n_resamples: int
    n_undefined_resamples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRecord:
    """How often a metric was chosen at a step of forward selection; errors are the step's."""

    subset: str
    human: str
    step: int
    metric: str
    n_chosen: int
    n_repeats: int
    mse: float
    r2: float
    n: int
    n_undefined: int


@dataclass(slots=True)
class Study:
    """All that was found; scores and ratings of all rows, float ndarrays, are kept for plots."""

    request: StudyRequest
    n_rows: int
    metrics: list[str]
    scores: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    ratings: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    correlations: list[CorrelationRecord] = field(default_factory=list)
    comparisons: list[ComparisonRecord] = field(default_factory=list)
    auc: list[AucRecord] = field(default_factory=list)
    win_lose: list[WinLoseRecord] = field(default_factory=list)
    forward_selection: list[SelectionRecord] = field(default_factory=list)


RECORDS: dict[str, type[Any]] = {
    "correlations": CorrelationRecord,
    "comparisons": ComparisonRecord,
    "auc": AucRecord,
    "win_lose": WinLoseRecord,
    "forward_selection": SelectionRecord,
}

_POLARS = {"str": pl.String, "int": pl.Int64, "float": pl.Float64, "bool": pl.Boolean}


def records_table(study: Study, name: str) -> pl.DataFrame:
    """Return one list of records as a table, typed even where it is empty.

    Parameters
    ----------
    name : str
        A key of ``RECORDS``.
    """
    schema = {
        column.name: _POLARS[str(column.type).split(" | ", maxsplit=1)[0]]
        for column in fields(RECORDS[name])
    }
    return pl.DataFrame([asdict(record) for record in getattr(study, name)], schema=schema)
