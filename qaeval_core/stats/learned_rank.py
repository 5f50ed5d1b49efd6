"""Learned rank: several scores combined into one that tells good rows from bad ones.

Logistic regression of labels on columns of scores. Knows numbers and names of columns; reads no
file, and certifies nothing: rows that were learned from must not be (`is_learning`).

Source
------
Logistic regression with an L2 penalty of 1 on the weights, none on the intercept, by
scikit-learn's solver. For a row with label y in {0, 1} and column values x_c::

    z_c   = (x_c - mean_c) / sd_c,   0 where x_c is missing
    logit = intercept + sum_c (weight_c z_c + missing_weight_c [x_c is missing])
    minimize  sum_rows log(1 + exp(-(2 y - 1) logit)) + 1/2 sum_c (weight_c^2 + missing_weight_c^2)

Mean and sd are those of the learning rows where the column has a value.

Differs from a pipeline of scikit-learn (impute, scale, fit)
------------------------------------------------------------
- Mean and sd leave missing values out: a column with many of them is not stretched.
- A column with one value has weight 0, and an indicator of missing values only where some are
  missing in the learning rows.
- A score is a sum in the order of the columns, not a matrix product: its last digit does not depend
  on how many rows are scored at once.

But: a logit is no calibrated probability of other corpora, and the areas under the curve say how
well rows are told apart, not how precise a kept share is; that is `certificate`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError

from qaeval_core.errors import ConfigError, first_problem
from qaeval_core.stats.ranking import Folds, auc, check_sklearn, fold_seed

MAX_FOLDS = 10
FORMAT = 2
_INVERSE_PENALTY = 1.0
_ONE_LEARNS_OF = 3
_N_ID_DIGITS = 12

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LearnedColumn:
    """One column: how its values are scaled, what they weigh, and what it is worth alone.

    ``sd`` is 0 where all its values are one, and its weight 0. ``single_auc`` is that of the
    column's own values under the folds of the combination; below .5, lower values are better.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: str
    signature: str
    mean: float
    sd: float
    weight: float
    missing_weight: float
    n_missing: int
    single_auc: float | None


@dataclass(frozen=True, slots=True)
class LearnedRank:
    """A learned combination. ``cv_auc``, ``brier`` are None, ``undefined_reason`` says why.

    Both are of held-out groups. ``cv_auc`` in [0, 1], higher is better, .5 says nothing; ``brier``
    is the mean square of probability less label, in [0, 1], lower is better. ``learned_from`` has
    `id_hash` of each row that it was learned from, where that is known: these must not certify it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    columns: tuple[LearnedColumn, ...]
    intercept: float
    seed: int
    n_rows: int
    n_good: int
    n_groups: int
    n_folds: int
    cv_auc: float | None
    brier: float | None
    undefined_reason: str | None
    learned_from: tuple[str, ...] = ()

    def score(self, features: FloatArray) -> FloatArray:
        """Return the logit of each row.

        Parameters
        ----------
        features : float ndarray of shape (n_rows, n_columns)
            In the order of ``columns``; NaN where missing.

        Returns
        -------
        float ndarray of shape (n_rows,)
            In nats, higher is better: not a probability, which would tie at 1. NaN where a value is
            infinite.
        """
        total = np.full(len(features), self.intercept)
        for column, values in zip(self.columns, features.T, strict=True):
            is_missing = np.isnan(values)
            if column.sd > 0:
                total += column.weight * _scaled(values, column.mean, column.sd)
            total[is_missing] += column.missing_weight
            total[np.isinf(values)] = np.nan
        return total

    def check_signatures(self, signatures: Mapping[str, str]) -> None:
        """Raise ConfigError unless each column is there and was made as it was when learned from.

        Parameters
        ----------
        signatures : mapping of str to str
            Of the columns at hand, by name; others may be there, too.
        """
        for column in self.columns:
            if column.name not in signatures:
                raise ConfigError(f"the learned rank needs the column {column.name!r} [QA0703]")
            if signatures[column.name] != column.signature:
                raise ConfigError(
                    f"the column {column.name!r} has other settings now than when the rank was "
                    f"learned: {signatures[column.name]!r}, then {column.signature!r} [QA0703]"
                )

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads back, to the last bit."""
        values = asdict(self)
        lists = {name: list(values[name]) for name in ("columns", "learned_from")}
        return {"format": FORMAT, **values, **lists}

    @classmethod
    def from_json(cls, values: object) -> LearnedRank:
        """Return what `to_json` wrote.

        Raises
        ------
        ConfigError
            If the values are no learned rank, or one of a later version.
        """
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise ConfigError(f"it is not a learned rank of format {FORMAT} [QA0703]")
        rest = {key: value for key, value in values.items() if key != "format"}
        try:
            return TypeAdapter(cls).validate_python(rest)
        except ValidationError as error:
            raise ConfigError(
                f"it is not a learned rank: {first_problem(error)} [QA0703]"
            ) from None


