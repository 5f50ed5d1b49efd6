"""Families ``token_match``, ``token_match_context`` and ``token_transport``: tokens by vectors.

Source: BERTScore, section 3 (``metrics.bertscore``), and MoverScore, section 3
(``metrics.moverscore``). Every distinct text is run once, whichever side it is on; long texts in
windows, nothing cut. Special tokens weigh nothing; whether others may be matched to them is an
option (the authors' program: yes).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.families.blas_threads import one_blas_thread
from qaeval_core.families.model_units import (
    NO_WEIGHT,
    NON_FINITE,
    ModelScorer,
    Reasons,
    Work,
    empty_reasons,
    has_score,
    per_target,
    spread,
)
from qaeval_core.families.token_units import DOCUMENT, TokenUnits
from qaeval_core.families.transport_pool import transport_costs_on_all_cpus
from qaeval_core.families.validate import IntArray, SharedPairs, SharedTexts, share_texts
from qaeval_core.metrics.bertscore import inverse_document_frequencies
from qaeval_core.text.ngrams import concat_ranges

VectorArray = NDArray[np.float32]

TOO_LONG_TO_TRANSPORT = "too_long_to_transport"
# Distances of a pair: 2,000 x 2,000 tokens take 0.6 s and 150 MB, 50,000 x 50,000 would take 20 GB.
MAX_TRANSPORT_ELEMENTS = 4_000_000


class TokenScorer(ModelScorer):
    """Lays out texts for the graph ``token_vectors``; ``work`` is what is made of the vectors.

    Options are ``special_tokens``, "match" or "exclude", and ``idf``: whether tokens weigh by it.
    """

    work: type[TokenWork]

    def lay_out(self, shared: SharedPairs[str]) -> TokenWork:
        """Encode and window distinct texts; texts that no scored pair reads have no unit."""
        texts = share_texts(shared)
        ids = self.encoder.encode(texts.texts)
        reasons = self.refusals(ids.counts[texts.left], ids.counts[texts.right])
        is_scored = has_score(reasons)
        is_read = np.zeros(len(ids), dtype=bool)
        is_read[texts.left[is_scored]] = is_read[texts.right[is_scored]] = True
        units = TokenUnits(ids.cut(0, np.where(is_read, ids.counts, 0)), self.artifact)
        return self.work(shared, texts, units, reasons, scorer=self)

    def refusals(self, n_candidate: IntArray, n_target: IntArray) -> Reasons:
        """Return why pairs of texts of so many tokens have no score; None where they have."""
        return empty_reasons(n_candidate, n_target)

    def weights(self, units: TokenUnits) -> VectorArray:
        """Return the weight of every vector of a shard: 0 for special tokens, else 1 or its idf."""
        weights = (~units.is_special).astype(np.float32)
        if not self.options.get("idf", False):
            return weights
        assert self.frequencies is not None, "the family's document frequencies were not given"
        n_documents = int(self.frequencies.of(DOCUMENT, absent=0)[0])
        known = self.frequencies.of(units.ids.astype(np.uint64), absent=0)
        idf = inverse_document_frequencies(known, n_documents=n_documents)
        return np.asarray(weights * idf, dtype=np.float32)

    def allowed(self, units: TokenUnits) -> NDArray[np.bool_] | None:
        """Return which vectors may be matched to; None for all."""
        matches_special = self.options.get("special_tokens", "match") == "match"
        return None if matches_special else ~units.is_special


class TokenWork(Work):
    """Units of one shard: windows of texts, and their vectors once the model ran."""

    units: TokenUnits

    def __init__(
        self,
        shared: SharedPairs[str],
        texts: SharedTexts[str],
        units: TokenUnits,
        reasons: Reasons,
        *,
        scorer: TokenScorer,
    ) -> None:
        self.shared = shared
        self.texts = texts
        self.units = units
        self._reasons = reasons
        self._scorer = scorer
        n_windows = units.n_windows[texts.left] + units.n_windows[texts.right]
        is_scored = has_score(reasons)
        self._pairs = np.flatnonzero(is_scored)
        self.n_units_unshared = int((n_windows * is_scored)[shared.row_pair].sum())

    def _counts(self, side: IntArray) -> IntArray:
        """Return the ordinary tokens of one side of every pair; 0 for a pair without a score."""
        counts = np.zeros(len(self._reasons), dtype=np.int64)
        counts[self._pairs] = self.units.ordinary()[side[self._pairs]]
        return counts


class TokenMatchWork(TokenWork):
    """Best cosines of every token of a pair."""

    keeps_tokens = True

    def statistics(self) -> dict[str, pa.Array]:
        """Return tokens, best cosines and weights per target of every row, candidate first.

        Without ``keeps_tokens`` one value stands for all tokens: their mean by weight.
        """
        units, left, right = self.units, self.texts.left, self.texts.right
        best = best_cosines_of_texts(
            units.text_vectors,
            units.spans,
            left[self._pairs],
            right[self._pairs],
            self._scorer.allowed(units),
        )
        weights = self._scorer.weights(units)
        columns = {"reasons": per_target(self.shared, self._reasons)}
        for name, side, found in (("candidate", left, best.left), ("reference", right, best.right)):
            tokens = self._tokens(side)
            is_ordinary = ~units.is_special[tokens]
            values, own = found[is_ordinary], weights[tokens][is_ordinary]
            count = self._counts(side)
            if not self.keeps_tokens:
                values, own, count = _means(values, own, count)
            first = np.cumsum(count) - count
            columns[f"n_{name}"] = per_target(self.shared, count.astype(np.int32))
            columns[f"best_{name}"] = spread(self.shared, values, first, count)
            columns[f"{name}_weights"] = spread(self.shared, own, first, count)
        return columns

    def _tokens(self, side: IntArray) -> IntArray:
        """Return the vectors of one side of the scored pairs, pairs in order."""
        spans = self.units.spans[side[self._pairs]]
        return concat_ranges(spans[:, 0], spans[:, 1] - spans[:, 0])


class ContextMatchWork(TokenMatchWork):
    """The same against a context, which is long: means are stored, not a number a token."""

    keeps_tokens = False


def _means(
    values: VectorArray, weights: VectorArray, count: IntArray
) -> tuple[VectorArray, VectorArray, IntArray]:
    """Return one value and weight for all tokens of a text; none where it has no token."""
    owner = np.repeat(np.arange(len(count)), count)
    total = np.bincount(owner, weights=weights, minlength=len(count))
    product = np.where(weights > 0, values, 0.0) * weights.astype(np.float64)
    summed = np.bincount(owner, weights=product, minlength=len(count))
    has_tokens = count > 0
    mean = summed[has_tokens] / np.where(total > 0, total, 1.0)[has_tokens]
    return (
        mean.astype(np.float32),
        total[has_tokens].astype(np.float32),
        has_tokens.astype(np.int64),
    )


class TransportWork(TokenWork):
    """Cost of optimal transport of a pair."""

    def statistics(self) -> dict[str, pa.Array]:
        """Return the cost and the reason, per target of every row."""
        left, right = self.texts.left, self.texts.right
        is_finite = self._finite_texts()
        pairs = self._pairs[is_finite[left[self._pairs]] & is_finite[right[self._pairs]]]
        cost = np.full(len(self._reasons), np.nan)
        cost[pairs] = transport_costs_on_all_cpus(
            vectors=self.units.vectors,
            spans=self.units.spans,
            pair_left=left[pairs],
            pair_right=right[pairs],
            weights=self._scorer.weights(self.units),
        )
        reasons = self._reasons.copy()
        totals = self._totals()
        for i in self._pairs[~np.isfinite(cost[self._pairs])].tolist():
            has_weight = totals[left[i]] > 0 and totals[right[i]] > 0
            reasons[i] = NON_FINITE if has_weight else NO_WEIGHT
        return {
            "transport_cost": per_target(self.shared, cost),
            "reasons": per_target(self.shared, reasons),
        }

    def _finite_texts(self) -> NDArray[np.bool_]:
        """Return which texts have finite vectors alone: the solver takes NaN for a cost of 0."""
        is_finite = np.ones(len(self.units.spans), dtype=bool)
        is_finite[self._owner()[~np.isfinite(self.units.vectors).all(axis=1)]] = False
        return is_finite

    def _totals(self) -> NDArray[np.float64]:
        """Return the weight of every text."""
        weights, n_texts = self._scorer.weights(self.units), len(self.units.spans)
        return np.bincount(self._owner(), weights=weights, minlength=n_texts).astype(np.float64)

    def _owner(self) -> IntArray:
        """Return the text of every vector."""
        spans = self.units.spans
        return np.repeat(np.arange(len(spans)), spans[:, 1] - spans[:, 0])


class TokenMatchScorer(TokenScorer):
    """BERTScore's matches against references."""

    work = TokenMatchWork


