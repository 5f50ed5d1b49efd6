"""Family ``answer_span``: where a reader finds a question's answer, compared with the given one.

Source: ``metrics.roundtrip`` has the equations. A unit is a question with one window of its
context. Windows overlap by the longest answer, and a span belongs to the window that owns its first
token, so all windows together have each span once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.families.model_units import (
    CANDIDATE_TOO_LONG,
    ModelScorer,
    PairTemplate,
    Reasons,
    Units,
    Work,
    has_score,
    list_column,
    per_target,
    refuse_non_finite,
    target_windows,
)
from qaeval_core.families.validate import IntArray, SharedPairs
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.record import MAX_ANSWER_TOKENS, N_ANSWER_SPANS, NO_SPAN
from qaeval_core.text.encode import CharSpans, TextEncoder, overlapping_windows
from qaeval_core.text.tokenize import make_tokenizer

EMPTY_ANSWER = "empty_answer"
_SQUAD_WORDS = make_tokenizer("squad")

# A question, and the answer that it was made for.
ContextAndQuestion = tuple[str, str]


@dataclass(frozen=True, slots=True)
class FoundSpan:
    """A span of a context: its words, and the logit of its first and last tokens together."""

    text: str
    score: float
    start: int  # first character in the context


@dataclass(frozen=True, slots=True)
class SpanReading:
    """What a reader found in all windows of a context.

    Attributes
    ----------
    spans : list of FoundSpan
        The best ones, best first, each with another first token.
    log_sum : float
        log sum exp of the scores of all spans of the context.
    null_score : float
        Of "no answer", in the window that says so least.
    """

    spans: list[FoundSpan]
    log_sum: float
    null_score: float


@dataclass(slots=True)
class ReadContext:
    """A context that is read for a question.

    Attributes
    ----------
    text : str
    words : int ndarray of shape (n_tokens, 2)
        The characters of each token's word.
    units : list of int
        One a window.
    shifts : list of int
        What turns a window's token into one of the context.
    """

    text: str
    words: CharSpans
    units: list[int] = field(default_factory=list)
    shifts: list[int] = field(default_factory=list)

    def reading(self, output: NDArray[np.float32], *, n_spans: int = 1) -> SpanReading:
        """Return what was found, from what the graph returned for all units."""
        windows = output[self.units].astype(np.float64)
        if not np.isfinite(windows[:, :3]).all():  # Sum, "no answer" and the best span.
            return SpanReading([], np.nan, np.nan)
        scores, first, last = np.split(windows[:, 2:], 3, axis=1)
        best = np.argsort(-scores, axis=None, kind="stable")[:n_spans]
        spans = []
        for window, rank in zip(*np.unravel_index(best, scores.shape), strict=True):
            score = float(scores[window, rank])
            if score <= NO_SPAN / 2:
                break  # There are no more.
            shift = self.shifts[window]
            start = int(self.words[int(first[window, rank]) + shift, 0])
            stop = int(self.words[int(last[window, rank]) + shift, 1])
            spans.append(FoundSpan(self.text[start:stop].strip(), score, start))
        return SpanReading(
            spans, float(np.logaddexp.reduce(windows[:, 0])), float(windows[:, 1].min())
        )


class AnswerSpanScorer(ModelScorer):
    """Lays out (question, context) pairs for the graph ``answer_span``."""

    def __init__(
        self, artifact: Artifact, encoder: TextEncoder, options: Mapping[str, object]
    ) -> None:
        super().__init__(artifact, encoder, options)
        self._template = PairTemplate.of(artifact)

    def lay_out(self, shared: SharedPairs[Any]) -> AnswerSpanWork:
        """Encode distinct texts; lay out one unit per window of each distinct pair."""
        asked = [(question, answer) for question, answer in shared.candidates]
        contexts = [str(context) for context in shared.targets]
        index = {text: i for i, text in enumerate(dict.fromkeys(text for text, _ in asked))}
        questions = self.encoder.encode(list(index))
        question_of = np.array([index[text] for text, _ in asked], dtype=np.int64)
        encoded, words = self.encoder.encode_words(contexts)
        asked_with = questions.take(question_of[shared.pair_candidate])
        read_in = encoded.take(shared.pair_target)
        room, reasons = self._room(asked_with.counts, read_in.counts)
        has_no_answer = np.array([not answer.strip() for _, answer in asked], dtype=bool)
        reasons[has_score(reasons) & has_no_answer[shared.pair_candidate]] = EMPTY_ANSWER
        second_start = self._template.second_start(asked_with.counts)
        read: list[ReadContext | None] = [None] * len(reasons)
        known: dict[tuple[str, int], ReadContext] = {}
        windows: list[tuple[int, int, int, int]] = []
        for pair in np.flatnonzero(has_score(reasons)).tolist():
            i, j = int(shared.pair_candidate[pair]), int(shared.pair_target[pair])
            own = read[pair] = known.setdefault(
                (asked[i][0], j), ReadContext(contexts[j], words[j])
            )
            if own.units:
                continue
            for start, stop, n_owned in overlapping_windows(
                len(read_in[pair]), max_tokens=int(room[pair]), n_overlap=MAX_ANSWER_TOKENS
            ):
                own.units.append(len(windows))
                own.shifts.append(start - int(second_start[pair]))
                windows.append((pair, start, stop - start, n_owned))
        of, start_of, n_context, n_starts = np.array(windows, np.int64).reshape(-1, 4).T
        units = Units(
            self._template.pair(asked_with.take(of), read_in.take(of).cut(start_of, n_context)),
            told={
                "second_start": second_start[of],
                "n_context": n_context,
                "n_starts": n_starts,
            },
            shape=(2 + 3 * N_ANSWER_SPANS,),
        )
        return AnswerSpanWork(shared, asked, units, read, reasons)

    def _room(self, n_question: IntArray, n_context: IntArray) -> tuple[IntArray, Reasons]:
        room, reasons = target_windows(
            n_question,
            n_context,
            n_positions=self.artifact.record.max_positions,
            n_special=self._template.n_special,
        )
        # A window of which half is the next one's too: with less, there would be no end of them.
        reasons[has_score(reasons) & (room < 2 * MAX_ANSWER_TOKENS)] = CANDIDATE_TOO_LONG
        return room, reasons


class AnswerSpanWork(Work):
    """Units of one shard, and what was found in the context of each pair once the model ran."""

    def __init__(
        self,
        shared: SharedPairs[Any],
        asked: list[ContextAndQuestion],
        units: Units,
        read: list[ReadContext | None],
        reasons: Reasons,
    ) -> None:
        self.shared = shared
        self.units = units
        self.read = read
        self._reasons = reasons
        self._asked = asked
        n_windows = np.array([0 if own is None else len(own.units) for own in read], np.int64)
        self._n_windows = n_windows
        self.n_units_unshared = int(n_windows[shared.row_pair].sum())

    def statistics(self) -> dict[str, pa.Array]:
        """Return scores, the answer that was found, and its words in common with the given one."""
        output = self.units.output
        distinct = {id(read): read for read in self.read if read is not None}
        readings = {key: read.reading(output) for key, read in distinct.items()}
        n_pairs = len(self.read)
        answers: list[str | None] = [None] * n_pairs
        scores = np.full((n_pairs, 3), np.nan)
        words = np.zeros((n_pairs, 4), dtype=np.int64)
        for pair, read in enumerate(self.read):
            found = readings.get(id(read))
            if found is None or not found.spans:
                continue
            (best,) = found.spans
            answers[pair] = best.text
            scores[pair] = best.score, found.log_sum, found.null_score
            _, given = self._asked[int(self.shared.pair_candidate[pair])]
            words[pair] = _in_common(best.text, given)
        reasons, _ = refuse_non_finite(self._reasons, scores.sum(axis=1))
        found_answers = [answers[pair] for pair in self.shared.row_pair.tolist()]
        columns = {
            "answer": list_column(found_answers, self.shared.n_targets),
            "n_windows": per_target(self.shared, self._n_windows),
            "reasons": per_target(self.shared, reasons),
        }
        for i, name in enumerate(("score", "log_sum", "null_score")):
            columns[name] = per_target(self.shared, scores[:, i])
        for i, name in enumerate(("is_equal", "n_common", "n_found", "n_given")):
            columns[name] = per_target(self.shared, words[:, i])
        return columns


def _in_common(found: str, given: str) -> tuple[bool, int, int, int]:
    """Return whether two answers are equal, and their words: in common, of each.

    Examples
    --------
    >>> _in_common("The old mill", "an Old Mill!"), _in_common("a mill", "old mill")
    ((True, 2, 2, 2), (False, 1, 1, 2))
    """
    left, right = _SQUAD_WORDS(found), _SQUAD_WORDS(given)
    n_common = (Counter(left) & Counter(right)).total()
    return left == right, n_common, len(left), len(right)
