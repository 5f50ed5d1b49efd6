"""Scores that are one step from a model's output: MoverScore, SAS, bi-encoder."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from qaeval_core.errors import ConfigError
from qaeval_core.metrics.bi_encoder import bi_encoder
from qaeval_core.metrics.moverscore import moverscore
from qaeval_core.metrics.sas import sas


def test_moverscore_falls_with_the_cost_and_keeps_undefined_pairs() -> None:
    """The cost itself would rank the worst answer first; NaN must not become 1."""
    scores = moverscore(transport_cost=np.array([0.0, 0.5, 2.0, math.nan]))
    np.testing.assert_array_equal(scores, [1.0, 0.5, -1.0, math.nan])


@pytest.mark.parametrize("logit", [-800.0, -40.0, -1.5, 0.0, 1.5, 40.0, 800.0])
def test_sas_is_the_sigmoid_at_every_magnitude(logit: float) -> None:
    """exp overflows with a warning at 800, and 1 - sigmoid(z) rounds small scores to 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sas(logit=np.array([logit], dtype=np.float32), activation="sigmoid")
    expected = math.exp(logit) if logit < -30 else 1 / (1 + math.exp(-logit))
    assert found.dtype == np.float64
    assert found[0] == pytest.approx(expected, rel=1e-14)


def test_sas_does_not_depend_on_other_rows() -> None:
    """haystack applies the sigmoid to all rows where one exceeds 1."""
    alone = sas(logit=np.array([0.7]), activation="identity")
    among = sas(logit=np.array([0.7, 3.0, math.nan]), activation="identity")
    assert alone[0] == among[0] == 0.7
    assert among[1] == 3.0 and math.isnan(among[2])


def test_an_unknown_activation_is_refused() -> None:
    """Read as identity, a misspelled sigmoid would publish logits as scores."""
    with pytest.raises(ConfigError, match="'Sigmoid'.*QA0202"):
        sas(logit=np.array([0.0]), activation="Sigmoid")


def test_bi_encoder_keeps_cosines_in_their_range() -> None:
    """Rounding makes 1 + 1e-7 of equal texts; a negative cosine is a score like any other."""
    cosine = np.array([1.0000001, -0.3, -1.0000001, math.nan], dtype=np.float32)
    np.testing.assert_allclose(bi_encoder(cosine=cosine), [1.0, -0.3, -1.0, math.nan], rtol=1e-7)