class ContextMatchScorer(TokenScorer):
    """BERTScore's matches against the context."""

    work = ContextMatchWork


class TransportScorer(TokenScorer):
    """MoverScore's transport, of pairs that it can hold."""

    work = TransportWork

    def refusals(self, n_candidate: IntArray, n_target: IntArray) -> Reasons:
        """Return why pairs have no score: a text is empty, or both are very long."""
        reasons = empty_reasons(n_candidate, n_target)
        reasons[n_candidate * n_target > MAX_TRANSPORT_ELEMENTS] = TOO_LONG_TO_TRANSPORT
        return reasons


BoolArray = NDArray[np.bool_]

# Cosines held at once, of 4 bytes: 50,000 x 50,000 of them would take 10 GB.
MAX_ELEMENTS = 4_000_000
# Pairs of so few cosines take longer to be asked for their maxima than these take.
_FEW_COSINES = 256
_PAIRS_AT_ONCE = 4096


class BestCosines(NamedTuple):
    """Best cosine of each token; float32 ndarrays, tokens of all pairs one after another."""

    left: VectorArray
    right: VectorArray


def best_cosines(
    *,
    vectors: VectorArray,
    spans: IntArray,
    pair_left: IntArray,
    pair_right: IntArray,
    allowed: BoolArray | None = None,
) -> BestCosines:
    """Return each token's largest cosine with a token of its pair's other text.

    Parameters
    ----------
    vectors : float32 ndarray of shape (n_total_tokens, dim)
        Vectors of unit length: tokens of all distinct texts, one text after another.
    spans : int ndarray of shape (n_texts, 2)
        Where each text's tokens start and stop in ``vectors``; a text may have none.
    pair_left, pair_right : int ndarray of shape (n_pairs,)
        Texts of each pair, by their place in ``spans``.
    allowed : bool ndarray of shape (n_total_tokens,), optional
        Whether a token may be matched *to*; by default all may. Every token gets a best
        cosine of its own, whether it is allowed or not.

    Returns
    -------
    BestCosines
        ``left`` for the tokens of the left texts, pairs in order, and ``right`` for those of the
        right texts; in [-1, 1]. NaN where the other text has no token that is allowed.

    Examples
    --------
    >>> best = best_cosines(
    ...     vectors=np.array([[1, 0], [0.6, 0.8], [0, -1]], dtype=np.float32),
    ...     spans=np.array([[0, 1], [1, 3]]), pair_left=np.array([0]), pair_right=np.array([1]),
    ... )
    >>> best.left.round(4).tolist(), best.right.round(4).tolist()
    ([0.6000000238418579], [0.6000000238418579, 0.0])
    """
    texts = [vectors[start:stop] for start, stop in spans.tolist()]
    return best_cosines_of_texts(texts, spans, pair_left, pair_right, allowed)


