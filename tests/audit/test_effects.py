"""Effects from cells against scipy on raw values, and bins of PSI by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.distance import jensenshannon

from audit_runs import cells_of, hashes_of, run_of
from qaeval_core.audit.drift import Pair, Test
from qaeval_core.audit.effects import psi_bins
from qaeval_core.profile.cells import Cells


def effects_of(before: np.ndarray, now: np.ndarray, cells: Cells | None = None) -> dict[str, Test]:
    own = {"score": cells} if cells else cells_of({"score": before})
    runs = [
        run_of({"score": each}, hashes_of(np.arange(len(each)) % 40), own) for each in (before, now)
    ]
    found = Pair.of(*runs, n_draws=19).column("score", (0, 0), "", is_few=False)
    return {test.statistic: test for test in found}


value = st.floats(-3, 3, width=32) | st.sampled_from([0.0, 1.0, -3.0, 3.0])


@settings(max_examples=40, deadline=None)
@given(st.lists(value, min_size=1, max_size=60), st.lists(value, min_size=2, max_size=60))
def test_distances_are_those_of_raw_values(before: list[float], now: list[float]) -> None:
    """Within the width, or the mass, of one cell."""
    raw = [np.array(before) + 0.0, np.array(now) + 0.0]
    cells = Cells(-3.0, 3.0, (0.0, 1.0))
    found = effects_of(*raw, cells)
    spread = raw[0].std() or raw[1].std() or cells.width
    expected = stats.wasserstein_distance(*raw)
    if spread > 0.01:
        assert found["wasserstein"].effect * spread == pytest.approx(expected, abs=cells.width)
        shift = raw[1].mean() - raw[0].mean()
        # Sums of x and of its square are in steps of 2^-31 of the half width, and of its square.
        rounded = 2.0**-31 * 3.0**2 / spread**2
        assert found["mean"].effect * spread == pytest.approx(shift, rel=rounded, abs=1e-6)
    counts = [np.bincount(cells.codes(own), minlength=cells.n_cells)[:-1] for own in raw]
    # Values of one cell cannot be told apart, but those of an atom need not be.
    mass = [np.delete(own / own.sum(), cells.codes(np.array(cells.atoms))) for own in counts]
    largest = max(own.max() for own in mass)
    ks = stats.ks_2samp(*raw, method="asymp").statistic
    assert ks - largest - 1e-9 <= found["ks"].effect <= ks + 1e-9
    js = jensenshannon(*counts, base=2)
    assert found["js"].effect == pytest.approx(js, abs=1e-7)


def test_js_of_values_that_repeat_is_that_of_the_raw_values() -> None:
    rng = np.random.default_rng(0)
    before, now = rng.integers(0, 6, 300) / 5, rng.integers(0, 5, 200) / 5
    shares = [np.bincount((own * 5).astype(int), minlength=6) for own in (before, now)]
    found = effects_of(before, now)["js"]
    assert found.effect == pytest.approx(jensenshannon(*shares, base=2))


def test_undefined_values_and_infinities_have_their_place() -> None:
    before = np.array([0.0, 0.25, 0.5, 1.0])
    now = np.array([0.25, np.nan, np.inf, -np.inf])
    found = effects_of(before, now, Cells(0.0, 1.0))
    assert (found["undefined"].reference, found["undefined"].current) == (0.0, 0.25)
    assert found["mean"].current == pytest.approx(0.25)
    # At -inf the functions are 0 and 1/3, at .25 1/2 and 2/3, at 1 1 and 2/3.
    assert found["ks"].effect == pytest.approx(1 / 3)


def test_psi_is_that_of_a_sum_by_hand() -> None:
    """Twenty values in twenty cells make ten bins; 0 is an atom, and one is undefined."""
    before = np.concatenate([np.arange(1, 21) / 20, np.zeros(10)])
    now = np.concatenate([np.arange(1, 21) / 20, np.zeros(4), [np.nan] * 6])
    cells = Cells(0.0, 1.0, (0.0,))
    counts = np.bincount(cells.codes(before), minlength=cells.n_cells)
    bins = psi_bins(cells, counts)
    assert bins.max() + 1 == 12
    assert np.bincount(bins, counts).tolist() == [*[2] * 10, 10, 0]
    n = 30 + 0.5 * 12
    pairs = [((2 + 0.5) / n, (2 + 0.5) / n)] * 10
    pairs += [((10 + 0.5) / n, (4 + 0.5) / n), ((0 + 0.5) / n, (6 + 0.5) / n)]
    expected = sum((c - r) * math.log(c / r) for r, c in pairs)
    assert expected == pytest.approx(0.569, abs=5e-4)
    found = effects_of(before, now, cells)["psi"]
    assert found.observed**2 == pytest.approx(expected)
    assert found.null is not None
    by_chance = (found.null**2).mean()
    assert 0 < by_chance < expected
    assert found.effect == pytest.approx(expected - by_chance)
    same = effects_of(before, before, cells)
    assert {test.effect for test in same.values()} == {0.0}


def test_a_value_has_a_bin_of_its_own_from_a_twentieth_on() -> None:
    """A value of 1 % was chosen for being frequent there: it is rarer next week by chance alone."""
    cells = Cells(0.0, 1.0, (0.25, 0.5, 0.75))
    counts = np.zeros(cells.n_cells)
    counts[cells.codes(np.linspace(0.01, 0.99, 800))] += 1
    for value, n in ((0.25, 10), (0.5, 20), (0.75, 60)):
        counts[cells.codes(np.array([value]))] = n
    bins = psi_bins(cells, counts)
    own = [bins[cells.codes(np.array([value]))[0]] for value in cells.atoms]
    shared = [np.count_nonzero(bins == each) > 1 for each in own]
    assert shared == [True, True, False]
