"""Bi-encoder: cosine of the vectors of a predicted answer and a gold answer.

Cosines in, scores out. Loads no model; how a text's token vectors are pooled into one is a fact of
the model (``models.artifact``).

Source
------
Reimers, Gurevych. Sentence-BERT. EMNLP 2019, arXiv:1908.10084, section 3; as a metric of answers:
Risch et al. Semantic Answer Similarity. MRQA 2021, arXiv:2108.06130, section 3. With text vectors
u and v::

    score = u . v / (|u| |v|)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from qaeval_core.metrics.base import Column, Metric, Read, Scores, Settings
from qaeval_core.metrics.sas import SAS
from qaeval_core.metrics.targets import Targets

FloatArray = NDArray[np.float64]


def bi_encoder(*, cosine: NDArray[np.float32] | FloatArray) -> FloatArray:
    """Return the cosine itself, in 64 bits.

    Parameters
    ----------
    cosine : float ndarray of shape (n_pairs,)
        Cosine of candidate and reference; NaN where undefined.

    Returns
    -------
    float ndarray of shape (n_pairs,)
        In [-1, 1], higher is better. Rounding of 32-bit vectors is cut off at both ends.

    Examples
    --------
    >>> bi_encoder(cosine=np.array([1.0000001, 0.5], dtype=np.float32)).tolist()
    [1.0, 0.5]
    """
    return np.clip(np.asarray(cosine, dtype=np.float64), -1.0, 1.0)


ENCODER = "bundled model, folder or hub id of the encoder"


class BiEncoderSettings(Settings):
    """Settings of ``bi_encoder``."""

    encoder: str = Field("minilm", description=ENCODER)


class BiEncoder(Metric[BiEncoderSettings]):
    """Cosine of two answers' vectors."""

    name = "bi_encoder"
    title = "cosine of the vectors of two answers"
    source = "Reimers, Gurevych. Sentence-BERT. EMNLP 2019, arXiv:1908.10084; " + SAS + "3"
    settings = BiEncoderSettings
    needs = ("encoder",)
    columns = (Column(""), Column("truncated", "count"))
    low = -1.0
    is_symmetric = True

    def reads(self, settings: BiEncoderSettings) -> tuple[Read, ...]:
        """Return the cosines."""
        return (Read(family="bi_encoder", model=settings.encoder),)

    def score(self, settings: BiEncoderSettings, read: Mapping[str, Targets]) -> Scores:
        """Return the columns of some rows."""
        pairs = read["bi_encoder"]
        best = pairs.best(bi_encoder(cosine=pairs["cosine"]))
        return Scores({"": best, "truncated": pairs.total("n_truncated")}, pairs.reasons(best))
