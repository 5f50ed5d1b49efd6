"""Guide: which metric for which job, each line with the figures that it stands on.

The only place of these lines: the README's table and ``qaeval metrics NAME`` are made of them, and
the figures are those of docs/validity.md, where each has its set and its companions.
"""

from __future__ import annotations

from dataclasses import dataclass

_STATISTICS = {"auc": "AUC", "pearson": "Pearson", "cost": "cost", "beats_wrong": "beats wrong"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of docs/validity.md, with its interval.

    Attributes
    ----------
    judged_set, column, statistic : str
        Its section, line and column there.
    """

    judged_set: str
    column: str
    statistic: str
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        shown = figure(self.value, self.low, self.high)
        return f"{self.column} {_STATISTICS[self.statistic]} {shown}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One line: what to use for a job, instead of what, and the figures for it.

    Attributes
    ----------
    use, rather_than : tuple of str
        Metrics of the catalogue.
    figures : tuple of Figure
        Of one judged set.
    """

    job: str
    use: tuple[str, ...]
    rather_than: tuple[str, ...] = ()
    figures: tuple[Figure, ...]

    def __str__(self) -> str:
        others = f" rather than {', '.join(self.rather_than)}" if self.rather_than else ""
        figures = ", ".join(map(str, self.figures))
        return f"{self.job}: {', '.join(self.use)}{others}; {self.figures[0].judged_set}: {figures}"


def advice_for(metric: str) -> Advice | None:
    """Return the line that a metric is used in, else the one that names another instead of it."""
    used = [line for line in GUIDE if metric in line.use]
    named = [line for line in GUIDE if metric in line.rather_than]
    return next(iter([*used, *named]), None)


def figure(value: float, low: float, high: float) -> str:
    """Return a value with its interval as pages write it.

    Examples
    --------
    >>> figure(0.7, -0.04, 1.0)
    '.700 [-.040, 1.000]'
    """
    return f"{_short(value)} [{_short(low)}, {_short(high)}]"


def _short(value: float) -> str:
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


GUIDE: tuple[Advice, ...] = ()
