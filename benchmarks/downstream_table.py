"""Table of the downstream benchmark: means and spreads over seeds, and differences in pairs.

Results in, numbers and Markdown out; nothing is trained here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.spoiled_questions import CLEAN, KINDS
from qaeval_core.stats.bootstrap import bootstrap, percentile_interval

BASE = "base"
RANKED = ("roundtrip", "qrelscore", "learned")
CONDITIONS = ("unfiltered", "random", *RANKED, "oracle")
_N_RESAMPLES = 1000


def mean_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation (n - 1) of a number over seeds; NaN for one seed.

    Examples
    --------
    >>> mean_spread([0.5, 0.7, 0.6])
    (0.6, 0.1)
    """
    mean = float(np.mean(values))
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
    return round(mean, 12), round(spread, 12)


def difference(
    runs: Mapping[int, Mapping[str, Any]], left: str, right: str, *, passages: NDArray[np.intp]
) -> dict[str, Any]:
    """Return F1 of one condition less another's: over seeds, and an interval over C's passages."""
    per_seed = [own[left]["f1"] - own[right]["f1"] for own in runs.values()]
    rows = np.mean(
        [np.subtract(own[left]["rows"]["f1"], own[right]["rows"]["f1"]) for own in runs.values()],
        axis=0,
    )
    drawn = bootstrap(
        lambda weights: rows @ weights / weights.sum(axis=0),
        len(rows), n_resamples=_N_RESAMPLES, seed=0, clusters=passages,
    )  # fmt: skip
    interval = percentile_interval(drawn)
    mean, spread = mean_spread(per_seed)
    return {"mean": mean, "spread": spread, "interval": [interval.low, interval.high]}


def _done(runs: Mapping[int, Mapping[str, Any]]) -> list[str]:
    return [name for name in CONDITIONS if all(name in own for own in runs.values())]


def summarize(found: Mapping[str, Any], *, contexts: NDArray[Any]) -> dict[str, Any]:
    """Return means, spreads and differences of the conditions that all seeds have.

    Parameters
    ----------
    found : dict
        Results of the reader of A, and of each seed and condition.
    contexts : ndarray of str
        Passages of C's questions; intervals draw whole passages.
    """
    runs = found["seeds"]
    passages = np.unique(contexts, return_inverse=True)[1]
    summary: dict[str, Any] = {BASE: {"em": found[BASE]["em"], "f1": found[BASE]["f1"]}}
    for condition in _done(runs):
        own = [by_condition[condition] for by_condition in runs.values()]
        summary[condition] = {
            name: mean_spread([one[name] for one in own])
            for name in ("em", "f1", "share_clean", "auc")
            if name in own[0]
        }
        # What a page says of one seed, or of one kind of row, must be found in the record.
        summary[condition]["by_seed"] = {name: [one[name] for one in own] for name in ("em", "f1")}
        if "kept" in own[0]:
            summary[condition]["kept"] = {
                kind: [one["kept"][kind] for one in own] for kind in (CLEAN, *KINDS)
            }
        if "auc_by_kind" in own[0]:
            summary[condition]["auc_by_kind"] = {
                kind: mean_spread([one["auc_by_kind"][kind] for one in own]) for kind in KINDS
            }
            summary[condition]["held_labels"] = [one["held_labels"] for one in own]
        for other in ("unfiltered", "random"):
            if other != condition and other in _done(runs):
                summary[condition][f"less_{other}"] = difference(
                    runs, condition, other, passages=passages
                )
    return summary


def table(summary: Mapping[str, Any], *, n_seeds: int) -> str:
    """Return the summary as a table of Markdown, in percent."""

    def shown(value: Sequence[float] | None) -> str:
        return "" if value is None else f"{100 * value[0]:.1f} ± {100 * value[1]:.1f}"

    lines = [
        f"| trained further on | EM | F1 | clean | AUC | F1 less random ({n_seeds} seeds) |",
        "| --- | --- | --- | --- | --- | --- |",
        f"| nothing | {100 * summary[BASE]['em']:.1f} | {100 * summary[BASE]['f1']:.1f} | | | |",
    ]
    for condition in (name for name in CONDITIONS if name in summary):
        own = summary[condition]
        less = own.get("less_random")
        low, high = (100 * end for end in less["interval"]) if less else (0.0, 0.0)
        gain = f"{100 * less['mean']:+.1f} [{low:+.1f}, {high:+.1f}]" if less else ""
        cells = [shown(own[name]) for name in ("em", "f1", "share_clean")]
        area = own.get("auc") if condition in RANKED else None
        cells += [f"{area[0]:.3f} ± {area[1]:.3f}" if area else "", gain]
        lines.append(f"| {condition} | {' | '.join(cells)} |")
    return "\n".join(lines)
