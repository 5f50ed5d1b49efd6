"""Labels: which rows people found good, and a sheet of rows for them to judge.

A sheet is a simple random sample of the rows that a filter could keep, so that a certificate holds;
scores are not on it, for they would tell the judge what to find. It has the first rows of an order
that ids and the seed decide, in that order: its first rows are a smaller sheet, and labels can be
told to be of one, or of another filter's.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError, QAEvalError, SchemaError
from qaeval_core.filter.corpus_rows import CorpusRows
from qaeval_core.filter.order import mixed, rank_keys
from qaeval_core.filter.request import FilterRequest
from qaeval_core.planning.text_files.sheets import decimal_comma
from qaeval_core.storage.path import StoragePath
from qaeval_core.tables.conditions import binary_labels
from qaeval_core.tables.score_tables import read_keyed

LABEL_COLUMN = "good"
SHEET_NAME = "label_sheet.csv"
# Beside the sheet that told where to draw it.
SECOND_SHEET_NAME = "label_sheet_best.csv"
# Of each sheet: the page that labels it, and the table that the page hands out.
PAGE_NAMES = {
    SHEET_NAME: ("label.html", "labels.csv"),
    SECOND_SHEET_NAME: ("label_best.html", "labels_best.csv"),
}
SHEET_FILES = {*PAGE_NAMES, *(name for names in PAGE_NAMES.values() for name in names)}
# What spreadsheets take for a formula, in full width too; some trim what cannot be seen first.
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
_UNSEEN = "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
# Signs that turn the direction of reading, or hold it, until another one.
_TURNS = re.compile("[\u202a-\u202e\u2066-\u2069]")
_ESCAPE = "'"
_SALT = 0x9E3779B97F4A7C15
# Of a second sheet: what the first one drew has chosen where it is drawn, and must not be on it for
# that reason.
_SECOND_SALT = 0xD1B54A32D192ED03
_STEP = 1 << 20
_CHANCE = 1e-6
# Of labels beside a sheet's that do no harm.
_SHARE_OF_OTHERS = 0.1
N_SHOWN = 5
_N_LISTED = 50  # of labels that differ


@dataclass(frozen=True, slots=True)
class Labels:
    """Labeled ids, and which are good; ids of a table's rows that have no label.

    ``differ`` are the ids that tables do not agree on: they count as bad.
    """

    is_good: Mapping[str, bool]
    blank: tuple[str, ...] = ()
    differ: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.is_good)


@dataclass(frozen=True, slots=True)
class LabeledRows:
    """Rows of a corpus that a table of labels names; arrays of shape (n_labels,).

    ``rows`` are ascending; ``is_good`` is False of blank ones.
    """

    rows: NDArray[np.int64]
    ids: NDArray[np.object_]
    is_good: NDArray[np.bool_]
    is_blank: NDArray[np.bool_]

    def take(self, chosen: NDArray[np.bool_]) -> LabeledRows:
        """Return some of them."""
        return LabeledRows(
            self.rows[chosen], self.ids[chosen], self.is_good[chosen], self.is_blank[chosen]
        )


def read_labels(path: str, expression: str | None = None, *, encoding: str | None = None) -> Labels:
    """Return the labels of a table with a column ``id``.

    Parameters
    ----------
    expression : str, optional
        The column or condition that says which rows are good; default ``good``, as on our sheets.
    encoding : str, optional
        Of a file of text.

    Raises
    ------
    UnreadableFileError, SchemaError, ConfigError
        If there is no such table or column, an id stands there twice, or the label is neither a
        column of 0 and 1 nor a condition.
    """
    frame, _ = read_keyed(path, "id", encoding=encoding)
    frame = frame.with_columns(_numbers_of(frame[name]) for name in frame.columns if name != "id")
    if expression is None and LABEL_COLUMN not in frame.columns:
        names = ", ".join(name for name in frame.columns if name != "id")
        raise SchemaError(
            f"{path}: no column {LABEL_COLUMN!r}; name one with --label: {names} [QA0305]"
        )
    expression = expression or LABEL_COLUMN
    ids = [_without_escape(text) for text in frame["id"].to_list()]
    try:
        values = binary_labels(frame, expression, "--label")
    except QAEvalError as error:
        raise _with_row(error, frame, expression, path) from None
    is_labeled = ~np.isnan(values)
    labeled = zip(ids, values, is_labeled, strict=True)
    good = {name: bool(value) for name, value, is_known in labeled if is_known}
    if not good:
        raise ConfigError(f"{path}: no row has a label under {expression!r} [QA0315]")
    blank = (name for name, is_known in zip(ids, is_labeled, strict=True) if not is_known)
    return Labels(good, tuple(blank))


def labels_of(request: FilterRequest) -> Labels:
    """Return the labels of a request's tables, of which each may be another rater's.

    What one of them leaves blank the others say. Where they differ the row is not good: one bad
    row that is kept does more harm than a good one that is dropped.

    Raises
    ------
    UnreadableFileError, SchemaError, ConfigError
        As `read_labels` does.
    """
    read = partial(read_labels, expression=request.label, encoding=request.encoding)
    tables = [read(path) for path in request.label_files]
    good: dict[str, bool] = {}
    blank, differ = [], []
    for name in dict.fromkeys(name for own in tables for name in (*own.is_good, *own.blank)):
        said = {own.is_good[name] for own in tables if name in own.is_good}
        if said:
            good[name] = said == {True}
        else:
            blank.append(name)
        if len(said) > 1:
            differ.append(name)
    return Labels(good, tuple(blank), tuple(differ))


def differ_lines(labels: Labels) -> Iterator[str]:
    """Yield what tables of labels do not agree on, if anything."""
    if labels.differ:
        names, more = ", ".join(labels.differ[:_N_LISTED]), len(labels.differ) - _N_LISTED
        yield (
            f"raters differ on {len(labels.differ):,} of {len(labels):,} labels, which count as "
            f"bad until they agree: {names}" + (f" and {more:,} more" if more > 0 else "")
        )


def _numbers_of(column: pl.Series) -> pl.Series:
    """Return a column of texts as numbers, if all that is in it says one; blank cells are null."""
    if column.dtype != pl.String:
        return column
    texts = column.str.strip_chars().replace("", None)
    found = texts.cast(pl.Float64, strict=False)
    return found if found.null_count() == texts.null_count() else column


def _with_row(error: QAEvalError, frame: pl.DataFrame, expression: str, path: str) -> QAEvalError:
    """Return the error with the first row whose cell is no number among numbers, or no label."""
    for name in frame.columns:
        column = frame[name]
        if name == "id" or not re.search(rf"\b{re.escape(name)}\b", expression):
            continue
        if column.dtype == pl.String and not decimal_comma(column):
            texts = column.str.strip_chars().replace("", None)
            is_number = texts.cast(pl.Float64, strict=False).is_not_null()
            wrong = (texts.is_not_null() & ~is_number).arg_true()
            needed = "and a number is needed" if is_number.any() else ""
        elif name == expression and column.dtype.is_numeric():
            wrong = (column.is_not_null() & ~column.is_in([0, 1])).arg_true()
            needed = f"which is neither 0 nor 1; give a condition, such as '{name} >= 2'"
        else:
            continue
        if len(wrong) and needed:
            row = int(wrong[0])
            return ConfigError(
                f"{path}, row {row + 1:,} (id {frame['id'][row]!r}): column {name!r} holds "
                f"{column[row]!r}, {needed} [QA0315]"
            )
    return error


def labeled_rows(labels: Labels, found: Iterable[tuple[int, str]], path: str) -> LabeledRows:
    """Return the rows that a table of labels names.

    Parameters
    ----------
    found : iterable of (row, id)
        All rows of the table's ids.
    path : str
        Of the labels, for messages.

    Raises
    ------
    SchemaError
        If an id is of no row, or of several.
    """
    pairs = sorted(found)
    times = Counter(name for _, name in pairs)
    n_ids = len(labels) + len(labels.blank)
    if missing := sorted({*labels.is_good, *labels.blank} - set(times)):
        raise SchemaError(
            f"{path}: {len(missing):,} of {n_ids:,} ids belong to no row, such as "
            f"{', '.join(map(repr, missing[:N_SHOWN]))} [QA0313]"
        )
    if twice := sorted(name for name, n in times.items() if n > 1):
        raise SchemaError(
            f"{path}: {len(twice):,} ids belong to several rows, such as "
            f"{', '.join(map(repr, twice[:N_SHOWN]))} [QA0313]"
        )
    return LabeledRows(
        np.array([row for row, _ in pairs], np.int64),
        np.array([name for _, name in pairs], np.object_),
        np.array([labels.is_good.get(name, False) for _, name in pairs], dtype=bool),
        np.array([name not in labels.is_good for _, name in pairs], dtype=bool),
    )


class SheetOrder:
    """The order of a sheet over rows that could be kept: its first n are a simple random sample.

    The hashes of ids decide, mixed: the order that breaks ties would favor what is kept.

    Parameters
    ----------
    rows : CorpusRows
        With hashes of all ids.
    is_member : callable
        Takes a slice of rows and returns a bool ndarray: which of them could be on the sheet.
    is_second : bool
        Whether it is of a part of the ranking that another sheet has chosen.
    """

    def __init__(
        self,
        rows: CorpusRows,
        is_member: Callable[[slice], NDArray[np.bool_]],
        *,
        is_second: bool = False,
    ) -> None:
        self._tie, self._is_member = rows.tie, is_member
        self._salt = np.uint64(_SECOND_SALT if is_second else _SALT)

    def first(self, n: int) -> NDArray[np.intp]:
        """Return the first n rows of the order; all if they are fewer."""
        best: NDArray[np.intp] = np.zeros(0, np.intp)
        for start in range(0, len(self._tie), _STEP):
            own = slice(start, min(start + _STEP, len(self._tie)))
            best = np.concatenate([best, start + np.flatnonzero(self._is_member(own))])
            best = self.ordered(best)[:n]
        return best

    def ordered(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return some rows in this order, members or not."""
        return rows[np.lexsort([rows, self._mixed(rows)])]

    def is_sheet(self, chosen: NDArray[np.int64]) -> bool:
        """Return whether some rows are a simple random sample by this order.

        They are if the members among them are the first ones of all members: the sheet was drawn
        from these, or from more.
        """
        n, n_in_order = self._n_in_order(chosen)
        return n == n_in_order

    def is_other_sheet(self, chosen: NDArray[np.int64]) -> bool:
        """Return whether some rows are a sheet that says nothing of the members.

        Then its rows were drawn by the same order, and are too early in it to have been drawn by
        any other means but for a chance of one in a million; but rows before them are not among
        them: what was drawn from was left by another rank or other options, or a part of the sheet
        is gone. Rows beside a sheet's, up to a tenth of all, do not count.
        """
        n, n_in_order = self._n_in_order(chosen)
        if n_in_order >= n * (1 - _SHARE_OF_OTHERS):
            return False
        from scipy.stats import kstest  # Imported here: half a second that few commands need.

        # From 0 to 1, spread evenly unless the order has drawn them.
        places = self._mixed(chosen) / 2.0**64
        chances = (
            places.max() ** len(places),
            kstest(places, "uniform", alternative="greater").pvalue,
        )
        return bool(min(chances) < _CHANCE)

    def _n_in_order(self, chosen: NDArray[np.int64]) -> tuple[int, int]:
        """Return how many of some rows are members, and how many of these come first of all."""
        is_member = [bool(self._is_member(slice(row, row + 1))[0]) for row in chosen]
        left = self.ordered(chosen[np.array(is_member, dtype=bool)])
        n = len(left)
        differ = np.flatnonzero(left != self.first(n))
        return n, int(differ[0]) if len(differ) else n

    def _mixed(self, rows: NDArray[Any]) -> NDArray[np.uint64]:
        return mixed(self._tie[rows], self._salt)


