"""Drift: whether two profiles differ by more than other clusters of the same corpus would.

The test of each statistic T is a centered bootstrap over buckets of clusters: buckets of each run
are drawn again, and what the draws are off by is what chance does::

    G* = (F*_current - F_current) - (F*_reference - F_reference)
    p  = (1 + #{T(G*) >= T(F_current - F_reference)}) / (R + 1)

All columns and slices share the draws, so that the largest of their T* in each draw tells how large
one of them gets by chance::

    p_adjusted = (1 + #{max_j T*_j / c_j >= T / c}) / (R + 1)

c being the mean of the largest twentieth of a test's T*. In standard deviations, which are usual,
tests with long tails would hide what others tell.

Source
------
Westfall, Young. Resampling-Based Multiple Testing. Wiley 1993 (single-step max-T). Davison,
Hinkley. Bootstrap Methods and their Application. Cambridge 1997, section 2.4 (clusters), 4.4.

Of what few rows are, small runs may have none, and draws of none are all alike. So the difference
of two shares varies at least as if rows of both runs varied alike; what lacks is added as normal
noise. Draws of few clusters vary too little and have a thin tail: `tail_factor` moves them away.

Intervals of shifts and rates are percentiles of their draws. Those of distances are T -+ the
level's quantile of T*, and not less than 0: draws of a distance lie above it, for each adds noise,
and percentiles of them would leave out the truth where nothing moved.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qaeval_core.audit import effects
from qaeval_core.profile.column_profile import N_BUCKETS, FloatArray, IntArray, Profile
from qaeval_core.profile.run_profile import RunProfile
from qaeval_core.stats.bootstrap import LEVEL, percentile_interval, resample_weights

N_DRAWS = 999
MIN_CLUSTERS = 30
# 30 clusters fill 28 buckets on average, and fewer than 20 never: values of fewer are of so few.
_MIN_BUCKETS = 20
# What is left of 0 where numbers were rounded.
ROUNDED = 1e-12
_TAIL = 0.995
# Below this share of half the range a standard deviation is what sums were rounded by.
_NO_SPREAD = 2.0**-14
# Never an alert of their own: tests of these columns are for people to see.
SHOWN = ("ks", "js")


@dataclass(frozen=True, slots=True, eq=False)
class Test:
    """One statistic of one column and slice.

    Attributes
    ----------
    column, slice, statistic : str
        An empty column for rates of rows; an empty slice for all rows.
    reference, current : float
        What people compare; NaN where it is a distance.
    effect : float
        What is compared with a tolerance; NaN where one side has no values.
    low, high : float
        Of its 95 % interval.
    observed : float
        T.
    null : float ndarray of shape (n_draws,), optional
        T*; NaN where a draw has no values; None where nothing is tested.
    is_few : bool
        Whether there are too few clusters for a verdict.
    given_p : float
        p of a statistic that brings its own; NaN where draws say it.
    """

    __test__ = False  # no test of pytest's

    column: str
    slice: str
    statistic: str
    reference: float
    current: float
    effect: float
    low: float = float("nan")
    high: float = float("nan")
    observed: float = float("nan")
    null: FloatArray | None = None
    is_few: bool = False
    given_p: float = float("nan")

    @property
    def p(self) -> float:
        """The chance of such a T where nothing moved, in (0, 1]; NaN where nothing is tested."""
        if self.null is None or np.isnan(self.observed):
            return self.given_p
        # A draw without values speaks for chance.
        n_as_large = int(np.count_nonzero(~(self.null < self.observed - ROUNDED)))
        return (1 + n_as_large) / (1 + len(self.null))


def tail_factor(n_before: int, n_now: int) -> float:
    """Return how far draws of runs of so many clusters are moved away from them; 1 below two.

    Where nothing moved, clusters of both runs vary alike. A difference then has Welch's degrees of
    freedom, and its draws lack what each run's lack, a share 1 / B of B buckets::

        s_i = 1 / n_i,  B_i = min(n_i, N_BUCKETS)
        t_{.995, df} / z_{.995} sqrt((s_0 + s_1) / (s_0 (1 - 1 / B_0) + s_1 (1 - 1 / B_1)))
        df = (s_0 + s_1)^2 / (s_0^2 / (B_0 - 1) + s_1^2 / (B_1 - 1))
    """
    from scipy import stats  # Imported here: it takes half a second that few commands need.

    if min(n_before, n_now) < 2:
        return 1.0
    n = np.array([n_before, n_now], dtype=np.float64)
    each, free = 1 / n, np.minimum(n, N_BUCKETS) - 1
    degrees = each.sum() ** 2 / (each**2 / free).sum()
    seen = (each * free / (free + 1)).sum() / each.sum()
    tail = stats.t.ppf(_TAIL, degrees) / stats.norm.ppf(_TAIL)
    return float(tail / math.sqrt(seen))


def draw_weights(run: RunProfile, *, n_draws: int, seed: int) -> FloatArray:
    """Return how often each bucket of a run is drawn, (n_draws, N_BUCKETS); empty ones never."""
    weights = np.zeros((n_draws, N_BUCKETS))
    occupied = np.flatnonzero(run.rates["rows"][1, 0])
    if len(occupied):
        drawn = resample_weights(len(occupied), n_resamples=n_draws, seed=seed)
        weights[:, occupied] = np.concatenate(list(drawn), axis=1).T
    return weights


@dataclass(frozen=True, slots=True)
class Drawn:
    """Sums of columns of numbers over buckets: those of the run, and those of each draw."""

    whole: FloatArray  # (n,)
    draws: FloatArray  # (n_draws, n)

    @classmethod
    def of(cls, numbers: NDArray[np.number], weights: FloatArray) -> Drawn:
        """Return sums of numbers of shape (N_BUCKETS, n)."""
        own = np.asarray(numbers, dtype=np.float64)
        rows = own.any(axis=1)
        return cls(own.sum(axis=0), weights[:, rows] @ own[rows])

    def ratio(self, above: int, below: int) -> tuple[float, FloatArray]:
        """Return one sum over another, of the run and of each draw; NaN over 0."""
        whole = _over(self.whole[above], self.whole[below])
        return float(whole), _over(self.draws[:, above], self.draws[:, below])


def _over(above: NDArray[np.number], below: NDArray[np.number]) -> FloatArray:
    with np.errstate(invalid="ignore", divide="ignore"):
        shares: FloatArray = np.where(below > 0, np.divide(above, below), np.nan)
    return shares


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs and their draws.

    Attributes
    ----------
    reference, current : RunProfile
    weights : pair of float ndarray of shape (n_draws, N_BUCKETS)
        Of the reference and of the current run.
    seed : int
        Of what is drawn besides.
    """

    reference: RunProfile
    current: RunProfile
    weights: tuple[FloatArray, FloatArray]
    seed: int = 0

    @classmethod
    def of(
        cls, reference: RunProfile, current: RunProfile, *, n_draws: int = N_DRAWS, seed: int = 0
    ) -> Pair:
        """Return two runs with draws of both, which are independent."""
        return cls(
            reference,
            current,
            (
                draw_weights(reference, n_draws=n_draws, seed=2 * seed),
                draw_weights(current, n_draws=n_draws, seed=2 * seed + 1),
            ),
            seed,
        )

    def rate(
        self,
        column: str,
        label: str,
        statistic: str,
        counts: Sequence[IntArray],
        *,
        is_few: bool,
        factor: float = 1.0,
    ) -> Test:
        """Return the test of a share of rows.

        Parameters
        ----------
        counts : pair of int ndarray of shape (2, N_BUCKETS)
            Of reference and current: rows of which it is true, and rows of which it could be.
        factor : float
            Of `tail_factor`.
        """
        drawn = [
            Drawn.of(own.T, weights) for own, weights in zip(counts, self.weights, strict=True)
        ]
        (before, before_drawn), (now, now_drawn) = (own.ratio(0, 1) for own in drawn)
        noise = _lacking_noise(
            (before_drawn, now_drawn),
            n_rows=[float(own[1].sum()) for own in counts],
            seed=(self.seed, zlib.crc32(f"{statistic} {column} {label}".encode())),
        )
        return shift(
            Test(column, label, statistic, before, now, now - before, is_few=is_few),
            now_drawn - before_drawn + noise,
            factor=factor,
        )

    def column(
        self,
        name: str,
        codes: tuple[int, int],
        label: str,
        *,
        is_few: bool,
        factor: float = 1.0,
    ) -> list[Test]:
        """Return the tests of one column in one slice.

        Parameters
        ----------
        codes : pair of int
            Of the slice, in the reference and in the current run.
        factor : float
            Of `tail_factor`.
        """
        profiles = (self.reference.columns[name], self.current.columns[name])
        counts = [own.counts[code] for own, code in zip(profiles, codes, strict=True)]
        undefined = [np.stack([own[:, -1], own.sum(axis=1)]).astype(np.int64) for own in counts]
        tests = [self.rate(name, label, "undefined", undefined, is_few=is_few, factor=factor)]
        n_buckets = min(int(own[:, :-1].any(axis=1).sum()) for own in counts)
        is_few = is_few or n_buckets < _MIN_BUCKETS
        scale = _scale(profiles, codes)
        mean, drawn = _mean(name, label, profiles, codes, self.weights, scale=scale)
        n_values = [float(own[:, :-1].sum()) for own in counts]
        factor *= _lacking_factor(drawn, n_rows=n_values)
        difference = drawn[1] - drawn[0]
        tests.append(shift(replace(mean, is_few=is_few), difference, factor=factor))
        cells = profiles[0].cells
        blank = Test(name, label, "", np.nan, np.nan, np.nan, is_few=is_few)
        tests += _distances(blank, cells.centers, counts, self.weights, scale=scale, factor=factor)
        bins = effects.psi_bins(cells, counts[0].sum(axis=0))
        tests.append(_psi(blank, bins, counts, self.weights, factor=factor))
        return tests


