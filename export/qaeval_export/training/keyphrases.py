"""Keyphrases: questions with answers in a context -> short texts whose tokens are labeled.

The text is the sentence, or the run of sentences, that holds the answer: short answers are what a
keyphrase predictor meets when it is used.

Source
------
Lee, Yoon, Dernoncourt, Kim, Bui, Shin, Jung. KPQA: A Metric for Generative Question Answering Using
Keyphrase Weights. NAACL 2021, arXiv:2005.00192, section 3.1.

Differs from the paper
----------------------
- Several annotators mark different spans. A token's label is the share of them that marked it: the
  predictor's probability is used as a weight, and a share is what it should be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import spacy

from qaeval_export.training.inputs import Question

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Keyphrase:
    """A question, a short text, and the spans of its answers there.

    Attributes
    ----------
    question, text : str
    spans : tuple of (start, end)
        Character offsets in ``text``, one per annotator, end excluded.
    """

    question: str
    text: str
    spans: tuple[Span, ...]


class SentenceSplitter:
    """Splits contexts into sentences by rules; the same context once.

    Parameters
    ----------
    language : str
        spaCy's code, such as ``en`` or ``de``; ``xx`` knows no abbreviations.

    Examples
    --------
    >>> text = "Dr. Ames kept bees. They swarmed in 1.5 hours!"
    >>> [text[start:end] for start, end in SentenceSplitter("en")(text)]
    ['Dr. Ames kept bees.', 'They swarmed in 1.5 hours!']
    """

    def __init__(self, language: str) -> None:
        self._pipeline = spacy.blank(language)
        self._pipeline.add_pipe("sentencizer")
        self._known: dict[str, list[Span]] = {}

    def __call__(self, context: str) -> list[Span]:
        """Return the sentences' offsets, in order; the text between them is white space."""
        if context not in self._known:
            sentences = self._pipeline(context).sents
            self._known[context] = [(part.start_char, part.end_char) for part in sentences]
        return self._known[context]


def keyphrases(questions: Iterable[Question], splitter: SentenceSplitter) -> list[Keyphrase]:
    """Return a labeled text for each question: the sentences that most annotators point into.

    Examples
    --------
    >>> asked = Question("It rained. Ann came at 9. Bo left.", "Who came?", ((11, 14), (11, 24)))
    >>> keyphrases([asked], SentenceSplitter("en"))
    [Keyphrase(question='Who came?', text='Ann came at 9.', spans=((0, 3), (0, 13)))]
    """
    return [_keyphrase(question, splitter(question.context)) for question in questions]


def _keyphrase(question: Question, sentences: Sequence[Span]) -> Keyphrase:
    texts = [_around(span, sentences) for span in question.spans]
    # Ties go to the annotator who comes first.
    (start, end), _ = Counter(texts).most_common(1)[0]
    spans = tuple(
        (a - start, b - start)
        for (a, b), text in zip(question.spans, texts, strict=True)
        if text == (start, end)
    )
    return Keyphrase(question.question, question.context[start:end], spans)


def _around(span: Span, sentences: Sequence[Span]) -> Span:
    """Return the shortest run of sentences that holds a span."""
    held = [s for s in sentences if s[0] < span[1] and s[1] > span[0]]
    return min(held[0][0], span[0]), max(held[-1][1], span[1])


def token_labels(offsets: Sequence[Span], spans: Sequence[Span]) -> list[float]:
    """Return for each token the share of spans that it overlaps.

    Parameters
    ----------
    offsets : sequence of (start, end)
        Of the tokens in the text.
    spans : sequence of (start, end)
        At least one.

    Examples
    --------
    >>> token_labels([(0, 3), (4, 8), (9, 11)], [(0, 3), (0, 8)])
    [1.0, 0.5, 0.0]
    """
    return [
        sum(start < b and end > a for a, b in spans) / len(spans) if end > start else 0.0
        for start, end in offsets
    ]
