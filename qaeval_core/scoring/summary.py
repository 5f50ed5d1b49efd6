"""Summary: what pages show of all joined scores, counted as they are joined, a part at a time.

Four things, each of which adds up over parts: the profile that audits use, which means and their
intervals come from; sums by the values of carried columns; the rows of lowest and highest score,
and the first rows without one for each reason, by their places alone. No text of a row is kept, and
memory does not grow with rows.
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

from qaeval_core.pages import MAX_EXAMPLES
from qaeval_core.planning.columns import ROWS
from qaeval_core.planning.run_plan import CompiledRun
from qaeval_core.profile.cells import N_EQUAL, Cells
from qaeval_core.profile.column_profile import N_SUM_BUCKETS
from qaeval_core.profile.run_profile import N_EXACT, RunProfile
from qaeval_core.profile.slices import MAX_VALUES, Slices
from qaeval_core.schema import NOT_SAMPLED, QUARANTINE_REASON, is_text
from qaeval_core.stats.mean_interval import NOT_FINITE, ValueRange, mean_interval
from qaeval_core.stats.value_counts import ValueCounts
from qaeval_core.text.column_hashes import text_of

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_MAX_VALUE_CHARS = 80  # a column of longer values is text, not a name of slices
_MAX_EXPONENT = 1000
_N_REASONED = 5  # rows kept of each reason
_MAX_REASONS = 20  # of a column
# Cells are no narrower than this share of the largest value: a column of one value has some width.
_LEAST_WIDTH = 2.0**-30


@dataclass(frozen=True, slots=True)
class Example:
    """Where a row of some score is; NaN where it has none."""

    value: float
    file: str
    row: int
    id: str | None


@dataclass(frozen=True, slots=True)
class Ends:
    """Lowest and highest of some finite values, and whether there are others between them."""

    lowest: float = math.inf
    highest: float = -math.inf
    has_others: bool = False

    @classmethod
    def of(cls, values: FloatArray) -> Ends:
        """Return the ends of values; what is not finite has no part in them."""
        finite = values[np.abs(values) < 2.0**_MAX_EXPONENT]
        if not len(finite):
            return cls()
        low, high = float(finite.min()), float(finite.max())
        return cls(low, high, bool(((finite != low) & (finite != high)).any()))

    def with_others(self, other: Ends) -> Ends:
        """Return the ends of both."""
        low, high = min(self.lowest, other.lowest), max(self.highest, other.highest)
        own = {self.lowest, self.highest, other.lowest, other.highest}
        between = filter(math.isfinite, own - {low, high})
        return Ends(low, high, self.has_others or other.has_others or any(True for _ in between))


@dataclass(slots=True)
class SliceSums:
    """Sums of columns by the values of one carried column, None where a value is null.

    Attributes
    ----------
    rows : dict of value to int
    sums : dict of value to float ndarray of shape (2, n_columns, N_SUM_BUCKETS)
        Number of values, and their sum.
    ends : dict of value to float ndarray of shape (2, n_columns)
        Lowest and highest value; NaN where there is none.
    """

    rows: dict[str | None, int] = field(default_factory=dict)
    sums: dict[str | None, FloatArray] = field(default_factory=dict)
    ends: dict[str | None, FloatArray] = field(default_factory=dict)

    def add(self, other: SliceSums) -> None:
        """Add what was counted of other rows."""
        for value, sums in other.sums.items():
            if value not in self.sums:
                self.rows[value], self.sums[value] = other.rows[value], sums
                self.ends[value] = other.ends[value]
                continue
            self.rows[value] += other.rows[value]
            self.sums[value] = self.sums[value] + sums
            (low, high), (lower, higher) = self.ends[value], other.ends[value]
            self.ends[value] = np.stack([np.fmin(low, lower), np.fmax(high, higher)])


@dataclass(frozen=True, slots=True)
class ColumnMean:
    """What a report says of one column; None where nothing is defined."""

    n: int
    n_undefined: int
    mean: float | None
    interval_95: list[float] | None
    interval_method: str | None
    standard_deviation: float | None


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
    cluster : str
        What rows that are not independent share, such as ``contexts``.
    """

    def __init__(
        self,
        ranges: Mapping[str, tuple[float | None, float | None]],
        *,
        reasons: Mapping[str, str],
        signatures: Mapping[str, str],
        by: Sequence[str],
        cluster: str = ROWS,
    ) -> None:
        self._ranges, self._reasons = ranges, reasons
        fixed = {name: _is_bounded(own) for name, own in ranges.items()}
        self._grows = {name: not is_fixed for name, is_fixed in fixed.items()}
        self.ends = dict.fromkeys(ranges, Ends())
        cells = {
            name: Cells(*map(float, own)) if fixed[name] else Cells(0.0, 1.0)  # type: ignore[arg-type]
            for name, own in ranges.items()
        }
        self.profile = RunProfile.of(
            cells, Slices({}), signatures=signatures, ranges=ranges, cluster=cluster
        )
        self.values = {
            name: ValueCounts(*map(float, own)) if fixed[name] else ValueCounts()  # type: ignore[arg-type]
            for name, own in ranges.items()
        }
        self.slices: dict[str, SliceSums | None] = {name: SliceSums() for name in by}
        self.lowest: dict[str, list[Example]] = {name: [] for name in ranges}
        self.highest: dict[str, list[Example]] = {name: [] for name in ranges}
        self.reasoned: dict[str, dict[str, list[Example]]] = {
            name: {} for name in dict.fromkeys([QUARANTINE_REASON, *reasons.values()])
        }

    @classmethod
    def of_run(cls, run: CompiledRun, *, by: Sequence[str], cluster: str) -> Overview:
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
            cluster=cluster,
        )

    def count(
        self,
        rows: pa.Table,
        clusters: NDArray[np.uint64],
        *,
        file: str,
        first_row: int,
        n_before: int = 0,
    ) -> None:
        """Count joined rows.

        Parameters
        ----------
        rows : pyarrow.Table
            As they are written: id, carried columns, scores and reasons.
        clusters : uint64 ndarray of shape (n_rows,)
            Hashes of what rows share; of its id where a row shares nothing.
        file : str
            Name of their file.
        first_row : int
            Number of the first of them in it.
        n_before : int, default 0
            Rows of the files before it.
        """
        values = {name: rows.column(name).to_numpy().astype(np.float64) for name in self._ranges}
        for name, own in values.items():
            self._grow(name, Ends.of(own))
            self.values[name].add(own, n_before + first_row)
        self._count_examples(rows, values, file=file, first_row=first_row)
        self._count_reasoned(rows, file=file, first_row=first_row)
        why = rows.column(QUARANTINE_REASON)
        sampled = np.asarray(pc.not_equal(why, NOT_SAMPLED).fill_null(True))
        if not sampled.all():
            rows, clusters = rows.filter(pa.array(sampled)), clusters[sampled]
            values = {name: own[sampled] for name, own in values.items()}
        self.profile.add(
            values,
            clusters,
            reasons={name: rows.column(self._reasons[name]) for name in values},
            is_scored=rows.column(QUARANTINE_REASON).is_null().to_numpy(),
        )
        self._count_slices(rows, values, clusters)

    def add(self, other: Overview) -> None:
        """Add what was counted of other rows of the same run."""
        for name in self._ranges:
            self._grow(name, other.ends[name])
            other._grow(name, self.ends[name])
            self.values[name].merge(other.values[name])
            self.lowest[name] = _least(self.lowest[name] + other.lowest[name])
            self.highest[name] = _most(self.highest[name] + other.highest[name])
        for column, reasons in other.reasoned.items():
            for reason, found in reasons.items():
                self._keep_reasoned(column, reason, found)
        self.profile.merge(other.profile)
        for name, own in self.slices.items():
            theirs = other.slices.get(name)
            if own is None or theirs is None or len(own.rows | theirs.rows) > MAX_VALUES:
                self.slices[name] = None
            else:
                own.add(theirs)

    def _grow(self, name: str, ends: Ends) -> None:
        """Let the cells of a column reach over more values, if they may."""
        before = self.ends[name]
        own = self.ends[name] = before.with_others(ends)
        if not self._grows[name] or own == before:
            return
        profile, cells = self.profile.columns[name], dyadic_cells(own.lowest, own.highest)
        if profile.cells != cells:
            self.profile.columns[name] = profile.recounted(cells)

    def _count_slices(
        self, rows: pa.Table, values: Mapping[str, FloatArray], clusters: NDArray[np.uint64]
    ) -> None:
        matrix = np.stack(list(values.values())) if values else np.empty((0, rows.num_rows))
        buckets = (clusters % np.uint64(N_SUM_BUCKETS)).astype(np.intp)
        for name, own in self.slices.items():
            if own is None:
                continue
            found = _sliced(rows.column(name), matrix, buckets)
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

    def _count_reasoned(self, table: pa.Table, *, file: str, first_row: int) -> None:
        ids = table.column("id")
        for column in self.reasoned:
            own = table.column(column)
            if own.null_count == len(own):
                continue
            coded = pc.dictionary_encode(own).combine_chunks()
            codes = coded.indices.fill_null(-1).to_numpy()
            for code, reason in enumerate(coded.dictionary.to_pylist()):
                if reason != NOT_SAMPLED:
                    rows = np.flatnonzero(codes == code)[:_N_REASONED].tolist()
                    found = [
                        Example(math.nan, file, first_row + row, text_of(ids[row])) for row in rows
                    ]
                    self._keep_reasoned(column, reason, found)

    def _keep_reasoned(self, column: str, reason: str, found: Sequence[Example]) -> None:
        """Keep the first rows of a reason; of very many reasons, the first ones."""
        own = self.reasoned[column]
        if reason in own or len(own) < _MAX_REASONS:
            own[reason] = [*own.get(reason, []), *found][:_N_REASONED]

    def mean(self, name: str) -> ColumnMean:
        """Return what a report says of a column: of all rows, by the profile."""
        profile = self.profile.columns[name]
        counts = profile.counts[0].sum(axis=0, dtype=np.int64)
        n_defined = int(counts[:-1].sum())
        n, x, squares = profile.moments[:, 0]
        if n.sum() < n_defined:  # No sum has values that are not finite.
            return ColumnMean(n_defined, int(counts[-1]), None, None, NOT_FINITE, None)
        values = self._values(name, self.ends[name].lowest, self.ends[name].highest)
        # Of a column that lacks values nobody knows how many clusters have one.
        n_clusters = 0 if counts[-1] else int(self.profile.clusters.counts()[0])
        sums = profile.center * n + profile.half_width * x
        found = mean_interval(n, sums, values, n_clusters=n_clusters)
        spread = None
        if n_defined > 1:
            variance = squares.sum() / n.sum() - (x.sum() / n.sum()) ** 2
            variance = 0.0 if values.lowest == values.highest else max(float(variance), 0.0)
            spread = profile.half_width * math.sqrt(variance * n_defined / (n_defined - 1))
        return ColumnMean(
            n_defined, int(counts[-1]), found.mean, found.interval, found.method, spread
        )

    def _values(self, name: str, lowest: float, highest: float) -> ValueRange:
        """Return which values of a column there are, of rows with such ends, and could be."""
        profile, ends = self.profile.columns[name], self.ends[name]
        is_whole = profile.low in (-math.inf, ends.lowest) and profile.high in (
            math.inf,
            ends.highest,
        )
        if is_whole and ends.lowest < ends.highest and not ends.has_others:
            return ValueRange(lowest, highest, ends.lowest, ends.highest, has_ends_alone=True)
        return ValueRange(lowest, highest, profile.low, profile.high)

    def content(self) -> dict[str, Any]:
        """Return what clusters are, means by slice, and places of examples, as plain data.

        A column of more than 50 values has no slices.
        """
        n_clusters = int(self.profile.clusters.counts()[0])
        return {
            "clusters": {
                "name": self.profile.cluster,
                "n": n_clusters,
                "is_estimate": n_clusters >= N_EXACT,
            },
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
            "reason_examples": {
                column: {reason: [_place(own) for own in rows] for reason, rows in found.items()}
                for column, found in self.reasoned.items()
                if found
            },
        }

    def _slice(self, value: str | None, own: SliceSums) -> dict[str, Any]:
        columns = {}
        for i, name in enumerate(self._ranges):
            n, sums = own.sums[value][:, i]
            ends = map(float, own.ends[value][:, i])
            found = mean_interval(n, sums, self._values(name, *ends))
            columns[name] = {
                "n": int(n.sum()), "mean": found.mean, "interval_95": found.interval,
            }  # fmt: skip
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