class Spread(NamedTuple):
    """Where labels lie: the chance of so uneven a sample, and the best share that half are in."""

    p_value: float
    middle: float


def spread_of(
    rows: CorpusRows,
    labeled: NDArray[np.int64],
    is_member: Callable[[slice], NDArray[np.bool_]],
    *,
    n_independent: int | None = None,
) -> Spread:
    """Return how labels are spread over the ranking.

    The two-sided test of Kolmogorov and Smirnov: the share of labels above each rank value, against
    the share of members above it. Of a sample without replacement, and where ranks are equal, the
    chance is lower still.

    Parameters
    ----------
    labeled : int ndarray of shape (n_labels,)
        Members with labels.
    n_independent : int, optional
        Contexts, where these were labeled whole; default labels.
    """
    if not len(labeled):
        return Spread(1.0, 0.5)
    values, times = np.unique(rank_keys(rows.rank[labeled]), return_counts=True)
    counts = np.zeros(2 * len(values) + 1, np.int64)
    for start in range(0, len(rows), _STEP):
        own = slice(start, min(start + _STEP, len(rows)))
        keys = rank_keys(rows.rank[own][is_member(own)])
        place = np.searchsorted(values, keys)
        is_equal = values[np.minimum(place, len(values) - 1)] == keys
        counts += np.bincount(2 * place + (is_equal & (place < len(values))), minlength=len(counts))
    from scipy.stats import kstwo  # Imported here: half a second that few commands need.

    # Members that rank above a value, and those that rank as high.
    above, through = (np.cumsum(counts)[i:-1:2] / counts.sum() for i in (0, 1))
    labels = np.cumsum(times) / len(labeled)
    before = labels - times / len(labeled)
    distance = max(np.abs(labels - through).max(), np.abs(before - above).max())
    p_value = float(kstwo.sf(distance, n_independent or len(labeled)))
    return Spread(p_value, float(through[np.searchsorted(labels, 0.5)]))


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
        # An id comes back as it is; of a text, each sign must stand where it is read.
        texts = [_TURNS.sub(_notation, cell(row[name])) for name in names]
        writer.writerow([cell(row["id"]), "", *texts])
    return sink.getvalue()


def cell(value: object) -> str:
    """Return a value as a cell that no spreadsheet takes for a formula."""
    text = "\n\n".join(map(str, value)) if isinstance(value, list) else str(value or "")
    return _ESCAPE + text if _is_formula(text) else text


def _notation(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _is_formula(text: str) -> bool:
    # What looks like an escaped one is escaped again, so that it comes back as it was.
    inner = text.lstrip(_ESCAPE)
    seen = inner
    while seen and (seen[0].isspace() or seen[0] in _UNSEEN or _TURNS.match(seen)):
        seen = seen[1:]
    return inner.startswith(("\t", "\r", "\n")) or seen.startswith(_FORMULA)


def _without_escape(text: str) -> str:
    is_escaped = text.startswith(_ESCAPE) and _is_formula(text)
    return text[1:] if is_escaped else text


def check_same_sheet(path: StoragePath, content: str) -> None:
    """Raise ConfigError if the sheet that lies there is another one."""
    if path.read_text(encoding="utf-8-sig") == content:
        return
    raise ConfigError(f"{path} exists, and may hold labels; move it, or name another --to [QA0110]")
