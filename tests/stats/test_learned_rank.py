"""Learned ranks against a plain minimizer, loops over pairs, and rows scored one by one."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, special

from benchmarks.label_draws import good_rows, peer_scores, read_questions
from qaeval_core.errors import ConfigError
from qaeval_core.stats.learned_rank import LearnedRank, fit_rank, is_learning

NAN = float("nan")
NAMES = {"sas": "sas|v:1", "rquge": "rquge|v:2", "flat": "flat|v:1"}


def _sample(n_rows: int = 240) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.intp]]:
    """Return two columns that say something, one missing at times, and a constant one."""
    rng = np.random.default_rng(2)
    is_good = rng.random(n_rows) < 0.7
    features = np.column_stack(
        [
            is_good + rng.normal(size=n_rows),
            100 - 30 * is_good + 20 * rng.normal(size=n_rows),
            np.full(n_rows, 0.1),
        ]
    )
    features[rng.random(n_rows) < np.where(is_good, 0.1, 0.3), 1] = np.nan
    return features, is_good, np.arange(n_rows) // 6


@pytest.fixture(scope="module")
def learned() -> LearnedRank:
    features, is_good, groups = _sample()
    return fit_rank(features, NAMES, is_good=is_good, groups=groups, seed=0)


def test_weights_are_those_of_a_plain_minimizer(learned: LearnedRank) -> None:
    """Protects from a penalty on the intercept, none on the weights, or another strength."""
    features, is_good, _ = _sample()
    missing = np.isnan(features[:, 1])
    mean, sd = np.nanmean(features, axis=0), np.nanstd(features, axis=0)
    z = np.nan_to_num((features[:, :2] - mean[:2]) / sd[:2])
    inputs = np.column_stack([z, missing])

    def loss(weights: NDArray[np.float64]) -> float:
        logits = weights[0] + inputs @ weights[1:]
        errors = -special.log_expit(np.where(is_good, logits, -logits))
        return float(errors.sum() + (weights[1:] ** 2).sum() / 2)

    found = optimize.minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-6}).x
    sas, rquge, flat = learned.columns
    weights = [learned.intercept, sas.weight, rquge.weight, rquge.missing_weight]
    assert weights == pytest.approx(found, abs=1e-5)
    assert (sas.missing_weight, flat.weight, flat.missing_weight, flat.sd) == (0, 0, 0, 0)
    assert [column.mean for column in (sas, rquge)] == pytest.approx(mean[:2])
    assert [column.sd for column in (sas, rquge)] == pytest.approx(sd[:2])
    assert learned.score(features) == pytest.approx(found[0] + inputs @ found[1:], abs=1e-4)
    assert rquge.n_missing == missing.sum() > 0
    assert (learned.n_rows, learned.n_good, learned.n_groups) == (240, is_good.sum(), 40)


def test_a_score_does_not_depend_on_its_batch(learned: LearnedRank) -> None:
    """Protects from last digits, and so cuts, that depend on how rows are cut into shards."""
    features = np.tile(_sample()[0], (5, 1))
    whole = learned.score(features)
    for size in (1, 2, 7, 64, 1000):
        parts = [learned.score(features[i : i + size]) for i in range(0, len(features), size)]
        assert (np.concatenate(parts) == whole).all()
    assert (learned.score(np.asfortranarray(features)) == whole).all()
    assert learned.score(features[:0]).shape == (0,)


def test_missing_and_infinite_values_at_use(learned: LearnedRank) -> None:
    """Protects from NaN where a column never missed a value before, and from ranks of infinity."""
    sas, rquge, _ = learned.columns
    at_mean = [sas.mean, rquge.mean, 0.1]
    rows = [at_mean, [NAN, rquge.mean, 7.0], [sas.mean, NAN, NAN], [sas.mean, rquge.mean, np.inf]]
    found = learned.score(np.array(rows))
    both = learned.intercept + rquge.missing_weight
    assert found == pytest.approx([learned.intercept, learned.intercept, both, NAN], nan_ok=True)


def _reference_auc(scores: NDArray[np.float64], good: Any, folds: Any) -> float:
    wins = pairs = 0.0
    for test in folds:
        for a in test[good[test]]:
            for b in test[~good[test]]:
                wins += float(scores[a] > scores[b]) + 0.5 * float(scores[a] == scores[b])
                pairs += 1
    return wins / pairs


def test_figures_are_those_of_groups_held_out(learned: LearnedRank) -> None:
    """Protects from groups on both sides, pairs across folds and means of the held-out rows."""
    from sklearn.model_selection import StratifiedGroupKFold

    features, is_good, groups = _sample()
    splitter = StratifiedGroupKFold(10, shuffle=True, random_state=0)
    folds = list(splitter.split(features, is_good, groups))
    logits = np.empty(len(features))
    for train, test in folds:
        assert not set(groups[train]) & set(groups[test])
        own = fit_rank(features[train], NAMES, is_good=is_good[train], groups=groups[train], seed=5)
        logits[test] = own.score(features[test])
    held_out = [test for _, test in folds]
    assert learned.n_folds == 10
    assert learned.cv_auc == pytest.approx(_reference_auc(logits, is_good, held_out))
    assert learned.brier == pytest.approx(((special.expit(logits) - is_good) ** 2).mean())
    filled = np.where(np.isnan(features), np.nanmean(features, axis=0), features)
    for column, values in zip(learned.columns, filled.T, strict=True):
        assert column.single_auc == pytest.approx(_reference_auc(values, is_good, held_out))
    flat = learned.columns[2]
    assert flat.single_auc == 0.5


def test_order_of_rows_and_names_of_groups_do_not_matter(learned: LearnedRank) -> None:
    """Protects from a rank that depends on how a file of labels is sorted."""
    features, is_good, groups = _sample()
    order = np.random.default_rng(4).permutation(len(groups))
    names = np.array([f"passage {code:03}" for code in groups])
    other = fit_rank(features[order], NAMES, is_good=is_good[order], groups=names[order], seed=0)
    assert other.score(features) == pytest.approx(learned.score(features), abs=1e-7)
    assert (other.cv_auc, other.brier) == pytest.approx((learned.cv_auc, learned.brier))


def test_scale_of_a_column_does_not_matter(learned: LearnedRank) -> None:
    """Protects from a penalty that weighs on columns with small numbers."""
    features, is_good, groups = _sample()
    scaled = features * [1e-6, -1e6, 3.0] + [5.0, 0.0, 0.0]
    other = fit_rank(scaled, NAMES, is_good=is_good, groups=groups, seed=0)
    assert other.score(scaled) == pytest.approx(learned.score(features), abs=1e-6)
    assert other.columns[1].single_auc == pytest.approx(1 - (learned.columns[1].single_auc or 0))


def test_few_groups_have_fewer_folds_or_none() -> None:
    """Protects from folds without good or bad rows to learn from, and from a figure of nothing."""
    features, _, _ = _sample()
    groups = np.arange(240) // 80
    three = fit_rank(features, NAMES, is_good=np.arange(240) % 3 > 0, groups=groups, seed=0)
    assert three.n_folds == 3 and three.cv_auc is not None and three.undefined_reason is None
    one_bad = fit_rank(features, NAMES, is_good=groups > 0, groups=groups, seed=0)
    assert (one_bad.n_folds, one_bad.cv_auc, one_bad.brier) == (0, None, None)
    assert one_bad.undefined_reason is not None and "too few groups" in one_bad.undefined_reason
    assert {column.single_auc for column in one_bad.columns} == {None}


def test_a_seed_of_more_than_32_bits_is_one(learned: LearnedRank) -> None:
    """scikit-learn takes none of these, once all labels were read."""
    features, is_good, groups = _sample()
    found = fit_rank(features, NAMES, is_good=is_good, groups=groups, seed=5 * 2**32)
    assert replace(found, seed=0) == learned


def test_a_value_far_from_all_others_is_no_warning() -> None:
    """One held out at a billion standard deviations ended on a user's terminal."""
    is_good = np.arange(200) % 2 == 0
    values = is_good + np.random.default_rng(0).normal(size=200)
    values[5] = -1e9
    found = fit_rank(values[:, None], {"s": "s"}, is_good=is_good, groups=np.arange(200), seed=0)
    assert found.brier is not None and 0.2 < found.brier < 0.3


