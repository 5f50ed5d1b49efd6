"""The guarantee of certificates: draws of labels from rows whose truth is known.

A miss is a draw that certifies a share that is no more precise, over all its rows, than the target.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from benchmarks.label_draws import (
    RankedRows,
    good_rows,
    learned_by_peers,
    passage_codes,
    peer_scores,
    read_questions,
)
from helpers import REPOSITORY
from qaeval_core.stats.certificate import N_SHARES, Certificate, certify, kept_rows
from qaeval_core.stats.hypergeometric import probabilities, tails
from qaeval_core.stats.label_plan import best_part, labels_needed, look_deltas
from qaeval_core.stats.learned_rank import fit_rank, is_learning

DELTA = 0.05
LARGE = 10**9

Rows = NDArray[np.intp]
Draw = tuple[Rows, NDArray[np.bool_]]


@pytest.fixture(autouse=True)
def laws_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of draws ask for the same few thousand laws."""
    for law in (probabilities, tails):
        monkeypatch.setattr(f"qaeval_core.stats.certificate.{law.__name__}", cache(law))


def most(n_draws: int, n_errors: float = 2.0) -> float:
    """Return how often so many draws may miss."""
    return DELTA + n_errors * float(np.sqrt(DELTA * (1 - DELTA) / n_draws))


def drawn(precisions: NDArray[np.float64], n: int, rng: np.random.Generator) -> Draw:
    """Return labels of an endless ranking whose equal parts are so precise: parts, and verdicts."""
    parts = rng.integers(len(precisions), size=n)
    return parts, rng.random(n) < precisions[parts]


def certificate(draw: Draw, n_parts: int, *, target: float, delta: float = DELTA) -> Certificate:
    parts, is_good = draw
    places = parts * N_SHARES // n_parts
    return certify(places, is_good, counts=kept_rows(LARGE), target=target, delta=delta)


def is_missed(found: Certificate, precisions: NDArray[np.float64]) -> bool:
    """Return whether some certified share of an endless ranking is not above the target."""
    truth = (precisions.cumsum() / np.arange(1, len(precisions) + 1)).reshape(N_SHARES, -1)[:, -1]
    return any(
        own.is_certified and p <= found.target + 1e-9
        for own, p in zip(found.shares, truth, strict=True)
    )


# The worst case


# Each takes most of a minute. Every day README's own case, and the ends of few labels.
EVERY_DAY = ((0.5, 100), (0.8, 400), (0.95, 100))
CELLS = [
    pytest.param(
        target, n_labels, marks=[] if (target, n_labels) in EVERY_DAY else [pytest.mark.long]
    )
    for target in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    for n_labels in (100, 400, 1000)
]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "n_labels"), CELLS)
def test_labels_miss_no_more_than_they_may_where_every_share_is_at_the_target(
    target: float, n_labels: int
) -> None:
    """Protects from a level that is too large, at any target and any number of labels."""
    n_draws = 2000
    rng = np.random.default_rng(int(100 * target) + n_labels)
    flat = np.full(N_SHARES, target)
    found = [
        certificate(drawn(flat, n_labels, rng), N_SHARES, target=target) for _ in range(n_draws)
    ]
    missed = np.mean([is_missed(own, flat) for own in found])
    assert missed <= most(n_draws)
    assert missed > DELTA / 2, "a level that gives away half of what is allowed"


def _chance_of_a_miss(
    added: list[int], good: list[int], labels: list[int], target: float, found: Certificate
) -> float:
    """Return the chance that a share that is not above the target is certified, exactly.

    A walk of its own: over shares of so many more rows, good ones and labels each.
    """
    chances, missed, n, n_good, n_rows = {0: 1.0}, 0.0, 0, 0, 0
    for more_rows, more_good, more in zip(added, good, labels, strict=True):
        law = probabilities(more, n_good=more_good, n_rows=more_rows)
        n, n_good, n_rows = n + more, n_good + more_good, n_rows + more_rows
        allowed = tails(n, n_good=int(target * n_rows + 1e-9), n_rows=n_rows)
        reached: dict[int, float] = {}
        for k, chance in chances.items():
            for i, own in enumerate(law.values, start=k + law.first):
                reached[i] = reached.get(i, 0.0) + chance * own
        if n_good <= target * n_rows + 1e-9:
            passed = {k for k in reached if allowed[k] <= found.level}
            missed += sum(reached.pop(k) for k in passed)
        chances = reached
    return missed


