"""SAS: a cross-encoder's similarity of a predicted answer and a gold answer.

Logits in, scores out. Loads no model.

Source
------
Risch, Moeller, Gutsch, Pietsch. Semantic Answer Similarity for Evaluating Question Answering
Models. MRQA 2021, arXiv:2108.06130, section 3. With z the one output of the cross-encoder over
(reference, candidate)::

    SAS = 1 / (1 + exp(-z))       where the model's configuration asks for a sigmoid
    SAS = z                       where it does not

Differs from haystack's SASEvaluator
------------------------------------
- The activation is a fact of the model. There the sigmoid is applied where any score of a list
  exceeds 1, so the score of a row depends on its neighbors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from qaeval_core.errors import ConfigError
from qaeval_core.metrics.base import Column, Metric, PassFacts, Read, Scores, Settings
from qaeval_core.metrics.targets import Targets

FloatArray = NDArray[np.float64]
ACTIVATIONS = ("sigmoid", "identity")


def sas(*, logit: NDArray[np.float32] | FloatArray, activation: str) -> FloatArray:
    """Return SAS of pairs.

    Parameters
    ----------
    logit : float ndarray of shape (n_pairs,)
        z: what the model puts out; NaN where undefined.
    activation : {"sigmoid", "identity"}
        What the model's configuration says.

    Returns
    -------
    float ndarray of shape (n_pairs,)
        Higher is better. In [0, 1] with a sigmoid; else the model's own range, such as [0, 1] or
        [0, 5] for models of text similarity.

    Raises
    ------
    ConfigError
        If the activation is another one.

    Examples
    --------
    >>> sas(logit=np.array([0.0, 2.0, -2.0]), activation="sigmoid").round(4)
    array([0.5   , 0.8808, 0.1192])
    """
    z = np.asarray(logit, dtype=np.float64)
    if activation == "identity":
        return z
    if activation != "sigmoid":
        raise ConfigError(
            f"activation is {activation!r}; choose one of {', '.join(ACTIVATIONS)} [QA0202]"
        )
    # exp of -|z| alone: exp(800) overflows, and 1 - 1 / (1 + exp(z)) is 0 from z = -37 on.
    small = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0, small) / (1.0 + small)


SAS = "Risch et al. SAS. MRQA 2021, arXiv:2108.06130, section "


class SasSettings(Settings):
    """Settings of ``sas``."""

    cross_encoder: str = Field(
        "sas-minilm", description="bundled model, folder or hub id of the cross-encoder"
    )
    activation: Literal["model", "sigmoid", "identity"] = Field(
        "model", description="function of the logit; model: as its configuration says"
    )
    _activation: str = PrivateAttr("identity")  # Resolved: of the model, or as given.


class Sas(Metric[SasSettings]):
    """SAS."""

    name = "sas"
    title = "similarity of two answers, by a cross-encoder"
    source = SAS + "3"
    settings = SasSettings
    needs = ("cross_encoder",)
    columns = (Column(""), Column("truncated", "count"))

    def reads(self, settings: SasSettings) -> tuple[Read, ...]:
        """Return the logits."""
        return (Read(family="sas", model=settings.cross_encoder),)

    def resolve(self, settings: SasSettings, passes: Mapping[str, PassFacts]) -> SasSettings:
        """Return settings that know the model's activation."""
        found = settings.model_copy()
        found._activation = settings.activation
        if settings.activation == "model":
            found._activation = passes["sas"].activation or "identity"
        return found

    def signed(self, settings: SasSettings) -> dict[str, object]:
        """Return the settings; what a model's configuration says is not in its artifact's hash."""
        return {**super().signed(settings), "activation": settings._activation}

    def score(self, settings: SasSettings, read: Mapping[str, Targets]) -> Scores:
        """Return the columns of some rows."""
        pairs = read["sas"]
        best = pairs.best(sas(logit=pairs["logit"], activation=settings._activation))
        return Scores({"": best, "truncated": pairs.total("is_truncated")}, pairs.reasons(best))
