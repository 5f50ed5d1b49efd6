"""Output: what a study found, as lines for a terminal, and as Parquet, JSON and plots.

The strongest correlation of each table stands first. Every number stands beside the rows behind
it and those left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from qaeval_core.errors import ConfigError
from qaeval_core.files import delete, write_json, writer
from qaeval_core.stats.correlation import COEFFICIENTS
from qaeval_core.study.plots import plot_correlations, plot_distributions
from qaeval_core.study.records import ALL_ROWS, DRAWS, SEGMENT, SYSTEM, TABLES, Statistic, Study

# Beside those of every report, what a correlation may depend on.
_PACKAGES = ("scipy", "polars", "scikit-learn", "matplotlib")
_REASONS = {
    "too_few": "too few",
    "constant_metric": "constant",
    "constant_human": "constant rating",
    "one_label": "one label alone",
    "no_pairs": "no pairs",
}
_POINTS = {SEGMENT: "rows", SYSTEM: "systems", DRAWS: "systems in draws"}


def study_lines(study: Study) -> list[str]:
    """Return everything found, as text."""
    lines = [f"{study.n_rows:,} rows, metrics: {', '.join(study.metrics)}"]
    lines += [f"note: {note}" for note in study.notes]
    for table, shown in _SHOWN.items():
        places = itertools.groupby(study.of(table), lambda one: (one.level, one.human, one.subset))
        for _, group in places:
            lines += ["", *shown(list(group))]
    return lines


def number(value: float, low: float, high: float, *, reason: str | None) -> str:
    """Return a value with its interval, or why it is undefined.

    Examples
    --------
    >>> number(0.5, 0.4, 0.6, reason=None)
    ' 0.500 [ 0.400,  0.600]'
    >>> number(math.nan, math.nan, math.nan, reason="constant_metric")
    'undefined (constant)'
    """
    if math.isnan(value):
        return f"undefined ({_REASONS.get(reason or '', reason)})"
    if math.isnan(low):
        return f"{value:6.3f}"
    return f"{value:6.3f} [{low:6.3f}, {high:6.3f}]"


def _number(one: Statistic) -> str:
    return number(one.value, one.low, one.high, reason=one.reason)


def _correlation_lines(found: Sequence[Statistic]) -> list[str]:
    first = found[0]
    title = f"{first.level} level, {first.human}, {_rows(first)}"
    if first.n_undefined_human:
        title += f"; {first.n_undefined_human:,} rows without a rating left out"
    by_metric = [list(own) for _, own in itertools.groupby(found, lambda one: one.metric)]
    rows = [
        [
            own[0].metric + ("" if own[0].higher_is_better else " (lower is better)"),
            f"{own[0].n:,}",
            f"{own[0].n_undefined:,}",
            *(_number(one) for one in own),
        ]
        for own in sorted(by_metric, key=lambda own: -own[0].strength)
    ]
    head = ["metric", f"n {_POINTS[first.level]}", "undefined", *COEFFICIENTS]
    return [title, *table_lines(head, rows), *_shaky(found)]


def _shaky(found: Sequence[Statistic]) -> list[str]:
    if found[0].level == DRAWS:
        return ["no interval: draws share rows"]
    counts = {
        one.metric: f"{one.n_undefined_resamples:,} of {one.n_resamples:,}"
        for one in found
        if one.n_undefined_resamples and not math.isnan(one.value)
    }
    return [f"resamples undefined: {name} {count}" for name, count in counts.items()]


def _comparison_lines(found: Sequence[Statistic]) -> list[str]:
    first = found[0]
    title = (
        f"paired bootstrap, {first.level} level, {first.human}, {_rows(first)}: "
        "difference of correlations A - B, p two-sided, not corrected for many comparisons"
    )
    rows = []
    for (a, b), own in itertools.groupby(found, lambda one: (one.metric, one.metric_b)):
        group = list(own)
        p_values = ["" if math.isnan(one.p_value) else f" p {one.p_value:.3f}" for one in group]
        cells = [_number(one) + shown for one, shown in zip(group, p_values, strict=True)]
        rows.append([a, b, f"{group[0].n:,}", *cells])
    return [title, *table_lines(["A", "B", "n", *COEFFICIENTS], rows, n_left=2)]


def _auc_lines(found: Sequence[Statistic]) -> list[str]:
    title = f"AUC, positive: {found[0].human}, {_rows(found[0])}"
    if found[0].n_undefined_human:
        title += f"; {found[0].n_undefined_human:,} rows without a label left out"
    rows = [
        [
            one.metric,
            f"{one.n_positive:,}",
            f"{one.n_negative:,}",
            f"{one.n_undefined:,}",
            _number(one),
        ]
        for one in sorted(found, key=lambda one: -one.strength)
    ]
    return [title, *table_lines(["metric", "positive", "negative", "undefined", "AUC"], rows)]


def _win_lose_lines(found: Sequence[Statistic]) -> list[str]:
    first = found[0]
    title = (
        f"win-lose, {first.human}, {_rows(first)}: {first.n:,} pairs with a gap "
        f"above {first.min_gap:g}; share ranked as people do, a tie is no agreement"
    )
    rows = [
        [
            one.metric,
            f"{one.n_agree:,}",
            f"{one.n_tied:,}",
            f"{one.n_disagree:,}",
            f"{one.n_undefined:,}",
            _number(one),
        ]
        for one in sorted(found, key=lambda one: -one.strength)
    ]
    head = ["metric", "agree", "tied", "disagree", "undefined", "share"]
    return [title, *table_lines(head, rows)]


def _selection_lines(found: Sequence[Statistic]) -> list[str]:
    first = found[0]
    title = (
        f"forward selection, {first.human}, {_rows(first)}: {first.n:,} rows, "
        f"{first.n_undefined:,} with an undefined value left out; held-out errors"
    )
    rows = []
    for step, choices in itertools.groupby(found, lambda one: one.step):
        own = list(choices)
        chosen = ", ".join(f"{one.metric} {one.n_chosen}/{one.n_repeats}" for one in own)
        rows.append([f"{step}", chosen, f"{own[0].value:.4f}", f"{own[0].r2:.4f}"])
    return [title, *table_lines(["step", "chosen", "MSE", "R2"], rows, n_left=2)]


_SHOWN: dict[str, Callable[[Sequence[Statistic]], list[str]]] = {
    "correlations": _correlation_lines,
    "comparisons": _comparison_lines,
    "auc": _auc_lines,
    "win_lose": _win_lose_lines,
    "forward_selection": _selection_lines,
}


def _rows(one: Statistic) -> str:
    return "all rows" if one.subset == ALL_ROWS else one.subset


def table_lines(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, n_left: int = 1
) -> list[str]:
    """Return a table whose first columns are words and the others numbers.

    Examples
    --------
    >>> table_lines(["metric", "n"], [["f1", "942"]])
    ['  metric    n', '  f1      942']
    """
    table = [head, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = []
    for row in table:
        words = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append(("  " + "  ".join(words[:n_left] + numbers[n_left:])).rstrip())
    return lines


def write_study(study: Study, out: Path) -> list[Path]:
    """Write tables, plots and, last, report.json; return their paths.

    ``correlations.parquet`` and ``comparisons.parquet`` are always there; the other tables where
    they were asked for.
    """
    check_out(out)
    for old in _earlier(out):
        delete(old)
    paths = []
    for name in TABLES:
        table = study.frame(name)
        if table.height or name in ("correlations", "comparisons"):
            paths.append(out / f"{name}.parquet")
            with writer(paths[-1]) as file:
                table.write_parquet(file)
    paths += _write_plots(study, out)
    paths.append(out / "report.json")
    write_json(paths[-1], study_content(study))
    return paths


def check_out(out: Path) -> None:
    """Raise ConfigError if a study cannot be written there, or a run's files lie there."""
    if (out / "run.json").exists():
        raise ConfigError(
            f"--out {out} holds the scores of a run: its report.json would be replaced; choose "
            "another folder"
        )
    for folder in (out, *out.parents):
        if folder.exists():
            if not folder.is_dir():
                raise ConfigError(f"--out {out}: {folder} is a file, a folder is needed")
            return


