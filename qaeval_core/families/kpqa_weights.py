"""Family ``kpqa_weights``: what each token of an answer is worth for its question.

Source: KPQA, section 3.1 (``metrics.kpqa`` has the equations). A unit is a question with one text:
the candidate, or a reference. Long texts are read in windows, each with the whole question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.families.model_units import (
    CANDIDATE_TOO_LONG,
    EMPTY_CANDIDATE,
    NON_FINITE,
    ModelScorer,
    PairTemplate,
    Reasons,
    TokenValueUnits,
    Work,
    has_score,
    list_column,
    per_target,
    spread,
    target_windows,
)
from qaeval_core.families.validate import SharedPairs, SharedTexts, share_texts
from qaeval_core.text.encode import TextEncoder, equal_cuts
from qaeval_core.text.lcs import weighted_lcs
from qaeval_core.text.ngrams import concat_ranges
from qaeval_core.text.token_runs import TokenRuns

# A question and a text that is read with it.
Judged = tuple[str, str]

EMPTY_QUESTION = "empty_question"
QUESTION_TOO_LONG = "question_too_long"


class KpqaWeightsScorer(ModelScorer):
    """Lays out (question, text) pairs for the graph ``keyphrase_weights``.

    Option ``show_weights``: whether the candidate's tokens and weights are stored.
    """

    def lay_out(self, shared: SharedPairs[Judged]) -> KpqaWork:
        """Encode distinct questions and texts; lay out one unit per window of each unit's text."""
        template = PairTemplate.of(self.artifact)
        texts = share_texts(shared)
        questions = _encode_distinct(self.encoder, [question for question, _ in texts.texts])
        answers = _encode_distinct(self.encoder, [text for _, text in texts.texts])
        room, reasons = target_windows(
            questions.counts,
            np.maximum(answers.counts, 1),  # An empty answer needs no window.
            n_positions=self.artifact.record.max_positions,
            n_special=template.n_special,
        )
        reasons[reasons == EMPTY_CANDIDATE] = EMPTY_QUESTION
        reasons[reasons == CANDIDATE_TOO_LONG] = QUESTION_TOO_LONG
        n_read = np.where(has_score(reasons), answers.counts, 0)
        text, start, n_tokens = equal_cuts(n_read, max_tokens=np.maximum(room, 1))
        question = questions.take(text)
        second_start = template.second_start(question.counts)
        first = np.cumsum(answers.counts) - answers.counts
        units = TokenValueUnits(
            template.pair(question, answers.take(text).cut(start, n_tokens)),
            told={"second_start": second_start},
            first_token=second_start,
            first_value=first[text] + start,
            n_values=n_tokens,
            values_shape=(int(answers.counts.sum()),),
        )
        shows_weights = bool(self.options.get("show_weights", False))
        work = KpqaWork(
            shared,
            texts,
            answers,
            units,
            reasons,
            shown_by=self.encoder if shows_weights else None,
        )
        n_windows = np.bincount(text, minlength=len(answers))
        of_pairs = n_windows[texts.left] + n_windows[texts.right]
        work.n_units_unshared = int(of_pairs[shared.row_pair].sum())
        return work


def _encode_distinct(encoder: TextEncoder, texts: Sequence[str]) -> TokenRuns:
    """Return the token ids of texts; equal ones are encoded once."""
    index = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return encoder.encode(list(index)).take([index[text] for text in texts])


class KpqaWork(Work):
    """Units of one shard, and the weight of every token once the model ran.

    Parameters
    ----------
    answers : TokenRuns
        Each distinct text.
    shown_by : TextEncoder, optional
        What shows the candidate's tokens, where they and their weights are stored.
    """

    units: TokenValueUnits

    def __init__(
        self,
        shared: SharedPairs[Judged],
        texts: SharedTexts[Judged],
        answers: TokenRuns,
        units: TokenValueUnits,
        reasons: Reasons,
        *,
        shown_by: TextEncoder | None,
    ) -> None:
        self._shared = shared
        self._texts = texts
        self._answers = answers
        self._shown_by = shown_by
        self._reasons = reasons
        self._count = answers.counts
        self.first = np.cumsum(self._count) - self._count
        self.units = units

    def statistics(self) -> dict[str, pa.Array]:
        """Return weights and counts of weighted words, per target of every row."""
        left, right = self._texts.left, self._texts.right
        reasons = self._pair_reasons()
        is_scored = has_score(reasons)
        scored = np.flatnonzero(is_scored)
        weights = self._text_weights()
        counts = keyphrase_counts(
            candidates=[self._answers[i] for i in left[scored].tolist()],
            references=[self._answers[i] for i in right[scored].tolist()],
            candidate_weights=[weights[i] for i in left[scored].tolist()],
            reference_weights=[weights[i] for i in right[scored].tolist()],
        )
        columns = {"reasons": per_target(self._shared, reasons)}
        for name, values in zip(counts._fields, counts, strict=True):
            whole = np.full(len(reasons), np.nan)
            whole[scored] = values
            columns[name] = per_target(self._shared, whole)
        for name, side in (("candidate_weights", left), ("reference_weights", right)):
            count = np.where(is_scored, self._count[side], 0)
            columns[name] = spread(self._shared, self.units.values, self.first[side], count)
        if self._shown_by is not None:
            columns |= self._shown(self._shown_by)
        return columns

    def _pair_reasons(self) -> Reasons:
        """Return why a pair has no score: one of its texts has no weights."""
        of_texts = self._reasons.copy()
        owner = np.repeat(np.arange(len(self._answers)), self._count)
        bad = owner[~np.isfinite(self.units.values)]
        of_texts[bad] = np.where(has_score(of_texts[bad]), NON_FINITE, of_texts[bad])
        left, right = of_texts[self._texts.left], of_texts[self._texts.right]
        return np.where(has_score(left), right, left)

    def _text_weights(self) -> list[NDArray[np.float32]]:
        stops = self.first + self._count
        return [
            self.units.values[start:stop]
            for start, stop in zip(self.first.tolist(), stops.tolist(), strict=True)
        ]

    def _shown(self, encoder: TextEncoder) -> dict[str, pa.Array]:
        """Return the candidate's tokens and weights of every row; none where no target is."""
        shared = self._shared
        first_target = np.cumsum(shared.n_targets) - shared.n_targets
        has_target = shared.n_targets > 0
        texts = self._texts.left[shared.row_pair[first_target[has_target]]]
        count = np.zeros(len(shared.n_targets), dtype=np.int64)
        count[has_target] = self._count[texts]
        places = concat_ranges(self.first[texts], self._count[texts])
        tokens: list[str | None] = list(encoder.tokens(self._answers.take(texts).flat()))
        return {
            "shown_tokens": list_column(tokens, count),
            "shown_weights": list_column(self.units.values[places], count),
        }


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