@one_blas_thread()
def best_cosines_of_texts(
    texts: Sequence[VectorArray],
    spans: IntArray,
    pair_left: IntArray,
    pair_right: IntArray,
    allowed: BoolArray | None = None,
) -> BestCosines:
    """Return the same as `best_cosines` of vectors that lie anywhere; texts as in ``spans``."""
    sizes = spans[:, 1] - spans[:, 0]
    best = BestCosines(_nothing_yet(sizes[pair_left]), _nothing_yet(sizes[pair_right]))
    penalties = None
    if allowed is not None:
        flat = np.where(allowed, 0, -np.inf).astype(np.float32)
        penalties = [flat[start:stop] for start, stop in spans.tolist()]
    n_cosines = sizes[pair_left] * sizes[pair_right]
    buffer = np.empty(min(MAX_ELEMENTS, int(n_cosines.max(initial=0))), dtype=np.float32)
    at_left, at_right = (np.cumsum(sizes[own]) - sizes[own] for own in (pair_left, pair_right))
    is_small = (n_cosines > 0) & (n_cosines <= _FEW_COSINES) & (penalties is None)
    small = np.flatnonzero(is_small)
    for start in range(0, len(small), _PAIRS_AT_ONCE):
        some = small[start : start + _PAIRS_AT_ONCE]
        to_left, to_right = _small_maxima(texts, sizes, pair_left[some], pair_right[some])
        best.left[concat_ranges(at_left[some], sizes[pair_left[some]])] = to_left
        best.right[concat_ranges(at_right[some], sizes[pair_right[some]])] = to_right
    for pair in np.flatnonzero(~is_small).tolist():
        left, right = int(pair_left[pair]), int(pair_right[pair])
        own, other = texts[left], texts[right]
        n_own, n_other = len(own), len(other)
        to_left = best.left[at_left[pair] : at_left[pair] + n_own]
        to_right = best.right[at_right[pair] : at_right[pair] + n_other]
        if penalties is None and 0 < n_own * n_other <= MAX_ELEMENTS:  # Nearly all: made quick.
            cosine = buffer[: n_own * n_other].reshape(n_own, n_other)
            np.dot(own, other.T, out=cosine)
            np.maximum.reduce(cosine, axis=1, out=to_left)
            np.maximum.reduce(cosine, axis=0, out=to_right)
            continue
        for rows, columns in _blocks(n_own, n_other):
            for_left = for_right = own[rows] @ other[columns].T
            if penalties is not None:
                for_left = for_left + penalties[right][columns]
                for_right = for_right + penalties[left][rows, np.newaxis]
            _raise_to(to_left[rows], for_left.max(axis=1))
            _raise_to(to_right[columns], for_right.max(axis=0))
    return BestCosines(_finished(best.left), _finished(best.right))


