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
  exceeds 1, so the score of a row depends on its neighbours.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError

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
        raise ConfigError(f"activation is {activation!r}; choose one of {', '.join(ACTIVATIONS)}")
    # exp of -|z| alone: exp(800) overflows, and 1 - 1 / (1 + exp(z)) is 0 from z = -37 on.
    small = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0, small) / (1.0 + small)