def _lacking_noise(
    drawn: Sequence[FloatArray], *, n_rows: Sequence[float], seed: Sequence[int]
) -> FloatArray:
    """Return what draws of a difference of shares vary too little by, as draws of their own.

    Of what one row in fifty is, a slice of few rows may have none: all its draws are 0 then, as if
    that were sure. Where nothing moved, rows of both runs vary alike: v being the variance a row,
    the difference varies by no less than with that of both together, which is
    v_0 / n_1 + v_1 / n_0.
    """
    lacking = _lacking_variance(drawn, n_rows=n_rows)
    return math.sqrt(lacking) * np.random.default_rng(seed).standard_normal(len(drawn[0]))


def _lacking_variance(drawn: Sequence[FloatArray], *, n_rows: Sequence[float]) -> float:
    if not all(n_rows) or any(np.isnan(own).all() for own in drawn):
        return 0.0
    a_row = [n * float(np.nanvar(own)) for n, own in zip(n_rows, drawn, strict=True)]
    return max((a_row[0] - a_row[1]) * (1 / n_rows[1] - 1 / n_rows[0]), 0.0)


def _lacking_factor(drawn: Sequence[FloatArray], *, n_rows: Sequence[float]) -> float:
    """Return how much wider draws of a difference of means must be, for the same reason.

    Of a long tail a few contexts may have nothing: then they have a low mean, and draws of it that
    hardly vary.
    """
    if not all(n_rows) or any(np.isnan(own).all() for own in drawn):
        return 1.0
    own = sum(float(np.nanvar(each)) for each in drawn)
    if not own > 0 or not math.isfinite(own):
        return 1.0
    return math.sqrt(1 + _lacking_variance(drawn, n_rows=n_rows) / own)


