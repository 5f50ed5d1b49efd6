"""Drift: error rates on real clustered scores, and draws against loops over buckets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

from audit_runs import cells_of, clustered, hashes_of, run_of
from qaeval_core import audit_tables
from qaeval_core.audit.compare import compare
from qaeval_core.audit.drift import Pair, Test, tail_factor
from qaeval_core.audit.p_values import adjusted
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.profile.column_profile import N_BUCKETS

PEERS = [
    "peer_QRelScore",
    "peer_BERTScore",
    "peer_ROUGE-L",
    "peer_BLEU-4",
    "peer_METEOR",
    "peer_BLEURT",
    "peer_BARTScore-src",
    "peer_RQUGE",
]
VERDICTS = ("mean", "wasserstein", "psi")


class Halves:
    """Random halves of QGEval's passages."""

    def __init__(self, shared_data: Path) -> None:
        table = pl.read_parquet(shared_data / "qgeval" / "qgeval_squad.parquet")
        self.values = {name: table[name].to_numpy() for name in PEERS}
        self.passages = np.unique(table["passage"].to_numpy(), return_inverse=True)[1]
        self.hashes = hashes_of(self.passages)
        self.cells = cells_of(self.values)
        self.rng = np.random.default_rng(0)

    def split(self) -> np.ndarray:
        return np.isin(self.passages, self.rng.permutation(100)[:50])

    def tests(
        self,
        half: np.ndarray,
        *,
        shift: float,
        n_draws: int,
        seed: int,
        moved: str = PEERS[0],
        factor: float = 1.0,
    ) -> list[Test]:
        """Return all tests of one half against the other, one score of that one shifted."""
        runs = []
        for chosen, by in ((half, 0.0), (~half, shift)):
            values = {name: own[chosen] for name, own in self.values.items()}
            values[moved] = values[moved] + by * self.values[moved].std()
            runs.append(run_of(values, self.hashes[chosen], self.cells))
        pair = Pair.of(*runs, n_draws=n_draws, seed=seed)
        return [
            test
            for name in PEERS
            for test in pair.column(name, (0, 0), "", is_few=False, factor=factor)
        ]


def rates_of(halves: Halves, n_splits: int, n_draws: int, shift: float = 0.0) -> dict[str, float]:
    """Return shares of splits with p at most .05: of columns, of the family, of rows."""
    single: dict[str, list[bool]] = {"mean": [], "wasserstein": [], "ks": [], "psi": []}
    family, found, by_row = [], [], []
    for seed in range(n_splits):
        half = halves.split()
        tests = halves.tests(half, shift=shift, n_draws=n_draws, seed=seed)
        for test in tests:
            if test.statistic in single:
                single[test.statistic].append(test.p <= 0.05)
        p_adjusted = adjusted(tests)
        family.append(np.nanmin(p_adjusted) <= 0.05)
        found += [
            p <= 0.05
            for test, p in zip(tests, p_adjusted, strict=True)
            if test.column == PEERS[0] and test.statistic == "wasserstein"
        ]
        by_row += [
            stats.ks_2samp(own[half], own[~half]).pvalue < 0.05 for own in halves.values.values()
        ]
    rates = {name: float(np.mean(own)) for name, own in single.items()}
    return rates | {
        "family": float(np.mean(family)),
        "found": float(np.mean(found)),
        "rows": float(np.mean(by_row)),
    }


@pytest.mark.shared_data
def test_halves_of_one_corpus_are_the_same(shared_data: Path) -> None:
    """A quick look at what the long test says precisely."""
    rates = rates_of(Halves(shared_data), 12, 99)
    assert all(rates[name] <= 0.12 for name in ("mean", "wasserstein", "ks", "psi"))
    assert rates["family"] <= 0.15
    assert rates["rows"] > 0.5