def _earlier(out: Path) -> list[Path]:
    """Return what an earlier study wrote: beside a new report it would seem to be its own."""
    names = [*(f"{name}.parquet" for name in TABLES), "correlations.png", "report.json"]
    plots = list(out.glob("distributions.png")) + list(out.glob("distributions_[0-9]*.png"))
    return [path for path in (out / name for name in names) if path.is_file()] + plots


def study_content(study: Study) -> dict[str, Any]:
    """Return a study as plain data: request, notes, all records, environment."""
    # Imported here: it brings all of scoring along, which nothing else in a study needs.
    from qaeval_core.signature import environment

    content = environment()
    for package in _PACKAGES:
        try:
            content["packages"][package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "request": asdict(study.request),
        "rows": study.n_rows,
        "metrics": study.metrics,
        "notes": study.notes,
        **{name: study.frame(name).to_dicts() for name in TABLES},
        "environment": content,
    }


def _write_plots(study: Study, out: Path) -> list[Path]:
    path = out / "correlations.png"
    plot_correlations(study.of("correlations"), path)
    paths = [path]
    for i, (name, ratings) in enumerate(study.ratings.items()):
        # The first has the plain name: most studies have one.
        own = out / ("distributions.png" if i == 0 else f"distributions_{i + 1}.png")
        plot_distributions(study.scores, ratings, name=name, path=own)
        paths.append(own)
    return paths
