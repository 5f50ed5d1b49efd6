"""QRelScore's formulas against brute force and the paper's definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qaeval_core.errors import ConfigError
from qaeval_core.metrics import qrelscore

unit_floats = st.floats(0.0, 1.0)


def _reference_power_mean(values: list[float], exponent: float) -> float:
    total = 0.0
    for value in values:
        total += (max(value, 0.0) if exponent != 1.0 else value) ** exponent
    return (total / len(values)) ** (1.0 / exponent)


@given(
    st.lists(st.floats(0.01, 1.0), min_size=6, max_size=6),
    st.sampled_from([1.0, 2.0, 3.0, 0.5]),
    st.sampled_from(qrelscore.LAYERS),
)
def test_power_mean_over_layers_is_eq_3(values: list[float], exponent: float, layers: str) -> None:
    """Protects from a mean of the wrong layers or with the wrong exponent."""
    chosen = qrelscore.layer_indices(layers, n_layers=6)
    found = qrelscore.lrm_per_window(np.array([values]), layers=chosen, exponent=exponent)
    expected = _reference_power_mean([values[i] for i in chosen], exponent)
    assert found[0] == pytest.approx(expected, rel=1e-9)


def test_thirds_tile_the_layers_and_specific_is_the_papers_choice() -> None:
    """Protects from a layer in two thirds or in none."""
    for n_layers in (2, 6, 12, 24, 7):
        parts = [qrelscore.layer_indices(name, n_layers=n_layers) for name in ("first", "middle")]
        parts.append(qrelscore.layer_indices("last", n_layers=n_layers))
        if n_layers >= 3:
            assert [layer for part in parts for layer in part] == list(range(n_layers))
    assert qrelscore.layer_indices("specific", n_layers=12) == [0, 3, 7, 11]
    assert qrelscore.layer_indices("specific", n_layers=24) == [0, 8, 15, 23]
    with pytest.raises(ConfigError, match="'every'.*QA0202"):
        qrelscore.layer_indices("every", n_layers=12)


def test_gain_ratio_is_eq_9_and_never_negative() -> None:
    """Protects from a gain divided by a signed likelihood."""
    base, prompted = np.array([-200.0, -200.0, 0.0]), np.array([-150.0, -250.0, -1.0])
    ratio = qrelscore.grg_per_window(base, prompted, profile="paper", gain="ratio")
    assert ratio[:2].tolist() == [0.25, 0.0]
    assert math.isnan(ratio[2])
    absolute = qrelscore.grg_per_window(base, prompted, profile="paper", gain="absolute")
    assert absolute.tolist() == [50.0, -50.0, -1.0]
    authors = qrelscore.grg_per_window(
        np.array([0.2]), np.array([0.3]), profile="authors", gain="ratio"
    )
    assert authors[0] == pytest.approx(0.5)


@given(unit_floats, unit_floats)
def test_harmonic_mean_lies_between_its_parts(lrm: float, grg: float) -> None:
    """Protects from 0/0 and from a mean outside its parts; 0 where either is <= 0."""
    score = float(qrelscore.combine(np.array([lrm]), np.array([grg]))[0])
    if lrm <= 0 or grg <= 0:
        assert score == 0.0
    else:
        assert min(lrm, grg) - 1e-12 <= score <= max(lrm, grg) + 1e-12


def test_undefined_parts_stay_undefined() -> None:
    """Protects from NaN turned into 0."""
    parts = qrelscore.combine(np.array([np.nan, 0.5, -0.2]), np.array([0.5, np.nan, 0.4]))
    assert np.isnan(parts).tolist() == [True, True, False]
    assert parts[2] == 0.0
    assert np.isnan(qrelscore.rescale(np.array([np.nan]), 0.5))[0]


@given(st.lists(unit_floats, min_size=1, max_size=8), st.floats(-0.9, 0.99))
def test_rescaling_keeps_order_and_range(values: list[float], baseline: float) -> None:
    """Protects from ranks changed by a monotone rescaling."""
    raw = np.sort(np.array(values))
    rescaled = qrelscore.rescale(raw, baseline)
    assert ((rescaled >= 0) & (rescaled <= 1)).all()
    assert (np.diff(rescaled) >= 0).all()