@pytest.mark.long
@pytest.mark.timeout(1800)  # Two minutes of work; beside others ten were not enough.
@pytest.mark.shared_data
def test_false_alarms_on_halves_are_as_many_as_promised(shared_data: Path) -> None:
    """500 splits: .05 of tests, .05 of families; a test of rows cries wolf on most."""
    rates = rates_of(Halves(shared_data), 500, 199)
    assert all(0.02 <= rates[name] <= 0.08 for name in ("mean", "wasserstein", "ks", "psi")), rates
    assert 0.01 <= rates["family"] <= 0.09, rates
    assert rates["rows"] > 0.5


@pytest.mark.long
@pytest.mark.timeout(1800)  # Two minutes of work; beside others ten were not enough.
@pytest.mark.shared_data
def test_a_shift_of_one_column_is_found_among_eight(shared_data: Path) -> None:
    assert rates_of(Halves(shared_data), 200, 199, shift=0.4)["found"] > 0.4


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.shared_data
def test_power_is_that_of_draws_without_tails(shared_data: Path) -> None:
    """Such draws, in standard deviations, are the usual max-T, and alarm too often."""
    halves, moved, n = Halves(shared_data), "peer_BARTScore-src", 300
    splits = [halves.split() for _ in range(n)]
    for shift in (0.0, 0.2, 0.4, 0.6):
        found: dict[str, list[float]] = {"ours": [], "usual": []}
        for seed, half in enumerate(splits):
            for side, factor in (("ours", tail_factor(50, 50)), ("usual", 1.0)):
                tests = halves.tests(
                    half, shift=shift, n_draws=999, seed=seed, moved=moved, factor=factor
                )
                p_values = adjusted(tests) if side == "ours" else usual_max_t(tests)
                found[side].append(
                    min(
                        p
                        for test, p in zip(tests, p_values, strict=True)
                        if test.statistic in VERDICTS and (not shift or test.column == moved)
                    )
                )
        ours, usual = (
            np.mean([[p <= level for level in (0.05, 0.01)] for p in own], axis=0)
            for own in found.values()
        )
        print(f"+{shift} sd: p at most .05 and .01 in {ours}, by the usual max-T in {usual}")
        if shift:
            assert (ours >= usual - 0.04).all()
        else:
            assert (ours <= (0.07, 0.02)).all() and (ours <= usual).all()


def usual_max_t(tests: list[Test]) -> list[float]:
    """Return adjusted p-values of tests that are measured in standard deviations."""
    family = [test for test in tests if test.statistic in VERDICTS]
    largest = np.max([(t.null - t.null.mean()) / t.null.std() for t in family], axis=0)
    found = []
    for test in tests:
        measured = (test.observed - test.null.mean()) / test.null.std() if test in family else 0.0
        found.append(float((1 + (largest >= measured).sum()) / (1 + len(largest))))
    return found


@pytest.mark.long
@pytest.mark.shared_data
def test_moves_are_found_more_often_than_by_t_tests_of_means(shared_data: Path) -> None:
    """Welch's test of passages' means, corrected for as many tests, is right and simple."""
    table = pl.read_parquet(shared_data / "qgeval" / "qgeval_squad.parquet")
    moved, by = "peer_BARTScore-src", 0.4
    passages = table["passage"].unique(maintain_order=True)
    found: dict[str, list[list[bool]]] = {"audit": [], "t": []}
    for seed in range(50):
        half = table["passage"].is_in(passages.sample(50, seed=seed, shuffle=True).to_list())
        last = table.filter(half)
        now = table.filter(~half).with_columns(pl.col(moved) + by * pl.lit(table[moved].std()))
        audited = audit_tables(last, now, watch=PEERS, cluster="passage", alpha=0.05, seed=seed)
        own = audited.tests.filter(pl.col("alert") & (pl.col("column") == moved))
        n_tests = audited.tests["p_adjusted"].is_not_null().sum()
        means = [each.group_by("passage").agg(pl.mean(moved))[moved] for each in (last, now)]
        p_t = n_tests * stats.ttest_ind(*means, equal_var=False).pvalue
        found["audit"].append([(own["p_adjusted"] <= level).any() for level in (0.05, 0.01)])
        found["t"].append([p_t <= level for level in (0.05, 0.01)])
    audit, t = (np.mean(each, axis=0) for each in found.values())
    print(f"+{by} sd found at .05 and .01: by the audit {audit}, by {n_tests} t-tests {t}")
    assert (audit > t).all()


