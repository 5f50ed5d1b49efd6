"""Values: which rows have the same value of a column, for stages that count rows by it.

A value is a number, and all that is known of it is its hash: a million passages take megabytes.
Their texts are read again where they are shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from qaeval_core.schema import is_list
from qaeval_core.text.column_hashes import text_column

_STEP = 1 << 20
_MAX_SHORT = 1 << 16
# Of a value that is shown.
_MAX_CHARS = 200


class ValueCodes(NamedTuple):
    """Values of some neighboring rows.

    Attributes
    ----------
    code : uint32 ndarray of shape (n_rows,)
        Places in ``hashes``.
    hashes : uint64 ndarray of shape (n_values,)
        Ascending; 0 is that of no value.
    """

    code: NDArray[np.uint32]
    hashes: NDArray[np.uint64]

    @classmethod
    def of(cls, hashes: NDArray[np.uint64]) -> ValueCodes:
        """Return those of rows, by the hashes of their values.

        Examples
        --------
        >>> [own.tolist() for own in ValueCodes.of(np.array([7, 5, 7], np.uint64))]
        [[1, 0, 1], [5, 7]]
        """
        found, code = np.unique(hashes, return_inverse=True)
        return cls(code.astype(np.uint32), found)

    @classmethod
    def joined(cls, parts: list[ValueCodes]) -> ValueCodes:
        """Return those of rows that follow each other."""
        if not parts:
            return cls(np.zeros(0, np.uint32), np.zeros(0, np.uint64))
        numbers, hashes = cls.of(np.concatenate([part.hashes for part in parts]))
        ends = np.cumsum([len(part.hashes) for part in parts])[:-1]
        pairs = zip(np.split(numbers, ends), parts, strict=True)
        return cls(np.concatenate([own[part.code] for own, part in pairs]), hashes)


class RowValues:
    """The value of every row of a corpus, as a number from 0.

    Two bytes a row, four where there are more than 65,536 values; and 12 bytes a value.

    Parameters
    ----------
    zeros : callable
        Makes an array of all rows from a dtype.
    """

    def __init__(self, zeros: Callable[[DTypeLike], NDArray[Any]]) -> None:
        self._zeros = zeros
        self.code: NDArray[Any] = zeros(np.uint16)
        self._hashes = np.zeros(0, np.uint64)
        self._numbers = np.zeros(0, np.uint32)

    def __len__(self) -> int:
        return len(self._hashes)

    def put(self, start: int, own: ValueCodes) -> None:
        """Put the values of some rows into their place."""
        places = np.searchsorted(self._hashes, own.hashes)
        is_new = np.ones(len(places), dtype=bool)
        inside = places < len(self)
        is_new[inside] = self._hashes[places[inside]] != own.hashes[inside]
        if is_new.any():
            numbers = np.arange(len(self), len(self) + is_new.sum(), dtype=np.uint32)
            self._numbers = np.insert(self._numbers, places[is_new], numbers)
            self._hashes = np.insert(self._hashes, places[is_new], own.hashes[is_new])
            places = np.searchsorted(self._hashes, own.hashes)
        if len(self) > _MAX_SHORT and self.code.dtype == np.uint16:
            short, self.code = self.code, self._zeros(np.uint32)
            for first in range(0, start, _STEP):
                before = slice(first, min(first + _STEP, start))
                self.code[before] = short[before]
        self.code[start : start + len(own.code)] = self._numbers[places][own.code]

    def hashes(self) -> NDArray[np.uint64]:
        """Return the hash of each value, by its number."""
        found = np.empty_like(self._hashes)
        found[self._numbers] = self._hashes
        return found


def value_text(column: pa.ChunkedArray) -> str | None:
    """Return the text of the one value of a column, cut where it is long."""
    if is_list(column.type):
        passages = column[0].as_py()
        text = None if passages is None else " ".join(passage or "" for passage in passages)
    else:
        text = text_column(column)[0].as_py()
    if text is None or len(text) <= _MAX_CHARS:
        return text
    return f"{text[:_MAX_CHARS]}..."
