"""Summary: what pages show of all joined scores, counted as they are joined, a part at a time.

Three things, each of which adds up over parts: the profile that audits use, whose clusters are the
ids here; means by the values of carried columns; and the rows of lowest and highest score, by their
places alone. No text of a row is kept, and memory does not grow with rows.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from qaeval_core.pages.example_rows import MAX_EXAMPLES
from qaeval_core.planning.run_plan import CompiledRun
from qaeval_core.profile.cells import N_EQUAL, Cells
from qaeval_core.profile.run_profile import RunProfile
from qaeval_core.profile.slices import MAX_VALUES, Slices
from qaeval_core.schema import NOT_SAMPLED, QUARANTINE_REASON, is_text
from qaeval_core.text.column_hashes import text_of

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_MAX_VALUE_CHARS = 80  # a column of longer values is text, not a name of slices
_MAX_EXPONENT = 1000
# Cells are no narrower than this share of the largest value: a column of one value has some width.
_LEAST_WIDTH = 2.0**-30


@dataclass(frozen=True, slots=True)
class Example:
    """Where a row of some score is."""

    value: float
    file: str
    row: int
    id: str | None


@dataclass(slots=True)
class SliceMeans:
    """Means of columns by the values of one carried column.

    Attributes
    ----------
    rows : dict of value to int
    moments : dict of value to float ndarray of shape (3, n_columns)
        Number, mean, and sum of squares about it; None where a value is null.
    """

    rows: dict[str | None, int] = field(default_factory=dict)
    moments: dict[str | None, FloatArray] = field(default_factory=dict)

    def add(self, other: SliceMeans) -> None:
        """Add what was counted of other rows."""
        for value, own in other.moments.items():
            self.rows[value] = self.rows.get(value, 0) + other.rows[value]
            self.moments[value] = added(self.moments[value], own) if value in self.moments else own


class Overview:
    """What pages show of rows; of none at first.

    Parameters
    ----------
    ranges : mapping of score column to (low, high)
        What metrics say of them; None where that is not known.
    reasons : mapping of score column to the column that says why it is undefined
    signatures : mapping of score column to signature
    by : sequence of str
        Carried columns whose values may be slices.
    """

    def __init__(
        self,
        ranges: Mapping[str, tuple[float | None, float | None]],
        *,
        reasons: Mapping[str, str],
        signatures: Mapping[str, str],
        by: Sequence[str],
    ) -> None:
        self._ranges, self._reasons, self._signatures = ranges, reasons, signatures
        fixed = {name: _is_bounded(own) for name, own in ranges.items()}
        self._grows = {name: not is_fixed for name, is_fixed in fixed.items()}
        self._data = dict.fromkeys(ranges, (math.inf, -math.inf))
        cells = {
            name: Cells(*map(float, own)) if fixed[name] else Cells(0.0, 1.0)  # type: ignore[arg-type]
            for name, own in ranges.items()
        }
        self.profile = RunProfile.of(
            cells, Slices({}), signatures=signatures, ranges=ranges, cluster="id"
        )
        self.slices: dict[str, SliceMeans | None] = {name: SliceMeans() for name in by}
        self.lowest: dict[str, list[Example]] = {name: [] for name in ranges}
        self.highest: dict[str, list[Example]] = {name: [] for name in ranges}

    @classmethod
    def of_run(cls, run: CompiledRun, *, by: Sequence[str]) -> Overview:
        """Return the overview of a run of no rows yet."""
        plans = [
            (plan.column(own.name), plan, own.name)
            for plan in run.instances
            for own in plan.columns
            if own.is_score
        ]
        return cls(
            {
                name: (plan.metric.low, plan.metric.high) if output == "" else (None, None)
                for name, plan, output in plans
            },
            reasons={name: plan.reason_column for name, plan, _ in plans},
            signatures={name: str(plan.signature) for name, plan, _ in plans},
            by=by,
        )

    def empty(self) -> Overview:
        """Return one of no rows, to count a part in."""
        return Overview(
            self._ranges,
            reasons=self._reasons,
            signatures=self._signatures,
            by=[name for name, own in self.slices.items() if own is not None],
        )

    def count(self, rows: pa.Table, ids: NDArray[np.uint64], *, file: str, first_row: int) -> None:
        """Count joined rows.

        Parameters
        ----------
        rows : pyarrow.Table
            As they are written: id, carried columns, scores and reasons.
        ids : uint64 ndarray of shape (n_rows,)
            Hashes of the ids.
        file : str
            Name of their file.
        first_row : int
            Number of the first of them in it.
        """
        values = {name: rows.column(name).to_numpy().astype(np.float64) for name in self._ranges}
        for name, own in values.items():
            self._grow(name, *_finite_range(own))
        self._count_examples(rows, values, file=file, first_row=first_row)
        why = rows.column(QUARANTINE_REASON)
        sampled = np.asarray(pc.not_equal(why, NOT_SAMPLED).fill_null(True))
        if not sampled.all():
            rows, ids = rows.filter(pa.array(sampled)), ids[sampled]
            values = {name: own[sampled] for name, own in values.items()}
        self.profile.add(
            values,
            ids,
            reasons={name: rows.column(self._reasons[name]) for name in values},
            is_scored=rows.column(QUARANTINE_REASON).is_null().to_numpy(),
        )
        self._count_slices(rows, values)

    def add(self, other: Overview) -> None:
        """Add what was counted of other rows of the same run."""
        for name in self._ranges:
            self._grow(name, *other._data[name])
            other._grow(name, *self._data[name])
            self.lowest[name] = _least(self.lowest[name] + other.lowest[name])
            self.highest[name] = _most(self.highest[name] + other.highest[name])
        self.profile.merge(other.profile)
        for name, own in self.slices.items():
            theirs = other.slices.get(name)
            if own is None or theirs is None or len(own.rows | theirs.rows) > MAX_VALUES:
                self.slices[name] = None
            else:
                own.add(theirs)

    def _grow(self, name: str, low: float, high: float) -> None:
        """Let the cells of a column reach over more values, if they may."""
        before = self._data[name]
        own = self._data[name] = (min(before[0], low), max(before[1], high))
        if not self._grows[name] or own == before:
            return
        profile, cells = self.profile.columns[name], dyadic_cells(*own)
        if profile.cells != cells:
            self.profile.columns[name] = profile.recounted(cells)

    def _count_slices(self, rows: pa.Table, values: Mapping[str, FloatArray]) -> None:
        matrix = np.stack(list(values.values())) if values else np.empty((0, rows.num_rows))
        for name, own in self.slices.items():
            if own is None:
                continue
            found = _sliced(rows.column(name), matrix)
            if found is None or len(own.rows | found.rows) > MAX_VALUES:
                self.slices[name] = None
            else:
                own.add(found)

    def _count_examples(
        self, table: pa.Table, values: Mapping[str, FloatArray], *, file: str, first_row: int
    ) -> None:
        ids = table.column("id")

        def examples(own: FloatArray, rows: NDArray[np.intp]) -> list[Example]:
            return [
                Example(float(own[row]), file, first_row + row, text_of(ids[row]))
                for row in rows.tolist()
            ]

        for name, own in values.items():
            low, high = self.lowest[name], self.highest[name]
            least = _first_rows(own, low[-1].value if len(low) == MAX_EXAMPLES else math.inf)
            most = _first_rows(-own, -high[-1].value if len(high) == MAX_EXAMPLES else math.inf)
            self.lowest[name] = _least(low + examples(own, least))
            self.highest[name] = _most(high + examples(own, most))

    def content(self) -> dict[str, Any]:
        """Return means by slice, and places of examples, as plain data.

        A column of more than 50 values has no slices.
        """
        return {
            "slices": {
                by: None if own is None else [self._slice(value, own) for value in _ordered(own)]
                for by, own in self.slices.items()
            },
            "examples": {
                name: {
                    "lowest": [_place(own) for own in self.lowest[name]],
                    "highest": [_place(own) for own in self.highest[name]],
                }
                for name in self._ranges
            },
        }

    def _slice(self, value: str | None, own: SliceMeans) -> dict[str, Any]:
        columns = {name: _mean(*own.moments[value][:, i]) for i, name in enumerate(self._ranges)}
        return {"value": value, "rows": own.rows[value], "columns": columns}


def dyadic_cells(low: float, high: float) -> Cells:
    """Return cells over a range whose edges are multiples of a power of two.

    Edges of wider cells are edges of narrower ones too: what was counted in these can be counted
    in those, exactly.

    Examples
    --------
    >>> cells = dyadic_cells(0.0, 100.0)
    >>> cells.low, cells.width
    (0.0, 0.25)
    """
    largest = max(abs(low), abs(high))
    least = max(largest * _LEAST_WIDTH, (high - low) / N_EQUAL, _LEAST_WIDTH**2)
    width = 2.0 ** math.ceil(math.log2(least))
    while (start := math.floor(low / width) * width) + N_EQUAL * width < high:
        width *= 2.0
    return Cells(start, start + N_EQUAL * width)


def added(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return number, mean and sum of squares about it of two sets of values together.

    Chan, Golub, LeVeque. Updating Formulae and a Pairwise Algorithm for Computing Sample Variances.
    COMPSTAT 1982.

    Examples
    --------
    >>> added(np.array([1.0, 2.0, 0.0]), np.array([1.0, 4.0, 0.0])).tolist()
    [2.0, 3.0, 2.0]
    """
    with np.errstate(invalid="ignore", over="ignore"):
        n = first[0] + second[0]
        share = second[0] / np.maximum(n, 1)
        gap = second[1] - first[1]
        return np.stack(
            [n, first[1] + gap * share, first[2] + second[2] + gap**2 * first[0] * share]
        )