@pytest.mark.parametrize(
    ("n_rows", "n_labels", "target"), [(1500, 400, 0.8), (10**6, 100, 0.9), (300, 200, 0.5)]
)
def test_other_rankings_are_missed_no_more_often_than_flat_ones(
    n_rows: int, n_labels: int, target: float
) -> None:
    """Protects from a worst case that is not: rankings around the target, exactly, by search."""
    rng = np.random.default_rng(3)
    counts = np.linspace(n_rows / 8, n_rows, 8).astype(int)
    added = np.diff(counts, prepend=0)
    labels = np.diff(np.round(np.linspace(0, n_labels, 9)).astype(int))
    places = np.repeat(np.arange(8), labels)
    found = certify(places, places < 0, counts=counts, target=target, delta=DELTA)
    worst = 0.0
    for i in range(300):
        spread = (0.01, 0.05, 0.2)[i % 3]
        near = np.clip(target + rng.normal(0, spread, 8), 0, 1)
        if i % 2:  # Some shares are at the target, what lies between them is not.
            for end in np.sort(rng.choice(8, 4, replace=False)):
                part = slice(0, end + 1)
                mean = np.average(near[part], weights=added[part])
                near[end] = np.clip(near[end] + (target - mean) * counts[end] / added[end], 0, 1)
        good = np.floor(near * added + 1e-9).astype(int)
        own = (added.tolist(), good.tolist(), labels.tolist())
        worst = max(worst, _chance_of_a_miss(*own, target, found))
    assert worst <= DELTA + 1e-9
    flat = np.diff(np.floor(target * counts + 1e-9).astype(int), prepend=0)
    at_target = (added.tolist(), flat.tolist(), labels.tolist())
    assert 0.6 * DELTA < _chance_of_a_miss(*at_target, target, found) <= DELTA + 1e-9


@pytest.mark.long
@pytest.mark.parametrize("shape", ["flat", "falling", "steep"])
def test_bounds_of_all_shares_hold_together(shape: str) -> None:
    """Protects from targets that are chosen after the look: any share's bound may be read."""
    n_draws, n_labels = 600, 400
    rng = np.random.default_rng(4)
    x = (np.arange(40) + 0.5) / 40
    truth = {
        "flat": np.full(40, 0.8),
        "falling": 0.95 - 0.4 * x,
        "steep": np.where(x < 0.3, 0.97, 0.4),
    }
    p = truth[shape]
    shares = (p.cumsum() / np.arange(1, 41))[1::2]
    for target in (0.5, 0.8, 0.9):
        found = [certificate(drawn(p, n_labels, rng), 40, target=target) for _ in range(n_draws)]
        wrong = [
            any(own.lower_bound > q for own, q in zip(one.shares, shares, strict=True))
            for one in found
        ]
        assert np.mean(wrong) <= most(n_draws)


@pytest.mark.long
def test_planned_looks_miss_no_more_than_one_may() -> None:
    """Protects from three looks that are wrong as often as three."""
    n_draws, planned, target = 1000, (200, 400, 800), 0.9
    rng = np.random.default_rng(5)
    flat = np.full(N_SHARES, target)
    deltas = look_deltas(planned, DELTA)
    missed = careless = 0
    for _ in range(n_draws):
        parts, is_good = drawn(flat, planned[-1], rng)
        looks = [
            [
                certificate((parts[:n], is_good[:n]), N_SHARES, target=target, delta=own).chosen
                for n, own in zip(planned, each, strict=True)
            ]
            for each in (deltas, [DELTA] * 3)
        ]
        missed += any(looks[0])
        careless += any(looks[1])
    assert missed / n_draws <= most(n_draws)
    assert careless / n_draws > 1.5 * DELTA, "looks that need no plan test none"


@pytest.mark.long
def test_who_follows_the_advice_misses_no_more_than_one_may() -> None:
    """Up to six looks at the number of labels that was told, planned as it is told to.

    Every share is at the target, so that each look that certifies is wrong.
    """
    target, missed, n_draws = 0.9, 0, 300
    for seed in range(n_draws):
        rng = np.random.default_rng(seed)
        parts, is_good = drawn(np.full(N_SHARES, target), 20_000, rng)
        n, spent, share = 200, 0.0, DELTA / 2  # Half of what is left, each time.
        for _ in range(6):
            found = certificate((parts[:n], is_good[:n]), N_SHARES, target=target, delta=share)
            spent += share
            if found.chosen:
                missed += 1
                break
            share = (DELTA - spent) / 2
            needed = labels_needed(found, lambda _, own=share: own)
            if needed is None or needed > 20_000:
                break
            n = needed
        assert spent <= DELTA
    assert missed / n_draws <= DELTA


# QGEval


@pytest.fixture(scope="module")
def roundtrip(shared_data: Path) -> RankedRows:
    """QGEval's questions as `roundtrip` ranks them, by the scores that are kept."""
    scores = pl.read_parquet(REPOSITORY / "docs/evidence/scores/qgeval.parquet")
    is_good = good_rows(read_questions(shared_data))
    return RankedRows(scores["roundtrip"].to_numpy(), is_good)


@pytest.mark.shared_data
def test_four_hundred_labels_of_qgeval_keep_two_fifths(roundtrip: RankedRows) -> None:
    """Protects from certificates that are true and wasteful: once 16 % and nothing in 74 %."""
    rng = np.random.default_rng(6)
    draws = [rng.choice(1500, 400, replace=False) for _ in range(500)]
    found = [roundtrip.certify(rows, target=0.8, delta=DELTA) for rows in draws]
    shares = [own.chosen.share if own.chosen else 0.0 for own in found]
    assert np.mean(shares) >= 0.40 and np.mean([not share for share in shares]) <= 0.35
    assert np.mean([roundtrip.is_missed(own) for own in found]) <= most(500)