def shift(test: Test, drawn: FloatArray, *, factor: float = 1.0) -> Test:
    """Return the test of a difference whose effect is known, from draws of the effect."""
    if np.isnan(test.effect):
        return test
    drawn = test.effect + (drawn - test.effect) * factor
    interval = percentile_interval(drawn, level=LEVEL)
    return replace(
        test,
        low=interval.low,
        high=interval.high,
        observed=abs(test.effect),
        null=np.abs(drawn - test.effect),
    )


def moments_of(profile: Profile, code: int) -> tuple[float, float]:
    """Return mean and standard deviation of a slice's finite values; NaN where there are none."""
    n, total, squares = profile.moments[:, code].sum(axis=1)
    if not n:
        return float("nan"), float("nan")
    x = total / n
    spread = np.sqrt(max(squares / n - x * x, 0.0))
    spread = 0.0 if spread < _NO_SPREAD else spread
    return profile.center + profile.half_width * x, float(profile.half_width * spread)


def _scale(profiles: tuple[Profile, Profile], codes: tuple[int, int]) -> float:
    """Return what a shift is measured in: the reference's spread, else the next best."""
    spreads = [moments_of(own, code)[1] for own, code in zip(profiles, codes, strict=True)]
    return next((own for own in spreads if own > 0), profiles[0].cells.width)