def test_columns_without_any_weight_leave_the_odds() -> None:
    """Protects from a crash where nothing varies."""
    is_good = np.arange(40) % 4 > 0
    found = fit_rank(
        np.ones((40, 1)), {"flat": "v:1"}, is_good=is_good, groups=np.arange(40), seed=0
    )
    assert found.score(np.array([[1.0], [NAN]])) == pytest.approx([np.log(3), np.log(3)])
    assert found.cv_auc == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_good": np.ones(240)}, "240.*240.*QA0315"),
        ({"is_good": np.zeros(240)}, "0.*240.*QA0315"),
        ({"is_good": np.where(np.arange(240) < 3, NAN, np.arange(240) % 2)}, "3.*240.*QA0315"),
        ({"is_good": np.arange(240) % 3}, "80.*240.*QA0315"),
        ({"groups": np.zeros(240)}, "240.*QA0315"),
        ({"features": np.full((240, 3), NAN)}, "'sas'.*240.*QA0315"),
        ({"features": np.full((240, 3), -np.inf)}, "'sas'.*240.*QA0315"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(change: dict[str, Any], message: str) -> None:
    """Protects from weights of nothing."""
    features, is_good, groups = _sample()
    request = {"features": features, "is_good": is_good, "groups": groups, **change}
    with pytest.raises(ConfigError, match=message):
        fit_rank(request.pop("features"), NAMES, seed=0, **request)


def test_without_scikit_learn_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Protects from a traceback of an import."""
    features, is_good, groups = _sample()
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(ConfigError, match="QA0004"):
        fit_rank(features, NAMES, is_good=is_good, groups=groups, seed=0)


def test_a_file_gives_back_the_same_rank(learned: LearnedRank) -> None:
    """Protects from digits lost on the way, and from None that JSON cannot say."""
    for rank in (learned, replace(learned, cv_auc=None, undefined_reason="too few")):
        again = LearnedRank.from_json(json.loads(json.dumps(rank.to_json(), allow_nan=False)))
        assert again == rank
        assert (again.score(_sample()[0]) == rank.score(_sample()[0])).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 1}, "2.*QA0703"),
        ({"QA0703": None}, "QA0703"),
        ({"QA0703": NAN}, "QA0703"),
        ({"columns": [{"name": "sas"}]}, "columns.0.*QA0703"),
        ({"QA0703": 1}, "QA0703"),
    ],
)
def test_what_is_no_learned_rank_is_refused(
    learned: LearnedRank, change: dict[str, Any], message: str
) -> None:
    """Protects from ranks by weights that are not there."""
    with pytest.raises(ConfigError, match=message):
        LearnedRank.from_json({**learned.to_json(), **change})
    with pytest.raises(ConfigError, match="QA0703"):
        LearnedRank.from_json([learned.to_json()])


def test_columns_must_be_made_as_they_were(learned: LearnedRank) -> None:
    """Protects from weights of one model's scores on those of another."""
    learned.check_signatures({**NAMES, "more": "v:1"})
    with pytest.raises(ConfigError, match="'rquge'.*'rquge|v:3'.*'rquge|v:2'.*QA0703"):
        learned.check_signatures({**NAMES, "rquge": "rquge|v:3"})
    with pytest.raises(ConfigError, match="'flat'.*QA0703"):
        learned.check_signatures({"sas": "sas|v:1", "rquge": "rquge|v:2"})


@given(st.lists(st.text(max_size=5), min_size=1, max_size=30), st.integers(0, 5), st.data())
@settings(max_examples=60, deadline=None)
def test_a_row_is_on_one_side_whatever_else_there_is(
    ids: list[str], seed: int, data: st.DataObject
) -> None:
    """Protects from labels that were learned from and certify after more labels came."""
    order = data.draw(st.permutations(range(len(ids))))
    sides = is_learning(ids, seed)
    shuffled = is_learning([ids[i] for i in order], seed)
    assert shuffled.tolist() == sides[order].tolist()
    for name, side in zip(ids, sides, strict=True):
        digest = hashlib.sha256(f"{seed}:{name}".encode("utf-8", "surrogatepass")).hexdigest()
        assert side == (int(digest, 16) % 3 == 0)
        assert is_learning([name], seed).tolist() == [side]


def test_about_a_third_of_the_labels_learn() -> None:
    """Protects from a side that all labels are on, and from one that no seed changes."""
    ids = [f"row {i}" for i in range(4000)]
    sides = np.array([is_learning(ids, seed) for seed in range(4)])
    assert (np.abs(sides.mean(axis=1) - 1 / 3) < 3 * 0.5 / np.sqrt(4000)).all()
    assert 0.45 < (sides[0] == sides[1]).mean() < 0.65


@pytest.mark.shared_data
def test_a_combination_beats_the_best_single_score(shared_data: Path) -> None:
    """Protects from a learned rank that is worth nothing: .783 against .735 was found before."""
    questions = read_questions(shared_data)
    scores = peer_scores(questions)
    found = fit_rank(
        np.column_stack(list(scores.values())),
        dict.fromkeys(scores, "peer"),
        is_good=good_rows(questions),
        groups=questions["passage"].to_list(),
        seed=0,
    )
    best = max(column.single_auc or 0 for column in found.columns)
    assert found.n_folds == 10 and found.n_groups == 100
    assert 0.77 < (found.cv_auc or 0) < 0.81 and 0.71 < best < 0.75
    assert (found.brier or 1) < 0.747 * 0.253  # that of the share of good rows