def fit_rank(
    features: FloatArray,
    signatures: Mapping[str, str],
    *,
    is_good: NDArray[np.floating] | NDArray[np.bool_],
    groups: Sequence[str] | NDArray[Any],
    seed: int,
) -> LearnedRank:
    """Learn weights of columns from labeled rows, and how well they do on groups held out.

    Parameters
    ----------
    features : float ndarray of shape (n_rows, n_columns)
        NaN where missing.
    signatures : mapping of str to str
        How each column was made, by name, in the order of the columns.
    is_good : ndarray of shape (n_rows,)
        1 for good, 0 for bad.
    groups : sequence of shape (n_rows,)
        Rows of one group, such as questions about one passage, are held out together.
    seed : int
        Of the folds.

    Returns
    -------
    LearnedRank

    Raises
    ------
    ConfigError
        If scikit-learn is not installed; a label is missing or all are alike; there are fewer than
        two groups; or a column has no value or an infinite one.

    Notes
    -----
    Up to ten stratified folds of groups. An area under the curve is the share of pairs of a good
    and a bad row *of one fold* in which the good one is higher, over all folds, ties counting half:
    logits of two folds come from two regressions. The same pairs judge each column alone, a missing
    value standing at the mean.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> good = np.arange(200) % 2 == 0
    >>> both = np.column_stack([good + rng.normal(size=200), good - rng.normal(size=200)])
    >>> names = {"sas": "sas|v:1", "rouge_l": "rouge_l|v:1"}
    >>> learned = fit_rank(both, names, is_good=good, groups=np.arange(200), seed=0)
    >>> learned.cv_auc > max(column.single_auc for column in learned.columns) > 0.7
    True
    >>> LearnedRank.from_json(learned.to_json()) == learned
    True
    """
    check_sklearn("a learned rank")
    features, labels = np.asarray(features, dtype=np.float64), np.asarray(is_good, dtype=np.float64)
    names, codes = list(signatures), np.unique(np.asarray(groups), return_inverse=True)[1]
    n_groups = len(np.unique(codes))
    _check(features, names, labels, n_groups)
    good = labels == 1
    fitted = _fit(features, good)
    folds = _folds(good, codes, seed)
    found = None if folds is None else _cross_validate(features, good, folds)
    columns = tuple(
        LearnedColumn(
            name=name,
            signature=signatures[name],
            mean=float(fitted.mean[c]),
            sd=float(fitted.sd[c]),
            weight=float(fitted.weight[c]),
            missing_weight=float(fitted.missing_weight[c]),
            n_missing=int(np.isnan(features[:, c]).sum()),
            single_auc=found.single_aucs[c] if found else None,
        )
        for c, name in enumerate(names)
    )
    return LearnedRank(
        columns=columns,
        intercept=fitted.intercept,
        seed=seed,
        n_rows=len(good),
        n_good=int(good.sum()),
        n_groups=n_groups,
        n_folds=len(folds) if folds and found else 0,
        cv_auc=found.auc if found else None,
        brier=found.brier if found else None,
        undefined_reason=None if found else _NO_FOLDS,
    )


def id_hash(name: str) -> str:
    """Return the first 12 digits of an id's SHA-256: it names the row and does not tell the id.

    Examples
    --------
    >>> id_hash("q1")
    'c75de8c1b7c3'
    """
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_N_ID_DIGITS]


def is_learning(ids: Iterable[str], seed: int) -> NDArray[np.bool_]:
    """Return which labeled rows are for learning; the others are for certifying.

    Parameters
    ----------
    ids : iterable of str, of shape (n_rows,)
    seed : int

    Returns
    -------
    bool ndarray of shape (n_rows,)
        Whether the SHA-256 of seed and id is divisible by three: about a third. A row's side
        depends on nothing else, so labels that are added later move none to the other side.

    Notes
    -----
    Rows, not groups: labels that were drawn row by row and not learned from are a simple random
    sample of the rows that were not learned from, whatever groups they share with those.

    Examples
    --------
    >>> is_learning(["q1", "q2", "q3", "q4", "q1"], seed=0).tolist()
    [True, False, False, False, True]
    """
    texts = (f"{seed}:{name}".encode("utf-8", "surrogatepass") for name in ids)
    numbers = (int.from_bytes(hashlib.sha256(text).digest()) for text in texts)
    return np.array([number % _ONE_LEARNS_OF == 0 for number in numbers], dtype=np.bool_)


_NO_FOLDS = "too few groups hold good rows, or bad ones, to hold some of them out"


@dataclass(frozen=True, slots=True)
class _Fitted:
    """Of each column, shape (n_columns,)."""

    mean: FloatArray
    sd: FloatArray
    weight: FloatArray
    missing_weight: FloatArray
    intercept: float

    def logits(self, features: FloatArray) -> FloatArray:
        is_missing = np.isnan(features)
        total: FloatArray = (
            self.intercept
            + (self.weight * _scaled(features, self.mean, self.sd)).sum(axis=1)
            + (self.missing_weight * is_missing).sum(axis=1)
        )
        return total


@dataclass(frozen=True, slots=True)
class _HeldOut:
    auc: float
    brier: float
    single_aucs: list[float]


