"""N-grams: how often each occurs in each text of a table, and how many a pair shares.

A table of word ids in, counts out, all texts and pairs at once: every step is a sort, a search or
a sum over one flat array, so the time is near linear in the words.

Across shards, workers and runs an n-gram is known by its hash, of 64 bits: of 10 million different
n-grams, two share one with a chance of 3 in a million.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
HashArray = NDArray[np.uint64]

# Steele, Lea, Flood. Fast splittable pseudorandom number generators. OOPSLA 2014.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class GramCounts:
    """Distinct n-grams of each text, for one order.

    Entries are sorted by text, then gram. ``grams`` are ids within the order, counted from 0;
    ``first_at`` is where in the table's ids an n-gram of that id begins.

    Attributes
    ----------
    order : int
    offsets : int ndarray of shape (n_texts + 1,)
        Where each text's entries begin.
    grams, counts : int ndarray of shape (n_entries,)
    first_at : int ndarray of shape (n_grams,)
    """

    order: int
    offsets: IntArray
    grams: IntArray
    counts: IntArray
    first_at: IntArray

    @property
    def n_grams(self) -> int:
        """Distinct n-grams of the table."""
        return len(self.first_at)

    def renumbered(self, rank: IntArray) -> GramCounts:
        """Return the same counts with other ids, and entries in the order of these.

        Sums over the n-grams of a text then add up in an order that can be chosen.

        Parameters
        ----------
        rank : int ndarray of shape (n_grams,)
            The new id of each n-gram.
        """
        grams = rank[self.grams]
        order = np.argsort(self._keys(grams))
        first_at = np.empty_like(self.first_at)
        first_at[rank] = self.first_at
        return GramCounts(self.order, self.offsets, grams[order], self.counts[order], first_at)

    def _keys(self, grams: IntArray) -> IntArray:
        """Return text x n_grams + gram of each entry."""
        owner = np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))
        return owner * max(self.n_grams, 1) + grams

    def entries_of(self, texts: IntArray) -> tuple[IntArray, IntArray]:
        """Return the entries of some texts, and which of these texts (from 0) each belongs to."""
        n_entries = np.diff(self.offsets)[texts]
        owner = np.repeat(np.arange(len(texts)), n_entries)
        return owner, concat_ranges(self.offsets[texts], n_entries)

    def pair_counts(self, candidate: IntArray, other: IntArray) -> PairCounts:
        """Return, for every distinct n-gram of each pair's candidate, its counts on both sides.

        Parameters
        ----------
        candidate, other : int ndarray of shape (n_pairs,)
            Texts of each pair.
        """
        owner, entries = self.entries_of(candidate)
        wanted = other[owner] * max(self.n_grams, 1) + self.grams[entries]
        keys = self._keys(self.grams)
        at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        found = keys[at] == wanted if len(keys) else np.zeros(0, dtype=bool)
        others = np.where(found, self.counts[at], 0) if len(keys) else np.zeros(0, dtype=np.int64)
        return PairCounts(owner, entries, self.counts[entries], others)


@dataclass(frozen=True, slots=True)
class PairCounts:
    """Counts of the candidates' n-grams; all int ndarrays of one length.

    Attributes
    ----------
    owner : the pair
    entry : the candidate's entry in `GramCounts`
    candidate, other : its counts in the pair's texts
    """

    owner: IntArray
    entry: IntArray
    candidate: IntArray
    other: IntArray


def gram_counts(ids: IntArray, offsets: IntArray, *, max_order: int) -> Iterator[GramCounts]:
    """Yield the counts of orders 1 to ``max_order``.

    Parameters
    ----------
    ids, offsets : int ndarray
        As `TokenTable` has them.

    Examples
    --------
    >>> counts = list(gram_counts(np.array([0, 1, 0, 1]), np.array([0, 3, 4]), max_order=2))
    >>> counts[0].counts.tolist(), counts[1].counts.tolist()
    ([2, 1, 1], [1, 1])
    >>> pairs = counts[0].pair_counts(np.array([0]), np.array([1]))
    >>> pairs.candidate.tolist(), pairs.other.tolist()
    ([2, 1], [0, 1])
    """
    n_texts = len(offsets) - 1
    # One entry a place: its text, where it begins in ids, and the n-gram there.
    text = np.repeat(np.arange(n_texts), np.diff(offsets))
    at = np.arange(len(ids))
    n_words = int(ids.max(initial=-1)) + 1
    grams, first_at = ids, _first_at(ids, n_words)
    for order in range(1, max_order + 1):
        if order > 1:
            # An n-gram is the (n-1)-gram before it and one word more, both of one text.
            inside = at + order - 1 < offsets[1:][text]
            grams, at, text = grams[inside], at[inside], text[inside]
            joined = grams * max(n_words, 1) + ids[at + order - 1]
            _, first, grams = np.unique(joined, return_index=True, return_inverse=True)
            first_at = at[first]
        n_grams = max(len(first_at), 1)
        entries, counts = np.unique(text * n_grams + grams, return_counts=True)
        starts = np.searchsorted(entries, np.arange(n_texts + 1) * n_grams)
        yield GramCounts(order, starts, entries % n_grams, counts.astype(np.int64), first_at)


def _first_at(ids: IntArray, n_words: int) -> IntArray:
    first = np.zeros(n_words, dtype=np.int64)
    first[ids[::-1]] = np.arange(len(ids))[::-1]  # The last write wins: the first place.
    return first


def concat_ranges(starts: IntArray, counts: IntArray) -> IntArray:
    """Return the indices of consecutive ranges, one after another.

    Examples
    --------
    >>> concat_ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    shifted = np.repeat(starts - (ends - counts), counts)
    return np.asarray(np.arange(total) + shifted, dtype=np.int64)


def word_hashes(words: Sequence[str]) -> HashArray:
    """Return a hash of each word; uint64 ndarray of shape (n_words,)."""
    digests = (blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8) for word in words)
    return np.frombuffer(b"".join(digest.digest() for digest in digests), dtype="<u8")


def gram_hashes(counts: GramCounts, *, ids: IntArray, words: HashArray) -> HashArray:
    """Return a hash of each distinct n-gram of an order.

    Parameters
    ----------
    counts : GramCounts
    ids : int ndarray
        Word ids of the table that was counted.
    words : uint64 ndarray
        `word_hashes` of the table's words.

    Returns
    -------
    uint64 ndarray of shape (n_grams,)
    """
    # The order goes in first, so that a bigram is no unigram of equal hash.
    hashed = np.full(counts.n_grams, counts.order, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for i in range(counts.order):
            hashed = _mix(hashed * _STEP + words[ids[counts.first_at + i]])
    return hashed


def _mix(value: HashArray) -> HashArray:
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))