def _sliced(column: pa.ChunkedArray, matrix: FloatArray) -> SliceMeans | None:
    """Return the means of some rows by value; None where values are no names of slices."""
    values = _names(column)
    if values is None:
        return None
    coded = values.dictionary_encode(null_encoding="encode").combine_chunks()
    names = coded.dictionary.to_pylist()
    if len(names) > MAX_VALUES or any(len(name or "") > _MAX_VALUE_CHARS for name in names):
        return None
    codes = coded.indices.to_numpy()
    return SliceMeans(
        dict(zip(names, np.bincount(codes, minlength=len(names)).tolist(), strict=True)),
        {name: _moments(matrix[:, codes == i]) for i, name in enumerate(names)},
    )


def _names(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return values as texts; None where their type has no few values."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _names(column.cast(kind.value_type))
    types = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_date)
    if not is_text(kind) and not any(check(kind) for check in types):
        return None
    return column.cast(pa.string())


def _moments(values: FloatArray) -> FloatArray:
    """Return number, mean and sum of squares about it of each line; NaN is left out."""
    is_there = ~np.isnan(values)
    n = is_there.sum(axis=1).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.where(is_there, values, 0.0).sum(axis=1) / np.maximum(n, 1)
        squares = np.where(is_there, values - mean[:, None], 0.0) ** 2
    return np.stack([n, mean, squares.sum(axis=1)])


