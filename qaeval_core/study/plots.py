"""Plots: correlations with intervals, and scores by human rating, as PNG files.

Draws on figures of its own: no window system, no global state of matplotlib.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError
from qaeval_core.stats.correlation import COEFFICIENTS
from qaeval_core.study.records import ALL_ROWS, Statistic
from qaeval_core.terminal import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PANELS = 24
MAX_LEVELS = 10  # of a rating, before it is cut into bins
N_BINS = 5
_COLOURS = {"pearson": "#0072b2", "spearman": "#d55e00", "kendall": "#009e73"}
_MARKERS = {"pearson": "o", "spearman": "s", "kendall": "D"}


def check_matplotlib() -> None:
    """Raise ConfigError, saying what to install, if there is no matplotlib."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'qaeval[correlate]'") from None


def plot_correlations(records: Sequence[Statistic], path: Path) -> None:
    """Write one panel for each level, human column and subset; a row of it is a metric."""
    panels = [
        list(group)
        for _, group in itertools.groupby(records, lambda r: (r.human, r.subset, r.level))
    ]
    shown = panels[:MAX_PANELS]
    n_metrics = max(len(panel) for panel in shown) / len(COEFFICIENTS)
    figure, axes = _grid(
        len(shown), width=5.2, height=1.3 + 0.34 * n_metrics, n_columns=3, is_x_shared=True
    )
    for axis, panel in zip(axes, shown, strict=False):
        _correlation_panel(axis, panel)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    _save(figure, path, n_shown=len(shown), n_panels=len(panels))


def _correlation_panel(axis: Axes, records: Sequence[Statistic]) -> None:
    first = records[0]
    strength = {r.metric: r.strength for r in records if r.coefficient == "pearson"}
    metrics = sorted(strength, key=lambda name: strength[name])
    for shift, coefficient in zip((0.22, 0.0, -0.22), COEFFICIENTS, strict=True):
        own = [r for r in records if r.coefficient == coefficient and not np.isnan(r.value)]
        values = np.array([r.value for r in own], dtype=np.float64)
        edges = np.array([(r.value - r.low, r.high - r.value) for r in own], dtype=np.float64)
        # Draws have no interval. A percentile interval need not hold the value; a bar cannot have
        # negative length.
        bars = np.maximum(0.0, np.nan_to_num(edges.reshape(-1, 2).T))
        axis.errorbar(
            values,
            [metrics.index(r.metric) + shift for r in own],
            xerr=bars,
            fmt=_MARKERS[coefficient],
            color=_COLOURS[coefficient],
            markersize=3.5,
            linewidth=1,
            label=coefficient,
        )
    for record in records:
        if np.isnan(record.value) and record.coefficient == "pearson":
            reason = str(record.reason).replace("_", " ")
            axis.annotate(
                f"undefined: {reason}",
                (0, metrics.index(record.metric)),
                color="grey",
                fontsize=7,
                va="center",
            )
    rows = "all rows" if first.subset == ALL_ROWS else first.subset
    n = max(record.n for record in records)
    axis.axvline(0, color="grey", linewidth=0.6)
    axis.set_yticks(range(len(metrics)), [visible(name) for name in metrics], fontsize=8)
    axis.set_ylim(-0.6, len(metrics) - 0.4)
    named, rows = visible(first.human), visible(rows)
    axis.set_title(f"{named}, {first.level} level\n{rows}, n up to {n:,}", fontsize=9)
    axis.tick_params(axis="x", labelsize=8, labelbottom=True)
    axis.grid(axis="x", linewidth=0.3)


def plot_distributions(
    scores: dict[str, NDArray[np.float64]], human: NDArray[np.float64], *, name: str, path: Path
) -> None:
    """Write one panel for each metric: its scores at each rating, as boxes with their medians.

    Parameters
    ----------
    scores : dict of metric to float ndarray of shape (n_rows,)
    human : float ndarray of shape (n_rows,)
        More than ``MAX_LEVELS`` different ratings are cut into ``N_BINS`` bins of equal width.
    name : str
        Of the human column.
    """
    labels, groups = rating_groups(human)
    shown = dict(itertools.islice(scores.items(), MAX_PANELS))
    figure, axes = _grid(len(shown), width=4.0, height=2.9, n_columns=3)
    for axis, (metric, values) in zip(axes, shown.items(), strict=False):
        boxes = [values[rows & ~np.isnan(values)] for rows in groups]
        if boxes:
            axis.boxplot(
                boxes,
                widths=0.6,
                showmeans=True,
                flierprops={"markersize": 2, "alpha": 0.4},
                medianprops={"color": _COLOURS["spearman"]},
                meanprops={
                    "markersize": 4,
                    "markerfacecolor": _COLOURS["pearson"],
                    "markeredgecolor": _COLOURS["pearson"],
                },
            )
        ticks = [f"{label}\nn {len(box):,}" for label, box in zip(labels, boxes, strict=True)]
        axis.set_xticks(range(1, len(ticks) + 1), ticks, fontsize=7)
        axis.set_title(visible(metric), fontsize=9)
        axis.tick_params(axis="y", labelsize=8)
        axis.grid(axis="y", linewidth=0.3)
    figure.supxlabel(f"{visible(name)} (line: median, triangle: mean)", fontsize=9)
    _save(figure, path, n_shown=len(shown), n_panels=len(scores))


def rating_groups(
    human: NDArray[np.float64],
) -> tuple[list[str], list[NDArray[np.bool_]]]:
    """Return a label and the rows of each rating, or of each bin where there are many ratings.

    Examples
    --------
    >>> labels, groups = rating_groups(np.array([0.0, 2.0, np.nan, 0.0]))
    >>> labels, [rows.tolist() for rows in groups]
    (['0', '2'], [[True, False, False, True], [False, True, False, False]])
    >>> labels, groups = rating_groups(np.arange(101.0))
    >>> labels[0], labels[-1], [int(rows.sum()) for rows in groups]
    ('0 to 20', '80 to 100', [20, 20, 20, 20, 21])
    """
    levels = np.unique(human[~np.isnan(human)])
    if len(levels) <= MAX_LEVELS:
        return [f"{level:g}" for level in levels], [human == level for level in levels]
    edges = np.linspace(levels[0], levels[-1], N_BINS + 1)
    bins = np.clip(np.searchsorted(edges, human, side="right") - 1, 0, N_BINS - 1)
    labels = [f"{low:.3g} to {high:.3g}" for low, high in itertools.pairwise(edges)]
    defined = ~np.isnan(human)
    return labels, [defined & (bins == i) for i in range(N_BINS)]


def _grid(
    n_panels: int, *, width: float, height: float, n_columns: int, is_x_shared: bool = False
) -> tuple[Figure, list[Axes]]:
    check_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = max(1, min(n_columns, n_panels))
    rows = max(1, -(-n_panels // columns))
    figure = Figure(figsize=(width * columns, height * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharex=is_x_shared).ravel())
    for spare in axes[n_panels:]:
        spare.set_axis_off()
    return figure, axes


def _save(figure: Figure, path: Path, *, n_shown: int, n_panels: int) -> None:
    from matplotlib.text import Text

    if n_shown < n_panels:
        figure.suptitle(f"the first {n_shown} panels of {n_panels}", fontsize=9, x=0.01, ha="left")
    for text in figure.findobj(Text):
        # Names of columns are no mathematics: "$" begins a formula, and a broken one is an error.
        text.set_parse_math(False)
    with warnings.catch_warnings():
        # Of other scripts the font shows boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(path, dpi=130, bbox_inches="tight", pad_inches=0.15)
