"""Column profile: counts of a run's scores that stand for its rows, and can be added up.

Each row goes to a bucket by the hash of its cluster, such as its context, so that whole clusters
can be drawn again when the rows are gone. Of each column and slice it keeps, in each of 256
buckets, how many values lie in each cell and why values are undefined; and in each of 1,024, which
are those cut in four, the sums of values and of their squares: intervals of means come from these.

All numbers are integers, so that the profile of a whole is that of its parts, added up in any
order, bit for bit. Sums are of x = (value - center) / half width of the range, in two integers:
that of x rounded, and that of what is left in steps of 2^-31. Infinite values, and those beyond
65,536 half widths, are in no sum: with them 2^31 rows of a bucket cannot overflow.

But: no row, no text and no id is kept, and memory does not grow with rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.profile.cells import Cells

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
CountArray = NDArray[np.uint32]
_Whole = TypeVar("_Whole", np.int64, np.uint32)

N_BUCKETS = 256
N_SUM_BUCKETS = 1024
_STEPS = float(1 << 31)
_MAX_X = float(1 << 16)
# So many rows at once: float sums of integers up to 2^32 are exact then.
_MAX_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class Places:
    """Where some rows are counted.

    Attributes
    ----------
    n_slices : int
    codes : sequence of int ndarray of shape (n_rows,)
        Numbers of slices x buckets, slices outermost: of all rows, and of each column of slices.
    n_buckets : int
    """

    n_slices: int
    codes: Sequence[NDArray[np.intp]]
    n_buckets: int = N_SUM_BUCKETS

    @classmethod
    def of(cls, clusters: NDArray[np.uint64], slices: Sequence[NDArray[np.intp]], n: int) -> Places:
        """Return the places of rows, by hashes of clusters and by the numbers of n slices."""
        buckets = (clusters % np.uint64(N_SUM_BUCKETS)).astype(np.intp)
        return cls(n, [own * N_SUM_BUCKETS + buckets for own in slices])

    def wider(self) -> Places:
        """Return the places in `N_BUCKETS` buckets."""
        codes = [own // N_SUM_BUCKETS * N_BUCKETS + own % N_BUCKETS for own in self.codes]
        return Places(self.n_slices, codes, N_BUCKETS)

    def chosen(self, rows: NDArray[np.bool_] | slice) -> Places:
        """Return the places of some of the rows."""
        return Places(self.n_slices, [codes[rows] for codes in self.codes], self.n_buckets)

    def count(self, weights: FloatArray | None = None) -> IntArray:
        """Return how many rows, or the sum of their whole weights, (n_slices, n_buckets)."""
        n_all = self.n_slices * self.n_buckets
        found = np.zeros(n_all, np.int64)
        for codes in self.codes:
            # Exact, and in any order: whole numbers below 2^53.
            found += np.bincount(codes, weights, minlength=n_all).astype(np.int64)
        return found.reshape(self.n_slices, self.n_buckets)


@dataclass(slots=True)
class Profile:
    """What is kept of one column of scores.

    Attributes
    ----------
    cells : Cells
    signature : str
        How the scores were made; "" where that is not known.
    low, high : float
        What the metric says of its range; infinite where it is not bounded.
    counts : uint32 ndarray of shape (n_slices, N_BUCKETS, n_cells)
        Rows by slice, bucket and cell; the last cell is for undefined values.
    sums : int64 ndarray of shape (5, n_slices, N_SUM_BUCKETS)
        Number of values in sums; whole parts and rests of x, and of its square.
    reasons : dict of reason to uint32 ndarray of shape (n_slices, N_BUCKETS)
        Why values are undefined.
    """

    cells: Cells
    n_slices: int
    signature: str = ""
    low: float = -np.inf
    high: float = np.inf
    counts: CountArray = field(init=False)
    sums: IntArray = field(init=False)
    reasons: dict[str, CountArray] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.counts = np.zeros((self.n_slices, N_BUCKETS, self.cells.n_cells), np.uint32)
        self.sums = np.zeros((5, self.n_slices, N_SUM_BUCKETS), np.int64)

    def add(
        self,
        values: NDArray[np.floating],
        places: Places,
        reasons: pa.ChunkedArray | None = None,
    ) -> None:
        """Count rows.

        Parameters
        ----------
        values : float ndarray of shape (n_rows,)
            NaN where undefined.
        places : Places
            Of the same rows.
        reasons : pyarrow.ChunkedArray of texts, optional
            Why values are undefined; null where they are not.
        """
        given = np.asarray(values, dtype=np.float64)
        for first in range(0, len(given), _MAX_ROWS):
            rows = slice(first, first + _MAX_ROWS)
            self._add(given[rows], places.chosen(rows))
        if reasons is not None:
            self._add_reasons(reasons, places.wider())

    def _add(self, values: FloatArray, places: Places) -> None:
        codes = self.cells.codes(values)
        flat = self.counts.reshape(-1)
        for own in places.wider().codes:
            np.add.at(flat, own * self.cells.n_cells + codes, np.uint32(1))
        with np.errstate(over="ignore"):  # What is infinite then is in no sum.
            x = (values - self.center) / self.half_width
        has_sum = np.abs(x) <= _MAX_X  # not of NaN
        if not has_sum.all():
            x, places = x[has_sum], places.chosen(has_sum)
        self.sums[0] += places.count()
        for first, moment in ((1, x), (3, x * x)):
            whole = np.rint(moment)
            self.sums[first] += places.count(whole)
            self.sums[first + 1] += places.count(np.rint((moment - whole) * _STEPS))

    def _add_reasons(self, reasons: pa.ChunkedArray, places: Places) -> None:
        coded = reasons.combine_chunks().dictionary_encode()
        own = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        for code, reason in enumerate(coded.dictionary.to_pylist()):
            self._add_reason(reason, places.chosen(own == code).count().astype(np.uint32))

    def _add_reason(self, reason: str, counts: CountArray) -> None:
        self.reasons[reason] = self.reasons.get(reason, np.uint32(0)) + counts

    @property
    def center(self) -> float:
        """The value whose x is 0."""
        return self.cells.low + (self.cells.high - self.cells.low) / 2

    @property
    def half_width(self) -> float:
        """How much of a value is 1 of x."""
        return (self.cells.high - self.cells.low) / 2

    @property
    def moments(self) -> FloatArray:
        """Number of values in sums, and sums of x and x * x, (3, n_slices, N_SUM_BUCKETS)."""
        n, whole, rest, square_whole, square_rest = self.sums
        return np.stack([n, whole + rest / _STEPS, square_whole + square_rest / _STEPS])

    @property
    def drawn_moments(self) -> FloatArray:
        """The moments of the buckets that cells are counted in, (3, n_slices, N_BUCKETS)."""
        found: FloatArray = self.moments.reshape(3, self.n_slices, -1, N_BUCKETS).sum(axis=2)
        return found

    def recounted(self, cells: Cells) -> Profile:
        """Return the profile in wider cells whose edges are edges of its own, without atoms.

        Counts are exact; sums are rounded as if the values were added again.
        """
        wider = Profile(
            cells, self.n_slices, signature=self.signature, low=self.low, high=self.high
        )
        places = cells.codes(self.cells.centers)
        places[[0, -1]] = 0, cells.n_ordered - 1  # What lies beyond all cells stays there.
        places = np.append(places, cells.n_ordered)
        np.add.at(np.moveaxis(wider.counts, -1, 0), places, np.moveaxis(self.counts, -1, 0))
        wider.reasons = self.reasons
        n, x, squares = self.moments
        scale = self.half_width / wider.half_width
        shift = (self.center - wider.center) / wider.half_width
        wider.sums[0] = n
        moved = (scale * x + shift * n, scale**2 * squares + 2 * scale * shift * x + shift**2 * n)
        for first, moment in zip((1, 3), moved, strict=True):
            whole = np.rint(moment)
            wider.sums[first], wider.sums[first + 1] = whole, np.rint((moment - whole) * _STEPS)
        return wider

    def of_slices(self, codes: Sequence[int]) -> Profile:
        """Return the profile of slices that share no row: all of their rows, then each."""
        found = Profile(
            self.cells, len(codes) + 1, signature=self.signature, low=self.low, high=self.high
        )
        found.counts = with_sum(self.counts[codes], axis=0)
        found.sums = with_sum(self.sums[:, codes], axis=1)
        found.reasons = {why: with_sum(own[codes], axis=0) for why, own in self.reasons.items()}
        return found

    def merge(self, other: Profile) -> None:
        """Add the counts of other rows of the same run, or of the same cells.

        Raises
        ------
        ValueError
            If cells or slices are others.
        """
        if self.cells != other.cells or self.counts.shape != other.counts.shape:
            raise ValueError("profiles of other cells or slices cannot be added")
        self.counts += other.counts
        self.sums += other.sums
        for reason, counts in other.reasons.items():
            self._add_reason(reason, counts)


def with_sum(counts: NDArray[_Whole], *, axis: int) -> NDArray[_Whole]:
    """Return counts with their sum over an axis before them."""
    whole = counts.sum(axis=axis, dtype=counts.dtype, keepdims=True)
    return np.concatenate([whole, counts], axis=axis)
