"""Token runs: the token ids of many texts as one array, cut and joined without a list of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from qaeval_core.text.ngrams import IntArray, concat_ranges


@dataclass(frozen=True, slots=True)
class TokenRuns:
    """Runs of token ids: stretches of one flat array, in any order; a sequence of ndarrays.

    Attributes
    ----------
    ids : int ndarray of shape (n_tokens,)
    starts, counts : int ndarray of shape (n_runs,)
        Where each run lies in ``ids``.

    Examples
    --------
    >>> texts = TokenRuns.of([[5, 6], [], [7]])
    >>> texts.take([0, 2]).cut(np.array([1, 0]), np.array([1, 1])).flat().tolist()
    [6, 7]
    >>> TokenRuns.joined([TokenRuns.of([[1]]).take([0, 0]), texts.take([0, 2])]).padded([0, 1])
    array([[1, 5, 6],
           [1, 7, 0]])
    """

    ids: IntArray
    starts: IntArray
    counts: IntArray

    @classmethod
    def repeated(cls, ids: IntArray, n_runs: int) -> TokenRuns:
        """Return the same run so many times."""
        return cls(ids, np.zeros(n_runs, np.int64), np.full(n_runs, len(ids)))

    @classmethod
    def of(cls, runs: Sequence[Sequence[int]]) -> TokenRuns:
        """Return runs that are given as lists."""
        counts = np.fromiter(map(len, runs), np.int64, len(runs))
        ids = np.fromiter(chain.from_iterable(runs), np.int64, int(counts.sum()))
        return cls.one_after_another(ids, counts)

    @classmethod
    def one_after_another(cls, ids: IntArray, counts: IntArray) -> TokenRuns:
        """Return runs that together are the whole array."""
        return cls(ids, np.cumsum(counts) - counts, counts)

    @classmethod
    def joined(cls, parts: Sequence[TokenRuns]) -> TokenRuns:
        """Return runs each of which has one run of every part, one after another."""
        ids = np.concatenate([part.ids for part in parts])
        before = np.cumsum([0, *(len(part.ids) for part in parts[:-1])])
        starts = np.stack([part.starts for part in parts], axis=1) + before
        counts = np.stack([part.counts for part in parts], axis=1)
        places = concat_ranges(starts.ravel(), counts.ravel())
        return cls.one_after_another(ids[places], counts.sum(axis=1))

    @classmethod
    def merged(cls, is_first: NDArray[np.bool_], first: TokenRuns, others: TokenRuns) -> TokenRuns:
        """Return runs of one, and of others between them.

        Examples
        --------
        >>> places = np.array([True, False, True])
        >>> TokenRuns.merged(places, TokenRuns.of([[1], [2]]), TokenRuns.of([[7, 8]])).flat()
        array([1, 7, 8, 2])
        """
        starts, counts = np.zeros((2, len(is_first)), dtype=np.int64)
        starts[is_first], counts[is_first] = first.starts, first.counts
        starts[~is_first], counts[~is_first] = others.starts + len(first.ids), others.counts
        return cls(np.concatenate([first.ids, others.ids]), starts, counts)

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, i: int) -> IntArray:
        return self.ids[self.starts[i] : self.starts[i] + self.counts[i]]

    def __iter__(self) -> Iterator[IntArray]:
        return map(self.__getitem__, range(len(self)))

    def take(self, runs: Sequence[int] | IntArray) -> TokenRuns:
        """Return some of the runs."""
        return TokenRuns(self.ids, self.starts[runs], self.counts[runs])

    def cut(self, first: IntArray | int, counts: IntArray) -> TokenRuns:
        """Return a stretch of each run."""
        return TokenRuns(self.ids, self.starts + first, counts)

    def flat(self) -> IntArray:
        """Return the ids of all runs, one after another."""
        return self.ids[concat_ranges(self.starts, self.counts)]

    def padded(self, runs: Sequence[int] | IntArray, *, width: int | None = None) -> IntArray:
        """Return some runs as one right-padded matrix, padding 0; by default of the longest."""
        counts = self.counts[runs][:, np.newaxis]
        columns = np.arange(counts.max() if width is None else width)
        matrix = self.ids.take(self.starts[runs][:, np.newaxis] + columns, mode="clip")
        matrix[columns >= counts] = 0
        return matrix