def _nothing_yet(sizes: IntArray) -> VectorArray:
    return np.full(int(sizes.sum()), -np.inf, dtype=np.float32)


def _small_maxima(
    texts: Sequence[VectorArray], sizes: IntArray, left: IntArray, right: IntArray
) -> tuple[VectorArray, VectorArray]:
    """Return the best cosines of pairs of short texts: products pair by pair, maxima at once."""
    n_left, n_right = sizes[left], sizes[right]
    stops = np.cumsum(n_left * n_right)
    starts = stops - n_left * n_right
    cosines = np.empty(int(stops[-1]), dtype=np.float32)
    places = (each.tolist() for each in (left, right, starts, stops, n_left))
    for i, j, start, stop, n_rows in zip(*places, strict=True):
        np.dot(texts[i], texts[j].T, out=cosines[start:stop].reshape(n_rows, -1))
    row = concat_ranges(np.zeros_like(n_left), n_left)
    row_starts = np.repeat(starts, n_left) + row * np.repeat(n_right, n_left)
    # A column's cosines lie as far apart as a row is long.
    heights, widths = np.repeat(n_left, n_right), np.repeat(n_right, n_right)
    tops = concat_ranges(starts, n_right)
    down = concat_ranges(np.zeros_like(heights), heights)
    columns = cosines[np.repeat(tops, heights) + down * np.repeat(widths, heights)]
    return (
        np.maximum.reduceat(cosines, row_starts),
        np.maximum.reduceat(columns, np.cumsum(heights) - heights),
    )


def _blocks(n_left: int, n_right: int) -> Iterator[tuple[slice, slice]]:
    """Yield parts of both texts, at most MAX_ELEMENTS cosines each; none where one is empty."""
    n_rows = min(n_left, int(MAX_ELEMENTS**0.5))
    n_columns = MAX_ELEMENTS // max(n_rows, 1)
    for row in range(0, n_left, max(n_rows, 1)):
        for column in range(0, n_right, n_columns):
            yield slice(row, row + n_rows), slice(column, column + n_columns)


def _raise_to(best: VectorArray, found: VectorArray) -> None:
    np.maximum(best, found, out=best)


def _finished(best: VectorArray) -> VectorArray:
    # Vectors of unit length have cosines of 1 + 1e-7 by rounding; a score above 1 would be a bug.
    return np.where(np.isneginf(best), np.float32(np.nan), np.clip(best, -1, 1))
