"""Statistics of weighted words: what KPQA's BLEU-1 and ROUGE-L are computed from.

Token ids and weights of pairs in, one row of sums per pair out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qaeval_core.text.lcs import weighted_lcs

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
WeightArray = NDArray[np.float32] | NDArray[np.float64]


class KeyphraseCounts(NamedTuple):
    """Statistics of each pair; float64 ndarrays of shape (n_pairs,).

    Attributes
    ----------
    n_candidate, n_reference
        Tokens of both texts.
    candidate_weight, reference_weight
        Sums of their weights.
    n_matched, matched_weight
        Candidate tokens that the reference has, each token at most as often as the reference has
        it, and what they weigh: a repeated token its mean weight.
    lcs_length
        Tokens of the longest common subsequence.
    lcs_weight, lcs_reference_weight
        Weight of the heaviest such subsequence, by the candidate's and by the reference's
        weights; the two may choose different tokens.
    """

    n_candidate: FloatArray
    n_reference: FloatArray
    candidate_weight: FloatArray
    reference_weight: FloatArray
    n_matched: FloatArray
    matched_weight: FloatArray
    lcs_length: FloatArray
    lcs_weight: FloatArray
    lcs_reference_weight: FloatArray


def keyphrase_counts(
    *,
    candidates: Sequence[IntArray],
    references: Sequence[IntArray],
    candidate_weights: Sequence[WeightArray],
    reference_weights: Sequence[WeightArray],
) -> KeyphraseCounts:
    """Return the statistics of pairs.

    Parameters
    ----------
    candidates, references : sequence of n_pairs int ndarrays
        Token ids of both texts, special tokens left out; a text may have none.
    candidate_weights, reference_weights : sequence of n_pairs float ndarrays
        Weight of each token, finite and >= 0.

    Returns
    -------
    KeyphraseCounts

    Raises
    ------
    ValueError
        If a weight is negative or not finite, or a text has not one for each token.

    Examples
    --------
    The candidate "a b a" and the reference "a c":

    >>> counts = keyphrase_counts(
    ...     candidates=[np.array([0, 1, 0])], references=[np.array([0, 2])],
    ...     candidate_weights=[np.array([0.25, 1.0, 0.75])],
    ...     reference_weights=[np.array([0.5, 0.5])],
    ... )
    >>> counts.matched_weight.tolist(), counts.lcs_weight.tolist()
    ([0.5], [0.75])
    """
    lcs_length, lcs_weight = weighted_lcs(
        candidates=candidates, references=references, weights=candidate_weights
    )
    _, lcs_reference_weight = weighted_lcs(
        candidates=references, references=candidates, weights=reference_weights
    )
    n_matched, matched_weight = _matched(candidates, references, candidate_weights)
    return KeyphraseCounts(
        n_candidate=_sizes(candidates).astype(np.float64),
        n_reference=_sizes(references).astype(np.float64),
        candidate_weight=_sums(candidate_weights),
        reference_weight=_sums(reference_weights),
        n_matched=n_matched,
        matched_weight=matched_weight,
        lcs_length=lcs_length.astype(np.float64),
        lcs_weight=lcs_weight,
        lcs_reference_weight=lcs_reference_weight,
    )


def _sizes(texts: Sequence[NDArray[np.generic]]) -> IntArray:
    return np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))


def _sums(weights: Sequence[WeightArray]) -> FloatArray:
    owner = np.repeat(np.arange(len(weights)), _sizes(weights))
    return _sums_by(owner, _joined(weights), len(weights))


def _sums_by(owner: IntArray, values: FloatArray, n_owners: int) -> FloatArray:
    # bincount adds in order, so a pair's sums do not depend on its batch mates.
    return np.bincount(owner, weights=values, minlength=n_owners).astype(np.float64)


def _joined(parts: Sequence[NDArray[np.generic]]) -> FloatArray:
    return np.concatenate([*parts, np.zeros(0)]).astype(np.float64)


def _matched(
    candidates: Sequence[IntArray],
    references: Sequence[IntArray],
    weights: Sequence[WeightArray],
) -> tuple[FloatArray, FloatArray]:
    """Return clipped counts of shared tokens, and their weight."""
    n_pairs = len(candidates)
    sizes = np.concatenate([_sizes(candidates), _sizes(references)])
    ids = np.concatenate([*candidates, *references, np.zeros(0, dtype=np.int64)])
    _, tokens = np.unique(ids, return_inverse=True)
    pair = np.repeat(np.tile(np.arange(n_pairs), 2), sizes)
    # Distinct tokens of each pair, whichever side has them.
    keys, place = np.unique(pair * (len(ids) + 1) + tokens, return_inverse=True)
    owner = keys // (len(ids) + 1)
    n_candidate_tokens = int(sizes[:n_pairs].sum())
    of_candidate, of_reference = place[:n_candidate_tokens], place[n_candidate_tokens:]
    n_own = np.bincount(of_candidate, minlength=len(keys))
    n_other = np.bincount(of_reference, minlength=len(keys))
    clipped = np.minimum(n_own, n_other).astype(np.float64)
    mean = _sums_by(of_candidate, _joined(weights), len(keys)) / np.maximum(n_own, 1)
    return _sums_by(owner, clipped, n_pairs), _sums_by(owner, clipped * mean, n_pairs)
