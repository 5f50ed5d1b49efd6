"""Paired rows: those that several runs share by their ids, and whose values differ most.

Audits compare a run with an earlier one in pairs, and comparisons compare systems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
MAX_CHANGES = 20
# Other orders of sums give other last digits: as far apart may the same values be, beyond 1 as a
# share of them, for a perplexity of 1,000 is stored in steps of 6e-5.
PARITY = 1e-5


@dataclass(frozen=True, slots=True)
class MatchedRows:
    """Rows with the same id.

    Attributes
    ----------
    rows : tuple of int ndarray of shape (n_matched,)
        Their numbers in each run, in the order of the last one.
    share : float
        Of the rows of the largest run.
    n_repeated : tuple of int
        Rows of each run whose id is there twice.
    """

    rows: tuple[NDArray[np.intp], ...]
    share: float
    n_repeated: tuple[int, ...]


def match_rows(sides: Sequence[pa.ChunkedArray]) -> MatchedRows:
    """Return the rows whose ids are in every run; an id that stands there twice names no row.

    Parameters
    ----------
    sides : sequence of pyarrow.ChunkedArray of texts
        Ids of each run; a null is none.

    Examples
    --------
    >>> ids = [pa.chunked_array([each]) for each in (["a", "b", "c"], ["c", "x", "a"])]
    >>> found = match_rows(ids)
    >>> [rows.tolist() for rows in found.rows], round(found.share, 2)
    ([[2, 0], [0, 2]], 0.67)
    """
    frames, n_repeated = [], []
    for i, ids in enumerate(sides):
        own = pl.DataFrame({"id": pl.Series(pl.from_arrow(ids), dtype=pl.String)})
        own = own.with_row_index(f"{i}").filter(pl.col("id").is_not_null())
        frames.append(own.unique("id", keep="none"))
        n_repeated.append(own.height - frames[-1].height)
    matched = frames[-1]
    for frame in frames[:-1]:
        matched = matched.join(frame, on="id", how="inner")
    matched = matched.sort(f"{len(frames) - 1}")
    n_most = max(map(len, sides))
    return MatchedRows(
        tuple(matched[f"{i}"].to_numpy().astype(np.intp) for i in range(len(frames))),
        matched.height / n_most if n_most else 0.0,
        tuple(n_repeated),
    )


@dataclass(frozen=True, slots=True)
class Change:
    """One row whose value changed."""

    id: str
    reference: float
    current: float


@dataclass(frozen=True, slots=True)
class Changes:
    """Differences of values, and which of them are none of rounding; arrays of shape (n,).

    Attributes
    ----------
    size : float ndarray
        Current less reference; NaN where one is undefined.
    is_changed : bool ndarray
        Whether a value differs by more than `PARITY`.
    """

    size: FloatArray
    is_changed: NDArray[np.bool_]

    @classmethod
    def of(cls, before: FloatArray, now: FloatArray) -> Changes:
        """Return the differences of values; an infinite one has none from any other.

        Examples
        --------
        >>> found = Changes.of(np.array([0.5, 1.0, np.inf]), np.array([0.5 + 1e-9, 0.5, np.inf]))
        >>> found.size.round(3).tolist(), found.is_changed.tolist()
        ([0.0, -0.5, 0.0], [False, True, False])
        """
        with np.errstate(invalid="ignore", over="ignore"):
            is_equal = before == now
            size = np.where(is_equal, 0.0, now - before)
            reach = PARITY * np.maximum(1.0, np.minimum(np.abs(before), np.abs(now)))
        return cls(size, ~is_equal & ((np.abs(size) > reach) | np.isinf(size)))
