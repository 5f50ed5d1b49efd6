"""Top-n accuracy: 1 where one of the first n predicted spans overlaps a gold span.

Character offsets in, scores out; texts are not compared.

Source
------
Risch et al. Semantic Answer Similarity for Evaluating Question Answering Models. MRQA 2021,
arXiv:2108.06130, section 1: "any positional overlap between the ground-truth answer and one of the
first n model predictions". A question without gold span is answered right by predicting none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from qaeval_core.metrics.base import Metric, Read, Scores, Settings, columns
from qaeval_core.metrics.targets import Targets
from qaeval_core.metrics.words import scored

Span = tuple[int, int]
NO_OVERLAP = -1


def first_overlap(predicted: Sequence[Span], gold: Sequence[Span]) -> int:
    """Return the place (from 0) of the first predicted span that overlaps a gold one, else -1.

    Spans are [start, end): touching ones do not overlap, an empty one overlaps nothing. Without
    gold spans the place is 0 if nothing is predicted either.

    Examples
    --------
    >>> first_overlap([(0, 4), (10, 14)], [(12, 20)]), first_overlap([(0, 4)], [(4, 8)])
    (1, -1)
    """
    if not gold:
        return 0 if not predicted else NO_OVERLAP
    for place, (start, end) in enumerate(predicted):
        if any(max(start, g_start) < min(end, g_end) for g_start, g_end in gold):
            return place
    return NO_OVERLAP


def top_n_accuracy(*, first_overlap: NDArray[np.int64], n: int) -> NDArray[np.float64]:
    """Return 1 where the first overlap is among the first n spans, else 0.

    Examples
    --------
    >>> top_n_accuracy(first_overlap=np.array([0, 4, 5, -1]), n=5)
    array([1., 1., 0., 0.])
    """
    return ((first_overlap >= 0) & (first_overlap < n)).astype(np.float64)


class SpanSettings(Settings):
    """Settings of ``top_n_accuracy``."""

    n: int = Field(5, ge=1, description="number of predicted spans to use, best first")


class TopNAccuracy(Metric[SpanSettings]):
    """Top-n accuracy of spans."""

    name = "top_n_accuracy"
    title = "1 where one of the first n predicted spans overlaps a gold span"
    source = "Risch et al. SAS. MRQA 2021, arXiv:2108.06130, section 1"
    settings = SpanSettings
    needs = ("words",)
    roles = ("predicted_spans", "gold_spans")
    columns = columns("", kind="exact")

    def reads(self, settings: SpanSettings) -> tuple[Read, ...]:
        """Return the place of the first overlap."""
        return (Read(family="spans", roles=self.roles),)

    def score(self, settings: SpanSettings, read: Mapping[str, Targets]) -> Scores:
        """Return the columns of some rows."""
        places = read["spans"].of_rows("first_overlap").astype(np.int64)
        score = top_n_accuracy(first_overlap=places, n=settings.n)
        return scored(read["spans"], {"": score})