def lacking_factor(values: list[np.ndarray], means: list[list[float]]) -> float:
    """Return how much wider draws must be: where nothing moved, rows of both runs vary alike."""
    n = [int((~np.isnan(own)).sum()) for own in values]
    v = np.var(means, axis=0)
    lacking = (n[0] * v[0] - n[1] * v[1]) * (1 / n[1] - 1 / n[0])
    return float(np.sqrt(1 + max(lacking, 0.0) / (v[0] + v[1])))


def unit_of(test: Test) -> float:
    """Return the mean of the largest 2 of 49 draws, a twentieth."""
    return float(np.mean(sorted(test.null)[-2:]))


def test_draws_are_those_of_a_loop_over_buckets() -> None:
    """The null process, its statistics and max-T, written out one draw at a time."""
    rng = np.random.default_rng(3)
    values, clusters = {}, []
    for part in range(2):
        score, own = clustered(60 + 10 * part, 5, seed=part)
        # Less of the larger run: what is rare there needs no noise besides.
        score[rng.random(len(score)) < 0.2 / (part + 1)] = np.nan
        values[part] = {"score": score, "other": score**2}
        clusters.append(own)
    cells = cells_of(values[0])
    runs = [run_of(values[part], clusters[part], cells) for part in range(2)]
    pair = Pair.of(*runs, n_draws=49, seed=1)
    tests = [t for name in cells for t in pair.column(name, (0, 0), "", is_few=False)]
    buckets = [(own % np.uint64(N_BUCKETS)).astype(int) for own in clusters]
    nulls: dict[tuple[str, str], np.ndarray] = {}
    for name, grid in cells.items():
        codes = [grid.codes(values[part][name]) for part in range(2)]
        spread = np.nanstd(values[0][name])

        def describe(part: int, weights: np.ndarray, name: str = name, codes=codes) -> tuple:
            rows = weights[buckets[part]]
            is_defined = ~np.isnan(values[part][name])
            mass = np.bincount(codes[part], rows, minlength=cells[name].n_cells)[:-1]
            mean = np.average(values[part][name][is_defined], weights=rows[is_defined])
            return np.cumsum(mass) / mass.sum(), mean, rows[~is_defined].sum() / rows.sum()

        whole = [describe(part, np.ones(N_BUCKETS)) for part in range(2)]
        found: dict[str, list[float]] = {"undefined": [], "mean": [], "wasserstein": [], "ks": []}
        means: list[list[float]] = []
        for draw in range(49):
            own = [describe(part, pair.weights[part][draw]) for part in range(2)]
            means.append([part[1] for part in own])
            gap, mean, undefined = (
                (own[1][i] - whole[1][i]) - (own[0][i] - whole[0][i]) for i in range(3)
            )
            found["undefined"].append(abs(undefined))
            found["mean"].append(abs(mean) / spread)
            area = (np.abs(gap)[:-1] * np.diff(grid.centers)).sum()
            found["wasserstein"].append(area / spread)
            found["ks"].append(np.abs(gap).max())
        factor = lacking_factor([values[part][name] for part in range(2)], means)
        nulls |= {(name, key): np.array(own) * factor for key, own in found.items()}
        nulls[name, "undefined"] /= factor
    for test in tests:
        if (test.column, test.statistic) in nulls:
            assert test.null == pytest.approx(nulls[test.column, test.statistic], rel=1e-5)
            n = int((nulls[test.column, test.statistic] >= test.observed).sum())
            assert test.p == (1 + n) / 50
    family = [t for t in tests if t.statistic not in ("ks", "js")]
    for test, p in zip(tests, adjusted(tests), strict=True):
        if test not in family:
            assert np.isnan(p)
            continue
        n_as_large = 0
        for draw in range(49):
            largest = max(t.null[draw] / unit_of(t) for t in family)
            n_as_large += largest >= test.observed / unit_of(test)
        assert p == max((1 + n_as_large) / 50, test.p)