def _check(features: FloatArray, names: Sequence[str], labels: FloatArray, n_groups: int) -> None:
    n_rows, n_good = len(labels), int((labels == 1).sum())
    n_strange = n_rows - n_good - int((labels == 0).sum())
    if n_strange:
        raise ConfigError(
            f"{n_strange} of {n_rows} labels are neither good (1) nor bad (0) [QA0315]"
        )
    if n_good in (0, n_rows):
        raise ConfigError(
            f"{n_good} of {n_rows} labels are good, so nothing can be learned from them [QA0315]"
        )
    if n_groups < 2:
        raise ConfigError(f"all {n_rows} labels are of one group; at least two are needed [QA0315]")
    for name, values in zip(names, features.T, strict=True):
        if np.isnan(values).all():
            raise ConfigError(f"the column {name!r} has no value in {n_rows} labeled rows [QA0315]")
        if np.isinf(values).any():
            n_infinite = int(np.isinf(values).sum())
            raise ConfigError(
                f"the column {name!r} is infinite in {n_infinite} labeled rows [QA0315]"
            )


def _scaled(values: FloatArray, mean: Any, sd: Any) -> FloatArray:
    """Return z of the docstring of the module; 0 where missing or infinite, and where sd is 0."""
    is_used = np.isfinite(values) & (np.asarray(sd) > 0)
    scaled: FloatArray = np.divide(values - mean, sd, out=np.zeros_like(values), where=is_used)
    return scaled


def _moments(values: FloatArray) -> tuple[float, float]:
    known = values[~np.isnan(values)]
    # By comparison: the sd of equal numbers is not always 0, and a fold may hold no value at all.
    if len(known) == 0 or known.min() == known.max():
        return float(known[0]) if len(known) else 0.0, 0.0
    return float(known.mean()), float(known.std())


def _fit(features: FloatArray, good: NDArray[np.bool_]) -> _Fitted:
    from sklearn.linear_model import LogisticRegression

    moments = [_moments(values) for values in features.T]
    mean, sd = (np.array(side) for side in zip(*moments, strict=True))
    is_missing = np.isnan(features)
    has_weight, has_missing = sd > 0, is_missing.any(axis=0)
    inputs = np.hstack(
        [_scaled(features, mean, sd)[:, has_weight], is_missing[:, has_missing].astype(np.float64)]
    )
    weight, missing_weight = np.zeros(len(mean)), np.zeros(len(mean))
    if inputs.shape[1] == 0:
        odds = good.sum() / (~good).sum()
        return _Fitted(mean, sd, weight, missing_weight, float(np.log(odds)))
    model = LogisticRegression(
        C=_INVERSE_PENALTY, solver="newton-cholesky", tol=1e-10, max_iter=200
    ).fit(inputs, good)
    n_weights = int(has_weight.sum())
    weight[has_weight] = model.coef_[0, :n_weights]
    missing_weight[has_missing] = model.coef_[0, n_weights:]
    return _Fitted(mean, sd, weight, missing_weight, float(model.intercept_[0]))


def _folds(good: NDArray[np.bool_], codes: NDArray[np.intp], seed: int) -> Folds | None:
    """Return as many folds as leave good and bad rows to learn from, ten at most; None below 2."""
    from sklearn.model_selection import StratifiedGroupKFold

    most = min(MAX_FOLDS, len(np.unique(codes[good])), len(np.unique(codes[~good])))
    for n_folds in range(most, 1, -1):
        splitter = StratifiedGroupKFold(n_folds, shuffle=True, random_state=fold_seed(seed))
        folds = list(splitter.split(np.zeros(len(good)), good, codes))
        if all(0 < good[train].sum() < len(train) for train, _ in folds):
            return folds
    return None


def _cross_validate(features: FloatArray, good: NDArray[np.bool_], folds: Folds) -> _HeldOut | None:
    """Return the figures of held-out rows; None where no fold holds out both good and bad rows."""
    logits = np.empty(len(good))
    for train, test in folds:
        logits[test] = _fit(features[train], good[train]).logits(features[test])
    if not any(0 < good[test].sum() < len(test) for _, test in folds):
        return None
    with np.errstate(over="ignore"):  # Of a value far from all that were learned from: 0.
        probabilities = 1 / (1 + np.exp(-logits))
    filled = np.where(np.isnan(features), np.nanmean(features, axis=0), features)
    return _HeldOut(
        auc=_pooled_auc(logits, good, folds),
        brier=float(((probabilities - good) ** 2).mean()),
        single_aucs=[_pooled_auc(values, good, folds) for values in filled.T],
    )


def _pooled_auc(scores: FloatArray, good: NDArray[np.bool_], folds: Folds) -> float:
    """Return the share of pairs of one fold in which the good row is higher, over all folds."""
    wins, n_pairs = map(sum, zip(*_wins(scores, good, folds), strict=True))
    return wins / n_pairs


def _wins(scores: FloatArray, good: NDArray[np.bool_], folds: Folds) -> Iterator[tuple[float, int]]:
    for _, test in folds:
        own, chosen = scores[test], good[test]
        n_pairs = int(chosen.sum()) * int((~chosen).sum())
        if n_pairs:
            yield auc(positive=own[chosen], negative=own[~chosen]) * n_pairs, n_pairs
