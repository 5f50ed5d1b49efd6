"""Table: distinct texts as ragged arrays of word ids, each text tokenised once.

Texts in, arrays out, for kernels that work on many texts at a time. Ids count from 0 in the order
in which words appear, so they mean nothing outside their table.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


class _Vocabulary(dict[str, int]):
    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


class TokenTable:
    """Word ids of distinct texts.

    Parameters
    ----------
    tokenise : callable
        Text -> words.

    Examples
    --------
    >>> table = TokenTable(str.split)
    >>> table.add(["a b a", "", "b", "a b a"]).tolist()
    [0, 1, 2, 0]
    >>> table.ids.tolist(), table.offsets.tolist()
    ([0, 1, 0, 1], [0, 3, 3, 4])
    """

    def __init__(self, tokenise: Callable[[str], Sequence[str]]) -> None:
        self._tokenise = tokenise
        self._index: dict[str, int] = {}
        self._vocabulary = _Vocabulary()
        self._ids = array("q")
        self._stops = array("q", [0])

    def add(self, texts: Iterable[str]) -> IntArray:
        """Return the index of each text, tokenising the new ones."""
        index, ids, stops = self._index, self._ids, self._stops
        number_of, tokenise = self._vocabulary.__getitem__, self._tokenise
        places = array("q")
        for text in texts:
            place = index.get(text)
            if place is None:
                place = index[text] = len(index)
                ids.extend(map(number_of, tokenise(text)))
                stops.append(len(ids))
            places.append(place)
        return np.array(places, dtype=np.int64)

    @property
    def n_texts(self) -> int:
        """Distinct texts."""
        return len(self._index)

    @property
    def texts(self) -> list[str]:
        """Distinct texts, by index."""
        return list(self._index)

    @property
    def words(self) -> list[str]:
        """Words, by id."""
        return list(self._vocabulary)

    @property
    def ids(self) -> IntArray:
        """Word ids of all texts, one after another."""
        return np.array(self._ids, dtype=np.int64)

    @property
    def offsets(self) -> IntArray:
        """Where each text's ids start in ``ids``, and the end; shape (n_texts + 1,)."""
        return np.array(self._stops, dtype=np.int64)

    @property
    def lengths(self) -> IntArray:
        """Words of each text."""
        return np.diff(self.offsets)

    def sequences(self) -> list[str] | list[list[int]]:
        """Return each text as a sequence of its ids, for libraries that compare sequences.

        One character a word, so that equal words are equal characters and a run of words is a
        substring; lists where there are more words than characters.
        """
        ids, offsets = self.ids, self.offsets.tolist()
        spans = pairwise(offsets)
        if len(self._vocabulary) > _MAX_CHARACTERS:
            numbers = ids.tolist()
            return [numbers[start:stop] for start, stop in spans]
        # Surrogates are no characters of UTF-32: step over them.
        points = np.where(ids < _FIRST_SURROGATE, ids, ids + _N_SURROGATES)
        whole = points.astype("<u4").tobytes().decode("utf-32-le")
        return [whole[start:stop] for start, stop in spans]


_FIRST_SURROGATE = 0xD800
_N_SURROGATES = 0x800
_MAX_CHARACTERS = 0x110000 - _N_SURROGATES