def _mean(n: float, mean: float, squares: float) -> dict[str, Any]:
    """Return a mean with Student's interval; None where it is not known."""
    interval = None
    if n > 1 and 0 < squares < math.inf:
        from scipy import stats  # Imported here: it takes half a second that few commands need.

        half = float(stats.t.ppf(0.975, n - 1)) * math.sqrt(squares / (n - 1) / n)
        interval = [mean - half, mean + half]
    is_known = n > 0 and math.isfinite(mean)
    return {"n": int(n), "mean": float(mean) if is_known else None, "interval_95": interval}


def _ordered(own: SliceMeans) -> list[str | None]:
    return sorted(own.rows, key=lambda value: (-own.rows[value], value is None, value or ""))


def _first_rows(values: FloatArray, limit: float) -> NDArray[np.intp]:
    """Return the rows of the lowest values below a limit, of equal ones the first."""
    rows = np.flatnonzero(values < limit if limit < math.inf else ~np.isnan(values))
    if len(rows) > MAX_EXAMPLES:
        cut = np.partition(values[rows], MAX_EXAMPLES - 1)[MAX_EXAMPLES - 1]
        below, equal = rows[values[rows] < cut], rows[values[rows] == cut]
        rows = np.concatenate([below, equal[: MAX_EXAMPLES - len(below)]])
    return np.sort(rows)


def _least(examples: Sequence[Example]) -> list[Example]:
    return heapq.nsmallest(MAX_EXAMPLES, examples, key=lambda own: own.value)


def _most(examples: Sequence[Example]) -> list[Example]:
    return heapq.nlargest(MAX_EXAMPLES, examples, key=lambda own: own.value)


def _place(own: Example) -> dict[str, Any]:
    value = own.value if math.isfinite(own.value) else None
    return {"value": value, "file": own.file, "row": own.row, "id": own.id}


def _is_bounded(own: tuple[float | None, float | None]) -> bool:
    low, high = own
    return low is not None and high is not None and math.isfinite(low) and math.isfinite(high)


def _finite_range(values: FloatArray) -> tuple[float, float]:
    finite = values[np.abs(values) < 2.0**_MAX_EXPONENT]
    return (float(finite.min()), float(finite.max())) if len(finite) else (math.inf, -math.inf)