def _sliced(
    column: pa.ChunkedArray, matrix: FloatArray, buckets: NDArray[np.intp]
) -> SliceSums | None:
    """Return sums of some rows by value; None where values are no names of slices."""
    values = _names(column)
    if values is None:
        return None
    coded = values.dictionary_encode(null_encoding="encode").combine_chunks()
    names = coded.dictionary.to_pylist()
    if len(names) > MAX_VALUES or any(len(name or "") > _MAX_VALUE_CHARS for name in names):
        return None
    codes = coded.indices.to_numpy()
    places, shape = codes * N_SUM_BUCKETS + buckets, (len(names), N_SUM_BUCKETS)
    sums = np.zeros((2, len(matrix), *shape))
    for i, own in enumerate(matrix):
        is_there = ~np.isnan(own)
        for j, weights in enumerate((None, own[is_there])):
            counted = np.bincount(places[is_there], weights, minlength=math.prod(shape))
            sums[j, i] = counted.reshape(shape)
    found = SliceSums()
    for code, name in enumerate(names):
        own = matrix[:, codes == code]
        found.rows[name] = own.shape[1]
        found.sums[name] = sums[:, :, code].copy()
        with np.errstate(invalid="ignore"):  # NaN beside infinities.
            ends = [np.fmin.reduce(own, axis=1), np.fmax.reduce(own, axis=1)]
        found.ends[name] = np.stack(ends)
    return found


def _names(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return values as texts; None where their type has no few values."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _names(column.cast(kind.value_type))
    types = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_date)
    if not is_text(kind) and not any(check(kind) for check in types):
        return None
    return column.cast(pa.string())


def _ordered(own: SliceSums) -> list[str | None]:
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