def test_shares_of_what_is_rare_do_not_cry_wolf() -> None:
    """A slice of 40 passages against 200: by chance it often has none of what is 2 % of the rows.

    Its draws alone, all 0 then, make .11 of such slices a false alarm at .05.
    """
    rng = np.random.default_rng(0)
    none = run_of({}, np.zeros(0, np.uint64), {})

    def p_of(shares: tuple[float, float], seed: int) -> float:
        counts, weights = [], []
        for share, n_clusters in zip(shares, (200, 40), strict=True):
            of_cluster = rng.beta(4 * share, 4 * (1 - share), n_clusters)  # Its rows are alike.
            own = np.zeros((2, N_BUCKETS), np.int64)
            buckets = rng.integers(0, N_BUCKETS, n_clusters)
            np.add.at(own[0], buckets, rng.binomial(5, of_cluster))
            np.add.at(own[1], buckets, 5)
            occupied = np.flatnonzero(own[1])
            drawn = np.zeros((199, N_BUCKETS))
            chances = np.full(len(occupied), 1 / len(occupied))
            drawn[:, occupied] = rng.multinomial(len(occupied), chances, 199)
            counts.append(own)
            weights.append(drawn)
        pair = Pair(none, none, (weights[0], weights[1]), seed)
        return pair.rate("", "", "kept", counts, is_few=False).p

    assert np.mean([p_of((0.02, 0.02), seed) <= 0.05 for seed in range(300)]) <= 0.05
    assert np.mean([p_of((0.02, 0.2), seed) <= 0.01 for seed in range(100)]) > 0.7


def test_buckets_of_the_run_are_drawn_as_often_as_there_are() -> None:
    score, clusters = clustered(40, 3)
    run = run_of({"score": score}, clusters, cells_of({"score": score}))
    pair = Pair.of(run, run, n_draws=99, seed=0)
    occupied = np.unique(clusters % np.uint64(N_BUCKETS)).astype(int)
    for weights in pair.weights:
        assert (weights.sum(axis=1) == len(occupied)).all()
        assert (np.delete(weights, occupied, axis=1) == 0).all()
    assert (pair.weights[0] != pair.weights[1]).any()


def test_a_shift_needs_effect_and_evidence() -> None:
    """Large and sure; sure and small; large and unsure."""
    before, clusters = clustered(200, 20)
    cells = cells_of({"score": before})
    settings = AuditSettings(n_draws=199)
    reference = run_of({"score": before}, clusters, cells)

    def status(now: np.ndarray, own: np.ndarray, settings: AuditSettings = settings) -> str:
        result = compare(reference, run_of({"score": now}, own, cells), settings)
        return {row.statistic: row.status for row in result.rows}["mean"]

    assert status(before + 1.0, clusters) == "alert"
    small = AuditSettings(n_draws=199, tolerances={"mean": 2.0, "wasserstein": 2.0})
    assert status(before + 1.0, clusters, small) == "no_alert"
    few, own = clustered(35, 2, shift=0.3, seed=4)
    assert status(few, own) == "not_excluded"
    fewer, own = clustered(29, 20, shift=3.0, seed=4)
    assert status(fewer, own) == "too_few"


