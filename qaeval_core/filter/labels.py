"""Labels: which rows people found good, and a sheet of rows for them to judge.

A sheet is a simple random sample of the rows that a filter could keep, so that a certificate holds;
scores are not on it, for they would tell the judge what to find. It has the first rows of an order
that ids and the seed decide, so that labels can be told to be of one, or of another filter's.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kstest

from qaeval_core.errors import ConfigError, SchemaError
from qaeval_core.filter.decide import CorpusRows
from qaeval_core.filter.facts import KEPT
from qaeval_core.storage.path import StoragePath
from qaeval_core.tables.conditions import binary_labels
from qaeval_core.tables.score_tables import read_keyed

LABEL_COLUMN = "good"
SHEET_NAME = "label_sheet.csv"
# What spreadsheets take for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_ESCAPE = "'"
_SAMPLE_SALT = np.uint64(0x9E3779B97F4A7C15)
_STEP = 1 << 20
_CHANCE = 1e-6
# Of labels beside a sheet's that do no harm.
_SHARE_OF_OTHERS = 0.1
N_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Labels:
    """Labeled ids, and which are good; ids of a table's rows that have no label."""

    is_good: Mapping[str, bool]
    blank: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.is_good)


@dataclass(frozen=True, slots=True)
class LabeledRows:
    """Labeled rows of a corpus; arrays of shape (n_labels,), ``rows`` ascending.

    ``drawn`` are all rows that the table of labels has, blank ones and those of the learning half
    as well, ascending.
    """

    rows: NDArray[np.int64]
    is_good: NDArray[np.bool_]
    drawn: NDArray[np.int64]


def read_labels(path: str, expression: str) -> Labels:
    """Return the labels of a table with a column ``id``.

    Raises
    ------
    UnreadableFileError, SchemaError, ConfigError
        If there is no such table or column, an id stands there twice, or the label is neither a
        column of 0 and 1 nor a condition.
    """
    frame, _ = read_keyed(path, "id")
    ids = [_without_escape(text) for text in frame["id"].to_list()]
    values = binary_labels(frame, expression, "--label")
    is_labeled = ~np.isnan(values)
    labeled = zip(ids, values, is_labeled, strict=True)
    good = {name: bool(value) for name, value, is_known in labeled if is_known}
    if not good:
        raise ConfigError(f"{path}: no row has a label by {expression!r}")
    blank = (name for name, is_known in zip(ids, is_labeled, strict=True) if not is_known)
    return Labels(good, tuple(blank))


def labeled_rows(labels: Labels, found: Iterable[tuple[int, str]], path: str) -> LabeledRows:
    """Return the rows that labels name.

    Parameters
    ----------
    found : iterable of (row, id)
        All rows of labeled ids, and of blank ones.
    path : str
        Of the labels, for messages.

    Raises
    ------
    SchemaError
        If a labeled id is of no row, or of several.
    """
    every = sorted(found)
    pairs = [pair for pair in every if pair[1] in labels.is_good]
    times = Counter(name for _, name in pairs)
    if missing := sorted(set(labels.is_good) - set(times)):
        raise SchemaError(
            f"{path}: {len(missing):,} of {len(labels):,} labeled ids are of no row, such as "
            f"{', '.join(map(repr, missing[:N_SHOWN]))}"
        )
    if twice := sorted(name for name, n in times.items() if n > 1):
        raise SchemaError(
            f"{path}: {len(twice):,} labeled ids are of several rows, such as "
            f"{', '.join(map(repr, twice[:N_SHOWN]))}"
        )
    return LabeledRows(
        np.array([row for row, _ in pairs], np.int64),
        np.array([labels.is_good[name] for _, name in pairs], dtype=bool),
        np.array([row for row, _ in every], np.int64),
    )


def sample_rows(rows: CorpusRows, n: int) -> NDArray[np.intp]:
    """Return a simple random sample of the rows that are left, ascending; all if they are fewer."""
    return np.sort(_first_rows(rows, n))


