"""Hashes: one number for an n-gram, the same in every shard, worker and run.

64 bits: of 10 million different n-grams, two share a hash with a chance of 3 in a million.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from qaeval_core.text.ngrams import GramCounts, IntArray

HashArray = NDArray[np.uint64]

# Steele, Lea, Flood. Fast splittable pseudorandom number generators. OOPSLA 2014.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


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
