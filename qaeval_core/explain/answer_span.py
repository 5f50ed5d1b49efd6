"""Explain a reader: the answer that it found, the next best ones, and what it thinks of none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from qaeval_core.explain.parts import Part, number, short
from qaeval_core.explain.recompute import FamilyRun
from qaeval_core.families.answer_span import AnswerSpanWork, FoundSpan, Reading
from qaeval_core.models.record import N_ANSWER_SPANS
from qaeval_core.pages.html import NO_PIECE, Fields, Strip, Table


def answer_parts(run: FamilyRun) -> Iterator[tuple[Part, ...]]:
    """Yield what was found in the context."""
    assert isinstance(run.work, AnswerSpanWork)
    for pair in run.work.shared.row_pair.tolist():
        read = run.work.read[pair]
        if read is None:
            yield ()
            continue
        reading = read.reading(run.work.units.output, n_spans=2 * N_ANSWER_SPANS)
        yield (_found(reading, context=read.text, given=run.text("answer"), n=len(read.units)),)


def _found(reading: Reading, *, context: str, given: str, n: int) -> Part:
    # Spans of the same words, with other word pieces at their ends, are one to people.
    distinct = {(span.start, span.text): span for span in reversed(reading.spans)}
    best = sorted(distinct.values(), key=lambda span: -span.score)[:N_ANSWER_SPANS]
    shares = [math.exp(span.score - reading.log_sum) for span in best]
    margin = best[0].score - reading.null_score
    rows = [
        (span.text or NO_PIECE, f"{span.score:.4f}", f"{share:.4f}", str(span.start))
        for span, share in zip(best, shares, strict=True)
    ]
    head = ("answer", "logits", "confidence", "first character")
    return Part(
        kind="answer_spans",
        data={
            "given_answer": given,
            "spans": [
                {"text": span.text, "start": span.start, "score": span.score, "confidence": share}
                for span, share in zip(best, shares, strict=True)
            ],
            "log_sum": reading.log_sum,
            "null_score": reading.null_score,
            "null_margin": margin,
            "n_windows": n,
        },
        line=f"found {short(best[0].text)}, confidence {shares[0]:.4f}; given {short(given)}",
        blocks=(
            Strip(
                "The context, by the confidence of what was found",
                *_coloured(best, shares, context),
            ),
            Table("The best spans; each begins elsewhere", head, rows, numbers=(1, 2, 3)),
            Fields(
                "Against the given answer",
                (
                    ("given answer", given),
                    ("logits of no answer", number(reading.null_score)),
                    ("margin over no answer", number(margin)),
                    ("windows", str(n)),
                ),
            ),
        ),
    )


def _coloured(
    spans: list[FoundSpan], shares: list[float], context: str
) -> tuple[list[str], list[float]]:
    """Return the context cut where spans begin and end, and the confidence of each piece."""
    ends = [(span.start, span.start + len(span.text)) for span in spans]
    edges = sorted({0, len(context), *(edge for both in ends for edge in both)})
    pieces, values = [], []
    for start, stop in pairwise(edges):
        inside = zip(ends, shares, strict=True)
        pieces.append(context[start:stop])
        values.append(sum(share for (a, b), share in inside if a <= start and stop <= b))
    return pieces, values