def _mean(
    column: str,
    label: str,
    profiles: tuple[Profile, Profile],
    codes: tuple[int, int],
    weights: tuple[FloatArray, FloatArray],
    *,
    scale: float,
) -> tuple[Test, list[FloatArray]]:
    """Return a difference of means, not tested yet, and draws of both."""
    means, draws = [], []
    for profile, code, own in zip(profiles, codes, weights, strict=True):
        x, drawn = Drawn.of(profile.drawn_moments[:2, code].T, own).ratio(1, 0)
        means.append(profile.center + profile.half_width * x)
        draws.append(profile.center + profile.half_width * drawn)
    effect = (means[1] - means[0]) / scale
    test = Test(column, label, "mean", means[0], means[1], effect)
    return test, [own / scale for own in draws]


def _distances(
    blank: Test,
    centers: FloatArray,
    counts: Sequence[NDArray[np.uint32]],
    weights: tuple[FloatArray, FloatArray],
    *,
    scale: float,
    factor: float,
) -> list[Test]:
    """Return the tests of distances of distribution functions, over defined values alone."""
    totals = [own[:, :-1].sum(axis=0, dtype=np.int64) for own in counts]
    js = replace(blank, statistic="js", effect=effects.js_distance(*totals))
    if not all(own.any() for own in totals):
        return [replace(blank, statistic=name) for name in ("wasserstein", "ks", "js")]
    # Where both have nothing, neither function moves.
    used = np.flatnonzero(totals[0] + totals[1])
    functions = [
        _functions(np.cumsum(own[:, used], axis=1, dtype=np.int64), each)
        for own, each in zip(counts, weights, strict=True)
    ]
    observed = functions[1][0] - functions[0][0]
    # In place: these are the largest arrays.
    noise = functions[1][1]
    noise -= functions[0][1]
    noise -= observed
    noise *= factor
    np.abs(noise, out=noise)
    own_centers = centers[used]
    return [
        _distance(
            replace(blank, statistic="wasserstein"),
            float(effects.wasserstein(observed, own_centers)) / scale,
            effects.wasserstein(noise, own_centers) / scale,
        ),
        _distance(replace(blank, statistic="ks"), float(effects.ks(observed)), noise.max(axis=1)),
        js,
    ]


def _functions(cumulated: IntArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the distribution function of a run, and of each of its draws."""
    drawn = Drawn.of(cumulated, weights)
    shares = drawn.draws
    with np.errstate(invalid="ignore"):
        shares /= shares[:, -1:].copy()
    return drawn.whole / drawn.whole[-1], shares


def _distance(test: Test, observed: float, null: FloatArray) -> Test:
    defined = null[~np.isnan(null)]
    reach = float(np.quantile(defined, LEVEL)) if len(defined) else float("nan")
    return replace(
        test,
        effect=observed,
        low=max(observed - reach, 0.0),
        high=observed + reach,
        observed=observed,
        null=null,
    )


def _psi(
    blank: Test,
    bins: NDArray[np.intp],
    counts: Sequence[NDArray[np.uint32]],
    weights: tuple[FloatArray, FloatArray],
    *,
    factor: float,
) -> Test:
    """Return the test of PSI; its effect is what is left when its mean under no change is off."""
    is_in = np.eye(int(bins.max()) + 1)[bins]
    binned = [own @ is_in for own in counts]
    if not all(own.any() for own in binned):
        return replace(blank, statistic="psi")
    drawn = [Drawn.of(own, each) for own, each in zip(binned, weights, strict=True)]
    before, now = (effects.smoothed(own.whole) for own in drawn)
    # No share is less than that of an empty bin.
    floors = [0.5 / (own.whole.sum() + 0.5 * len(now)) for own in drawn]
    before_drawn, now_drawn = (
        np.maximum(own + (effects.smoothed(each.draws) - own) * factor, floor)
        for own, each, floor in zip((before, now), drawn, floors, strict=True)
    )
    null = effects.psi(before_drawn, np.maximum(before + now_drawn - now, floors[1]))
    observed, by_chance = float(effects.psi(before, now)), float(null.mean())
    # A draw has the noise of the run and its own.
    interval = percentile_interval(effects.psi(before_drawn, now_drawn) - 2 * by_chance)
    effect = max(observed - by_chance, 0.0)
    return replace(
        blank,
        statistic="psi",
        effect=effect,
        low=min(max(interval.low, 0.0), effect),
        high=max(interval.high, effect),
        # A square of a distance, whose long tail would hide what others tell.
        observed=math.sqrt(observed),
        null=np.sqrt(null),
    )
