"""Clipped counts: n-grams that a candidate shares with other texts, for many rows at once.

Every step is a sort, a search or a sum over flat arrays. An n-gram can only be shared where the
n-gram of one word less that begins it is: what is not shared is dropped before the next order, so
orders above one cost little.
"""

from __future__ import annotations

import numpy as np

from qaeval_core.text.ngrams import IntArray, concat_ranges


class _Positions:
    """Places of words in all texts of all rows; the arrays have one length.

    ``side`` is 0 in candidates and 1, 2, ... in a row's other texts; ``gram`` is the n-gram that
    begins at a place.
    """

    __slots__ = ("at", "gram", "n_grams", "row", "side", "stop")

    def __init__(self, at: IntArray, row: IntArray, side: IntArray, stop: IntArray) -> None:
        self.at, self.row, self.side, self.stop = at, row, side, stop
        self.gram, self.n_grams = at, 1

    def keep(self, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        """Drop all other places."""
        self.at, self.row, self.side = self.at[kept], self.row[kept], self.side[kept]
        self.stop, self.gram = self.stop[kept], self.gram[kept]


def clipped_counts(
    ids: IntArray,
    offsets: IntArray,
    *,
    candidate: IntArray,
    other: IntArray,
    n_others: IntArray,
    max_order: int,
) -> IntArray:
    """Return how many of each candidate's n-grams its row's other texts have.

    Each n-gram counts as often as the candidate has it, at most as often as one of the others has.

    Parameters
    ----------
    ids, offsets : int ndarray
        Words of all texts, as `TokenTable` has them.
    candidate : int ndarray of shape (n_rows,)
        The text of each row's candidate.
    other : int ndarray of shape (n_row_others,)
        The other texts of all rows, rows in order.
    n_others : int ndarray of shape (n_rows,)
        Other texts of each row; may be 0.
    max_order : int

    Returns
    -------
    int ndarray of shape (n_rows, max_order)

    Examples
    --------
    The candidate "a b a" with the others "a b" and "a a":

    >>> clipped_counts(
    ...     np.array([0, 1, 0, 0, 1, 0, 0]), np.array([0, 3, 5, 7]), candidate=np.array([0]),
    ...     other=np.array([1, 2]), n_others=np.array([2]), max_order=2,
    ... ).tolist()
    [[3, 1]]
    """
    n_sides = int(n_others.max(initial=0)) + 1
    found = np.zeros((len(candidate), max_order), dtype=np.int64)
    places = _lay_out(offsets, candidate, other, n_others)
    n_words = int(ids.max(initial=-1)) + 1
    places.gram, places.n_grams = ids[places.at], max(n_words, 1)
    for order in range(1, max_order + 1):
        if order > 1:
            _extend(places, ids, order=order, n_words=n_words)
        keys, common = _common(places, n_sides)
        rows = keys // places.n_grams
        found[:, order - 1] = np.bincount(rows, weights=common, minlength=len(candidate))
        if order < max_order:
            _keep_shared(places, keys[common > 0], order=order)
    return found


def _lay_out(
    offsets: IntArray, candidate: IntArray, other: IntArray, n_others: IntArray
) -> _Positions:
    n_rows = len(candidate)
    # By text of a row, all candidates before all others: which text, whose row, which side.
    text = np.concatenate([candidate, other])
    row = np.concatenate([np.arange(n_rows), np.repeat(np.arange(n_rows), n_others)])
    nth = concat_ranges(np.ones(n_rows, dtype=np.int64), n_others)
    side = np.concatenate([np.zeros(n_rows, dtype=np.int64), nth])
    lengths = offsets[text + 1] - offsets[text]
    return _Positions(
        concat_ranges(offsets[text], lengths),
        np.repeat(row, lengths),
        np.repeat(side, lengths),
        np.repeat(offsets[text + 1], lengths),
    )


def _extend(places: _Positions, ids: IntArray, *, order: int, n_words: int) -> None:
    """Make each place's n-gram one word longer; ids are dense again, so that keys stay small."""
    joined = places.gram * max(n_words, 1) + ids[places.at + order - 1]
    grams, places.gram = np.unique(joined, return_inverse=True)
    places.n_grams = max(len(grams), 1)


def _common(places: _Positions, n_sides: int) -> tuple[IntArray, IntArray]:
    """Return each row's distinct n-grams, as row x n_grams + gram, and their clipped counts."""
    keys = (places.row * places.n_grams + places.gram) * n_sides + places.side
    if not len(keys):
        return keys, keys
    if keys.max() < 2**31:
        keys = keys.astype(np.int32)  # sorted in half the time
    if n_sides == 2:  # The other text has what the candidate has not: nothing else to count.
        keys.sort()
        owner, is_other = keys >> 1, keys & 1
        first = _first_of_runs(owner)
        others = np.add.reduceat(is_other, first)
        own = np.diff(first, append=len(owner)) - others
    else:
        # By row, n-gram and side: how often. A run of one (row, n-gram) begins with its candidate.
        keys, counts = np.unique(keys, return_counts=True)
        owner, side = keys // n_sides, keys % n_sides
        first = _first_of_runs(owner)
        own = np.add.reduceat(np.where(side == 0, counts, 0), first)
        others = np.maximum.reduceat(np.where(side == 0, 0, counts), first)
    return owner[first].astype(np.int64), np.minimum(own, others).astype(np.int64)


def _first_of_runs(ascending: IntArray) -> IntArray:
    return np.concatenate([[0], np.flatnonzero(ascending[1:] != ascending[:-1]) + 1])


def _keep_shared(places: _Positions, shared: IntArray, *, order: int) -> None:
    """Keep places whose n-gram is shared and has a word after it."""
    keys = places.row * places.n_grams + places.gram
    if len(shared) == 0:
        places.keep(np.zeros(len(keys), dtype=bool))
        return
    at = np.minimum(np.searchsorted(shared, keys), len(shared) - 1)
    places.keep((shared[at] == keys) & (places.at + order < places.stop))
