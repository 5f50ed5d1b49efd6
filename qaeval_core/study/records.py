"""Records: what is asked of scores and human ratings, and the statistics that were found.

Everything found is a list of `Statistic`; the tables of a study are its rows by kind, under the
columns of ``TABLES``.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars import selectors

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
    inputs: tuple[str, ...] = ()
    encoding: str | None = None
    draw_systems: bool = False
    n_resamples: int = N_RESAMPLES
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.human:
            raise ConfigError("name at least one column of human ratings with --human [QA0103]")
        if (self.ratings is None) != (self.on is None):
            raise ConfigError("--with TABLE and --on KEY belong together; give both [QA0103]")
        if self.n_draws and (self.system is None or self.question is None):
            raise ConfigError("--draws needs --system COLUMN and --question COLUMN [QA0103]")
        if self.question is not None and self.system is None:
            raise ConfigError("--question needs --system COLUMN [QA0103]")
        if self.draw_systems and self.system is None:
            raise ConfigError("--draw-systems needs --system COLUMN [QA0103]")
        if not self.min_gap >= 0:
            raise ConfigError(f"--min-gap is {self.min_gap:g}; it must be 0 or more [QA0104]")
        self._check_numbers()

    def _check_numbers(self) -> None:
        if self.n_resamples < MIN_RESAMPLES:
            raise ConfigError(
                f"--resamples is {self.n_resamples}; it must be {MIN_RESAMPLES} or more [QA0104]"
            )
        if self.seed < 0:
            raise ConfigError(f"--seed is {self.seed}; it must be 0 or more [QA0104]")
        if len(set(self.human)) < len(self.human):
            raise ConfigError(f"--human names a column twice: {', '.join(self.human)} [QA0106]")
        if self.min_gap and self.win_lose is None:
            raise ConfigError("--min-gap needs --win-lose COLUMN [QA0103]")
        if self.n_draws < 0 or self.questions_per_draw < 1:
            raise ConfigError(
                "--draws must be 0 or more, and --questions-per-draw 1 or more [QA0104]"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """One number of a study with its interval; NaN where undefined, with the reason beside it.

    What ``value`` is depends on the table: a coefficient; the difference of two, higher is better;
    an area under a ROC curve; the share of pairs ranked as people do; a held-out squared error.
    """

    table: str  # a key of ``TABLES``
    subset: str
    human: str  # column of ratings; of an area: what makes a row positive
    metric: str
    level: str = ""
    coefficient: str = ""
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    reason: str | None = None
    n: int = 0  # points: rows, systems, draws x systems, or pairs
    n_undefined: int = 0  # with a rating and without a score
    n_undefined_human: int = 0  # rows without a rating, or without a label
    n_resamples: int = 0
    n_undefined_resamples: int = 0
    # Of a correlation.
    higher_is_better: bool = True
    aggregation: str = ""  # of rows to systems; "" at segment level
    signature: str = ""
    # Of a comparison with a second metric. Correlations are negated where lower scores are better.
    metric_b: str = ""
    value_a: float = math.nan
    value_b: float = math.nan
    p_value: float = math.nan  # two-sided, not corrected for the number of comparisons
    p_corrected: float = math.nan  # for all comparisons of the table
    # Of an area.
    n_positive: int = 0
    n_negative: int = 0
    # Of win-lose pairs; ties do not agree.
    min_gap: float = 0.0
    n_agree: int = 0
    n_tied: int = 0
    n_disagree: int = 0
    # Of a step of forward selection, over all repeats.
    step: int = 0
    n_chosen: int = 0
    n_repeats: int = 0
    r2: float = math.nan

    @property
    def agreement(self) -> float:
        """The value by which tables are ordered: larger agrees better, undefined is least."""
        if math.isnan(self.value):
            return -math.inf
        return self.value if self.higher_is_better else -self.value


_RESAMPLES = "n_resamples n_undefined_resamples"
# The fields of a statistic that a table has, in the order of its columns.
TABLES = {
    "correlations": f"level subset human metric coefficient value low high reason n n_undefined "
    f"n_undefined_human {_RESAMPLES} higher_is_better aggregation signature",
    "comparisons": f"level subset human coefficient metric metric_b value_a value_b value low high "
    f"p_value p_corrected reason n {_RESAMPLES}",
    "auc": f"subset human metric value low high reason n_positive n_negative n_undefined "
    f"n_undefined_human {_RESAMPLES}",
    "win_lose": f"subset human metric min_gap value low high reason n n_agree n_tied n_disagree "
    f"n_undefined {_RESAMPLES}",
    "forward_selection": "subset human step metric n_chosen n_repeats value r2 n n_undefined",
}
# Columns that have another name than their field.
_NAMES = {
    "correlations": {"n_undefined": "n_undefined_metric"},
    "comparisons": {"metric": "metric_a", "value": "difference"},
    "auc": {
        "human": "label",
        "n_undefined": "n_undefined_metric",
        "n_undefined_human": "n_undefined_label",
    },
    "win_lose": {"value": "share", "n": "n_pairs"},
    "forward_selection": {"value": "mse"},
}
_POLARS = {"str": pl.String, "int": pl.Int64, "float": pl.Float64, "bool": pl.Boolean}
_SCHEMA = {
    column.name: _POLARS[str(column.type).removesuffix(" | None")] for column in fields(Statistic)
}


@dataclass(slots=True)
class Study:
    """All that was found; scores and ratings of all rows, float ndarrays, are kept for boxes."""

    request: StudyRequest
    n_rows: int
    metrics: list[str]
    scores: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    ratings: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    statistics: list[Statistic] = field(default_factory=list)

    def of(self, table: str) -> list[Statistic]:
        """Return the statistics of one table, a key of ``TABLES``, as they were found."""
        return [one for one in self.statistics if one.table == table]

    def frame(self, table: str) -> pl.DataFrame:
        """Return one table as it is written: typed even where it is empty, null where undefined."""
        frame = pl.DataFrame([asdict(one) for one in self.of(table)], schema=_SCHEMA)
        names = _NAMES[table]
        chosen = frame.select(
            pl.col(name).alias(names.get(name, name)) for name in TABLES[table].split()
        )
        return chosen.with_columns(selectors.float().fill_nan(None))
