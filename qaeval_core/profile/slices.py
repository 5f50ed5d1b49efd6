"""Slices: the rows of each value of a column, of all values but the largest 50, and of all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

MAX_VALUES = 50


@dataclass(frozen=True, slots=True)
class Slice:
    """Some rows: those of one value of a column; of all without one of their own; or all.

    Attributes
    ----------
    by : str
        Column; "" for all rows.
    value : str, optional
        None for rows without a value.
    is_other : bool
        Whether these are the rows of all values without a slice.

    Examples
    --------
    >>> str(WHOLE), str(Slice("system", "t5")), str(Slice("system", is_other=True))
    ('', 'system=t5', 'system: other')
    """

    by: str = ""
    value: str | None = None
    is_other: bool = False

    def __str__(self) -> str:
        if not self.by:
            return ""
        if self.is_other:
            return f"{self.by}: other"
        return f"{self.by}: null" if self.value is None else f"{self.by}={self.value}"


WHOLE = Slice()


@dataclass(frozen=True, slots=True)
class Slices:
    """The slices of a run: all rows, then the values of each column and what is left of it.

    Attributes
    ----------
    values : mapping of column to its values
        At most 50 texts each, or None for rows without one.
    """

    values: Mapping[str, Sequence[str | None]]

    @property
    def all(self) -> tuple[Slice, ...]:
        """All slices, in the order of their codes."""
        found = [WHOLE]
        for by, values in self.values.items():
            found += [Slice(by, value) for value in values]
            found.append(Slice(by, is_other=True))
        return tuple(found)

    def codes(self, columns: Mapping[str, pa.ChunkedArray]) -> list[NDArray[np.intp]]:
        """Return, for each column, the slice that each row is in; all rows are in slice 0, too.

        Parameters
        ----------
        columns : mapping of column to pyarrow.ChunkedArray of texts
        """
        found, first = [], 1
        for by, values in self.values.items():
            own = pc.index_in(columns[by], value_set=pa.array(values, columns[by].type))
            places = own.fill_null(len(values)).to_numpy().astype(np.intp)
            found.append(first + places)
            first += len(values) + 1
        return found


def choose_values(
    counts: Mapping[str | None, int], known: Sequence[str | None] = ()
) -> tuple[str | None, ...]:
    """Return the values that have a slice: those of earlier runs, then the largest.

    Parameters
    ----------
    counts : mapping of value to its number of rows
    known : sequence
        Values that have one in the reference: only so are the rows of all others the same ones.

    Examples
    --------
    >>> choose_values({"a": 1, "b": 2, None: 2}, known=["c"])
    ('c', 'b', None, 'a')
    """
    new = [value for value in counts if value not in set(known)]
    new.sort(key=lambda value: (-counts[value], value is None, value or ""))
    return (*known, *new)[:MAX_VALUES]