def _first_rows(rows: CorpusRows, n: int) -> NDArray[np.intp]:
    """Return the rows that are left and come first in a sheet's order.

    The hashes of ids decide, mixed: the order that breaks ties would favor what is kept.
    """
    best: NDArray[np.intp] = np.zeros(0, np.intp)
    for start in range(0, len(rows), _STEP):
        own = slice(start, min(start + _STEP, len(rows)))
        best = np.concatenate([best, start + np.flatnonzero(rows.is_eligible(own))])
        best = best[np.lexsort([best, _mixed(rows.tie[best])])][:n]
    return best


def _n_in_order(rows: CorpusRows, chosen: NDArray[np.int64]) -> tuple[int, int]:
    """Return how many of some rows are left, and how many of these come first of all that are."""
    left = chosen[rows.reason[chosen] == KEPT]
    left = left[np.lexsort([left, _mixed(rows.tie[left])])]
    n = len(left)
    differ = np.flatnonzero(left != _first_rows(rows, n))
    return n, int(differ[0]) if len(differ) else n


def is_sheet(rows: CorpusRows, chosen: NDArray[np.int64]) -> bool:
    """Return whether some rows are a simple random sample by a sheet's order.

    They are if those that could be kept are the first ones of all that could be: the sheet was
    drawn from these, or from more. Call it before the last stage. What is left blank may have been
    left for a reason, so that labels of a part of a sheet are none.
    """
    n, n_in_order = _n_in_order(rows, chosen)
    return n == n_in_order


def is_other_sheet(rows: CorpusRows, drawn: NDArray[np.int64]) -> bool:
    """Return whether a table of labels is a sheet that says nothing of the rows that are left.

    Then its rows were drawn by the same order, and are too early in it to have been drawn by any
    other means but for a chance of one in a million; but rows before them are not among them: what
    was drawn from was left by another rank or other options, or a part of the sheet is gone. Labels
    beside a sheet's, up to a tenth of all, do not count.
    """
    n, n_in_order = _n_in_order(rows, drawn)
    if n_in_order >= n * (1 - _SHARE_OF_OTHERS):
        return False
    # From 0 to 1, spread evenly unless the order has drawn them.
    places = _mixed(rows.tie[drawn]) / 2.0**64
    chances = places.max() ** len(places), kstest(places, "uniform", alternative="greater").pvalue
    return bool(min(chances) < _CHANCE)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a permutation of 64-bit numbers: the finalizer of splitmix64 (Steele et al. 2014)."""
    mixed = values + _SAMPLE_SALT
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def sheet_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Return a table to label as CSV.

    Parameters
    ----------
    rows : sequence of mappings
        ``id`` and the texts that a judge must see.

    Examples
    --------
    >>> print(sheet_text([{"id": "q1", "question": "=SUM(A1)"}]), end="")
    "id","good","question"
    "q1","","'=SUM(A1)"
    """
    names = [name for name in rows[0] if name != "id"] if rows else []
    sink = io.StringIO()
    writer = csv.writer(sink, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(["id", LABEL_COLUMN, *names])
    for row in rows:
        texts = [_cell(row[name]) for name in names]
        writer.writerow([_cell(row["id"]), "", *texts])
    return sink.getvalue()


def _cell(value: object) -> str:
    text = "\n\n".join(map(str, value)) if isinstance(value, list) else str(value or "")
    return _ESCAPE + text if _is_formula(text) else text


def _is_formula(text: str) -> bool:
    # What looks like an escaped one is escaped again, so that it comes back as it was.
    return text.lstrip(_ESCAPE).startswith(_FORMULA)


def _without_escape(text: str) -> str:
    is_escaped = text.startswith(_ESCAPE) and _is_formula(text)
    return text[1:] if is_escaped else text


def check_same_sheet(path: StoragePath, content: str) -> None:
    """Raise ConfigError if the sheet that lies there is another one."""
    if path.read_text(encoding="utf-8-sig") == content:
        return
    raise ConfigError(
        f"{path} is there already, and may hold labels: move it, or name another --to"
    )