def test_survivors_do_not_hide_what_is_undefined() -> None:
    """0 to 60 % undefined by chance, and the same values left."""
    score, clusters = clustered(100, 10)
    now = score.copy()
    now[np.random.default_rng(0).random(len(now)) < 0.6] = np.nan
    cells = cells_of({"score": score})
    result = compare(
        run_of({"score": score}, clusters, cells), run_of({"score": now}, clusters, cells)
    )
    assert [alert.kind for alert in result.alerts if alert.kind in ("undefined", "mean", "ks")] == [
        "undefined"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes",
    [(50, 50), *(pytest.param(own, marks=pytest.mark.long) for own in ((30, 300), (60, 600)))],
    ids=str,
)
def test_corpora_that_grow_and_values_that_hardly_repeat_raise_no_alarm(
    sizes: tuple[int, int],
) -> None:
    """Whole numbers of many values and a long tail: PSI alone alarmed in 73 to 88 % at 30/300."""

    def week(seed: int, n: int) -> pl.DataFrame:
        rng = np.random.default_rng(seed)
        context = np.repeat(np.arange(n), 5)
        z = 0.6 * rng.normal(size=n)[context] + 0.8 * rng.normal(size=5 * n)
        names = [f"{seed} {own}" for own in context]
        return pl.DataFrame({"context": names, "score": np.round(np.exp(4.2 + 0.9 * z))})

    alarms = []
    for seed in range(150):
        weeks = (week(2 * seed, sizes[0]), week(2 * seed + 1, sizes[1]))
        found = audit_tables(*weeks, watch="score", cluster="context", seed=seed)
        alarms.append(any(alert.kind != "rows" for alert in found.alerts))
    assert np.mean(alarms) <= 0.02


@pytest.mark.parametrize("n", [(40, 40), (40, 400), (300, 30), (10_000, 10_000)], ids=str)
def test_draws_of_few_clusters_reach_further(n: tuple[int, int]) -> None:
    """Welch's degrees of freedom and variances, by scipy, of runs whose clusters vary alike."""
    buckets = [min(own, N_BUCKETS) for own in n]
    variances = [k / own for k, own in zip(buckets, n, strict=True)]  # Of means of k buckets.
    grids = [np.arange(k) for k in buckets]
    samples = [x * np.sqrt(v / x.var(ddof=1)) for x, v in zip(grids, variances, strict=True)]
    welch = stats.ttest_ind(*samples, equal_var=False)
    drawn = sum(v * (k - 1) / k**2 for v, k in zip(variances, buckets, strict=True))
    inward = np.sqrt(drawn / sum(1 / own for own in n))
    tail = stats.t.ppf(0.995, welch.df) / stats.norm.ppf(0.995)
    assert tail_factor(*n) == pytest.approx(tail / inward)
    assert tail_factor(40, 10**6) > 1.05 and tail_factor(10_000, 10_000) < 1.011
    assert tail_factor(1, 40) == tail_factor(40, 0) == 1


def test_all_draws_are_moved_away_by_their_tail() -> None:
    """Protects from a bootstrap's thin tail."""
    values, clusters = clustered(40, 5, seed=0)
    others, own = clustered(40, 5, seed=1)
    cells = cells_of({"score": values})
    runs = [run_of({"score": each}, at, cells) for each, at in ((values, clusters), (others, own))]
    pair = Pair.of(*runs, n_draws=199, seed=1)
    plain, wide = (
        {
            test.statistic: test
            for test in pair.column("score", (0, 0), "", is_few=False, factor=factor)
        }
        for factor in (1.0, tail_factor(40, 40))
    )
    for name in ("mean", "wasserstein", "ks"):
        ratio = wide[name].null / plain[name].null
        assert ratio == pytest.approx(tail_factor(40, 40)) and wide[name].p >= plain[name].p
    assert wide["psi"].null.mean() > plain["psi"].null.mean()
    gap = [test.high - test.low for test in (plain["mean"], wide["mean"])]
    assert gap[1] / gap[0] == pytest.approx(tail_factor(40, 40))
