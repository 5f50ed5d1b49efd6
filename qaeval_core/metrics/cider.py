"""CIDEr: cosine of tf-idf weighted n-grams of candidate and reference (the variant CIDEr-D).

Document frequencies and sums over matched n-grams in, scores out. Counts no n-gram.

Source
------
Vedantam, Zitnick, Parikh. CIDEr: Consensus-based Image Description Evaluation. CVPR 2015,
arXiv:1411.5726, sections 3 and 5. With the count h_k of n-gram k in a text, N rows in the corpus
and d_k rows with k in one of their references::

    g_k = h_k (log N - log max(1, d_k))
    sim_i = sum_k min(g_k(c), g_k(r)) g_k(r) / (|g(c)| |g(r)|)          over n-grams of i words
    CIDEr-D(c, r) = 10 exp(-(l(c) - l(r))^2 / (2 sigma^2)) mean_i sim_i     i = 1..4

Several references: the mean, or with ``over_references=max`` the best. The corpus's value is the
mean over rows. Document frequencies are counted over the references of all input rows, in a pass
of its own; that of other corpora can be given.

Differs from coco-caption
-------------------------
- l is its number of bigrams, as there: two texts of one word have equal length.
- Both texts without words score 10 here, 0 there.
- N counts the rows whose references have words; there all rows.
- A row is undefined (``no_weight``) where no n-gram of its references weighs anything, as in a
  corpus of one row, in which every n-gram is in every document; there it scores 0.

But: no stemming (the paper stems, coco-caption does not); ``stemming=porter`` does.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from qaeval_core.metrics.base import Read, Scores
from qaeval_core.metrics.targets import Targets
from qaeval_core.metrics.words import WordMetric, WordSettings, lengths, without_words

FloatArray = NDArray[np.float64]
SCALE = 10.0


def idf(document_frequencies: NDArray[np.int64], *, n_documents: int) -> FloatArray:
    """Return log N - log max(1, d).

    Examples
    --------
    >>> idf(np.array([0, 1, 10]), n_documents=10).round(4)
    array([2.3026, 2.3026, 0.    ])
    """
    found = np.log(max(n_documents, 1)) - np.log(np.maximum(document_frequencies, 1))
    return np.asarray(found, dtype=np.float64)


def similarity(
    *, products: FloatArray, candidate_norms: FloatArray, reference_norms: FloatArray
) -> FloatArray:
    """Return sim_i of pairs, for one order; 0 where a side has no weight.

    Parameters
    ----------
    products : float ndarray of shape (n_pairs,)
        sum_k min(g_k(c), g_k(r)) g_k(r).
    candidate_norms, reference_norms : float ndarray of shape (n_pairs,)
        |g(c)| and |g(r)|.

    Examples
    --------
    >>> one = np.array([1.0])
    >>> similarity(products=one, candidate_norms=one * 2, reference_norms=one)
    array([0.5])
    """
    norms = candidate_norms * reference_norms
    return np.where(norms > 0, products / np.where(norms > 0, norms, 1.0), 0.0)


def cider(
    *,
    mean_similarity: FloatArray,
    n_candidate: FloatArray,
    n_reference: FloatArray,
    sigma: float = 6.0,
) -> FloatArray:
    """Return CIDEr-D of pairs.

    Parameters
    ----------
    mean_similarity : float ndarray of shape (n_pairs,)
        mean_i sim_i.
    n_candidate, n_reference : ndarray of shape (n_pairs,)
        Words.
    sigma : float, default 6.0
        Width of the length penalty, in words.

    Returns
    -------
    float ndarray of shape (n_pairs,)
        In [0, 10], higher is better.

    Examples
    --------
    >>> cider(mean_similarity=np.array([1.0]), n_candidate=np.array([4]), n_reference=np.array([4]))
    array([10.])
    """
    gap = np.maximum(n_candidate - 1, 0) - np.maximum(n_reference - 1, 0)  # l(c) - l(r)
    score = SCALE * np.exp(-(gap**2) / (2 * sigma**2)) * mean_similarity
    return np.where((n_candidate == 0) & (n_reference == 0), SCALE, score)


class CiderSettings(WordSettings):
    """Settings of ``cider``."""

    files: ClassVar[tuple[str, ...]] = ("document_frequencies",)

    sigma: float = Field(6.0, gt=0.0, description="width of the length penalty in words")
    document_frequencies: str | None = Field(
        None, description="OUT/corpus/*.parquet of another run; null: count in this corpus"
    )

    @field_validator("document_frequencies", mode="before")
    @classmethod
    def _check_none(cls, given: object) -> object:
        return None if given == "none" else given


class Cider(WordMetric[CiderSettings]):
    """CIDEr-D."""

    name = "cider"
    title = "cosine of tf-idf weighted n-grams, clipped (CIDEr-D)"
    source = "Vedantam et al. CIDEr. CVPR 2015, arXiv:1411.5726, sections 3 and 5"
    settings = CiderSettings
    statistic = "tf_idf"
    high = 10.0
    over_references = "mean"
    over_examples = "sum_of_statistics"

    def reads(self, settings: CiderSettings) -> tuple[Read, ...]:
        """Return the similarity of n-grams, which waits for their document frequencies."""
        return (
            Read(
                family=self.statistic,
                roles=self.words_roles,
                options=settings.word_options,
                corpus_counts="document_frequencies",
                counts_file=settings.document_frequencies,
            ),
        )

    def score_words(self, settings: CiderSettings, words: Targets) -> Scores:
        """Return the columns of some rows."""
        each = cider(mean_similarity=words["similarity"], sigma=settings.sigma, **lengths(words))
        each = without_words(words, each)
        score = words.best(each) if settings.over_references == "max" else words.mean(each)
        sums = np.stack([score, np.where(np.isnan(score), np.nan, 1.0)], axis=1)
        reasons = words.reasons(score, has_weight=~np.isnan(words["similarity"]))
        return Scores({"": score}, reasons, sums)

    def corpus(self, settings: CiderSettings, sums: FloatArray) -> FloatArray:
        """Return the mean of rows: sums are of scores and of ones."""
        n_rows = sums[..., 1]
        return np.where(n_rows > 0, sums[..., 0] / np.maximum(n_rows, 1), np.nan)