@pytest.mark.slow
@pytest.mark.shared_data
def test_a_second_sheet_keeps_a_third_of_a_large_corpus(roundtrip: RankedRows) -> None:
    """A corpus like QGEval without end: 60 labels of all of it say where 340 others are drawn."""
    n_draws = 1500
    rng = np.random.default_rng(7)
    ends = np.diff(roundtrip.counts, prepend=0)
    weights = ends / ends.sum()
    good = np.diff(roundtrip.precisions * roundtrip.counts, prepend=0) / ends
    counts = np.round(weights.cumsum() * LARGE).astype(np.int64)
    precisions = (weights * good).cumsum() / weights.cumsum()
    kept, missed = [], []
    for _ in range(n_draws):
        parts = rng.choice(len(weights), 60, p=weights)
        first = certify(parts, rng.random(60) < good[parts], counts=counts, target=0.8, delta=DELTA)
        last = best_part(first, 340)
        inside = weights[: last + 1] / weights[: last + 1].sum()
        parts = rng.choice(last + 1, 340, p=inside)
        found = certify(
            parts, rng.random(340) < good[parts], counts=counts[: last + 1], n_rows=LARGE,
            target=0.8, delta=DELTA,
        )  # fmt: skip
        chosen = found.chosen
        kept.append(chosen.share if chosen else 0.0)
        missed.append(chosen is not None and precisions[list(counts).index(chosen.n_rows)] <= 0.8)
    assert np.mean(kept) >= 0.30 and np.mean([not own for own in kept]) <= 0.33
    assert np.mean(missed) <= most(n_draws)


@pytest.mark.long
@pytest.mark.shared_data
def test_a_rank_learned_from_a_third_of_the_labels_is_certified_by_the_others(
    shared_data: Path,
) -> None:
    """Protects from a split that leaves nothing to certify with, or that certifies all."""
    questions = read_questions(shared_data)
    is_good, passages = good_rows(questions), passage_codes(questions)
    scores = peer_scores(questions)
    features = np.column_stack(list(scores.values()))
    kept, missed = [], []
    for seed in range(200):
        rows = np.random.default_rng(seed).choice(1500, 400, replace=False)
        learns = is_learning(map(str, rows), seed)
        teaching = rows[learns]
        learned = fit_rank(
            features[teaching], dict.fromkeys(scores, ""), is_good=is_good[teaching],
            groups=passages[teaching], seed=seed,
        )  # fmt: skip
        ranked = RankedRows(learned.score(features), is_good)
        found = ranked.certify(rows[~learns], target=0.8, delta=DELTA, learned_from=teaching)
        kept.append(found.chosen.share if found.chosen else 0.0)
        missed.append(ranked.is_missed(found))
    assert np.mean(kept) >= 0.5 and np.mean(missed) <= most(200)


class Passages:
    """QGEval by peers' scores, labeled by whole passages."""

    def __init__(self, shared_data: Path) -> None:
        questions = read_questions(shared_data)
        self.ranked, self.passages = learned_by_peers(questions), passage_codes(questions)

    def certificates(
        self, n_passages: int, *, target: float, n_draws: int = 2000
    ) -> list[Certificate]:
        rng = np.random.default_rng(17)
        found = []
        for _ in range(n_draws):
            chosen = rng.choice(self.passages.max() + 1, n_passages, replace=False)
            rows = np.flatnonzero(np.isin(self.passages, chosen))
            codes = self.passages[rows]
            found.append(self.ranked.certify(rows, target=target, delta=DELTA, clusters=codes))
        return found

    def naive_misses(self, found: list[Certificate]) -> float:
        """Return how often the largest share that looks good enough is not."""
        missed = []
        for own in found:
            looks = [
                j
                for j, share in enumerate(own.shares)
                if share.precision is not None and share.precision >= own.target
            ]
            missed.append(bool(looks) and self.ranked.precisions[max(looks)] < own.target)
        return float(np.mean(missed))


@pytest.fixture(scope="module")
def by_passage(shared_data: Path) -> Passages:
    return Passages(shared_data)


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize("target", [0.8, 0.85], ids=["t80", "t85"])
@pytest.mark.parametrize("n_passages", [20, 54])
def test_labels_of_passages_miss_no_more_than_they_may(
    by_passage: Passages, n_passages: int, target: float
) -> None:
    """Protects from passages labeled whole that count as so many labels."""
    found = by_passage.certificates(n_passages, target=target)
    assert np.mean([by_passage.ranked.is_missed(own) for own in found]) <= most(2000, 3.0)
    assert by_passage.naive_misses(found) > 0.10, "a test without power"


@pytest.mark.shared_data
def test_many_passages_certify_something(by_passage: Passages) -> None:
    """Protects from a correction that never misses because it never certifies."""
    found = by_passage.certificates(80, target=0.8)
    assert np.mean([own.chosen is not None for own in found]) > 0.5
    assert np.mean([by_passage.ranked.is_missed(own) for own in found]) <= most(2000, 3.0)
