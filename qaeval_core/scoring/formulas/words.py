"""Words: counts of words, n-grams and matches to the columns of an instance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from qaeval_core.metrics import adapted
from qaeval_core.metrics.bleu import MAX_ORDER, bleu
from qaeval_core.metrics.cider import cider
from qaeval_core.metrics.exact_match import exact_match
from qaeval_core.metrics.f1 import f1
from qaeval_core.metrics.meteor import meteor
from qaeval_core.metrics.q_bleu import KINDS, answerability, q_bleu
from qaeval_core.metrics.references import (
    best_over_references,
    first_best,
    mean_over_references,
    take,
)
from qaeval_core.metrics.rouge_l import cut, f_score, rouge_l
from qaeval_core.metrics.top_n_accuracy import top_n_accuracy
from qaeval_core.scoring.formulas.columns import (
    FloatArray,
    InstanceScores,
    IntArray,
    counts,
    exact_column,
    flat,
    list_values,
    plain,
)
from qaeval_core.scoring.plans import InstancePlan

NO_REFERENCES = "no_references"
NO_WORDS = "no_words"

_ORDERS = tuple(range(1, MAX_ORDER + 1))


def score_words(plan: InstancePlan, statistics: Mapping[str, pa.Table]) -> InstanceScores:
    """Return the scores of a metric of words; see `score_instance`."""
    # The statistic that the formula reads is the last one; others were read by its pass.
    family = list(plan.families.values())[-1]
    formula = _FORMULAS[plan.settings.metric]
    return formula(plan.settings, statistics[family.key])


def _exact_match(_: Any, table: pa.Table) -> InstanceScores:
    is_equal = flat(table, "is_equal") > 0
    best = best_over_references(exact_match(is_equal=is_equal), counts(table, "is_equal"))
    return _scores({"": best}, counts(table, "is_equal"))


def _f1(_: Any, table: pa.Table) -> InstanceScores:
    n_references = counts(table, "n_reference")
    scores = f1(
        n_common=_ints(table, "n_common"),
        n_candidate=_per_reference(table, n_references).astype(np.int64),
        n_reference=_ints(table, "n_reference"),
    )
    best = first_best(scores.f1, n_references)
    return _scores(
        {
            "": take(scores.f1, best),
            "precision": take(scores.precision, best),
            "recall": take(scores.recall, best),
        },
        n_references,
    )


def _bleu(settings: Any, table: pa.Table) -> InstanceScores:
    n_references = counts(table, "n_reference")
    order = int(settings.metric[-1])
    matches = _by_order(table, "matches")
    return _best_bleu(settings, table, matches, _totals(table, n_references), order=order)


def _best_bleu(
    settings: Any, table: pa.Table, matches: FloatArray, totals: FloatArray, *, order: int
) -> InstanceScores:
    """Return BLEU of the best target of each row, and its statistics."""
    n_targets = counts(table, "n_reference")
    lengths = {
        "n_candidate": _per_reference(table, n_targets),
        "n_reference": flat(table, "n_reference"),
    }
    scores = bleu(
        matches=matches, totals=totals, order=order, smoothing=settings.smoothing, **lengths
    )
    scores = _without_words(scores, table)
    best = first_best(scores, n_targets)
    columns = [lengths["n_candidate"], lengths["n_reference"], *matches.T, *totals.T]
    sums = np.stack([take(column, best) for column in columns], axis=1)
    return _scores({"": take(scores, best)}, n_targets, sums=sums)


def _rouge_l(settings: Any, table: pa.Table) -> InstanceScores:
    n_references = counts(table, "n_reference")
    scores = rouge_l(
        lcs=flat(table, "lcs"),
        n_candidate=_per_reference(table, n_references),
        n_reference=flat(table, "n_reference"),
        beta=settings.beta,
    )
    precision, recall = (_without_words(part, table) for part in (scores.precision, scores.recall))
    f_scores = _without_words(scores.rouge_l, table)
    if settings.cut_decimals is not None:
        f_scores = f_score(precision, recall, beta=settings.beta)
    best = first_best(f_scores, n_references)
    found = take(f_scores, best), take(precision, best), take(recall, best)
    if settings.over_references == "standard":
        best_p = best_over_references(precision, n_references)
        best_r = best_over_references(recall, n_references)
        combined = f_score(best_p, best_r, beta=settings.beta)
        found = np.where(n_references > 1, combined, found[0]), best_p, best_r
    if settings.cut_decimals is not None:
        found = cut(found[0], decimals=settings.cut_decimals), *found[1:]
    return _scores(dict(zip(("", "precision", "recall"), found, strict=True)), n_references)


def _meteor(settings: Any, table: pa.Table) -> InstanceScores:
    n_references = counts(table, "n_reference")
    scores = meteor(
        n_matches=flat(table, "n_matches"),
        n_chunks=flat(table, "n_chunks"),
        n_candidate=_per_reference(table, n_references),
        n_reference=flat(table, "n_reference"),
        alpha=settings.alpha,
        beta=settings.beta,
        gamma=settings.gamma,
    )
    best = best_over_references(_without_words(scores, table), n_references)
    return _scores({"": best}, n_references)


def _cider(settings: Any, table: pa.Table) -> InstanceScores:
    n_references = counts(table, "n_reference")
    scores = cider(
        mean_similarity=flat(table, "similarity"),
        n_candidate=_per_reference(table, n_references),
        n_reference=flat(table, "n_reference"),
        sigma=settings.sigma,
    )
    scores = _without_words(scores, table)
    is_max = settings.over_references == "max"
    reduce = best_over_references if is_max else mean_over_references
    score = reduce(scores, n_references)
    sums = np.stack([score, np.where(np.isnan(score), np.nan, 1.0)], axis=1)
    return _scores({"": score}, n_references, sums=sums)


def _q_bleu(settings: Any, table: pa.Table) -> InstanceScores:
    n_references = counts(table, "n_reference")
    kinds = {
        side: np.stack([flat(table, f"{kind}_{side}") for kind in KINDS], axis=1)
        for side in ("common", "candidate", "reference")
    }
    answerable = answerability(
        n_common=kinds["common"],
        n_candidate=kinds["candidate"],
        n_reference=kinds["reference"],
        weights=settings.weights,
        absent=settings.absent,
    )
    own_bleu = bleu(
        matches=_by_order(table, "matches"),
        totals=_totals(table, n_references),
        n_candidate=_per_reference(table, n_references),
        n_reference=flat(table, "n_reference"),
        order=settings.order,
        smoothing=settings.smoothing,
    )
    scores = q_bleu(answerability=answerable, bleu=own_bleu, delta=settings.delta)
    scores = _without_words(scores, table)
    best = first_best(scores, n_references)
    values = {"": take(scores, best), "answerability": take(answerable, best)}
    return _scores(values, n_references)


def _adapted_bleu(settings: Any, table: pa.Table) -> InstanceScores:
    n_targets = counts(table, "n_reference")
    kinds = table.column("bonus").to_pylist()
    weight = np.repeat(_bonus_weight(settings, kinds), n_targets)[:, None]
    matches, totals = adapted.add_bonus(
        matches=_by_order(table, "matches"),
        totals=_totals(table, n_targets),
        bonus=_by_order(table, "bonus"),
        weight=weight,
    )
    scores = _best_bleu(settings, table, matches, totals, order=MAX_ORDER)
    return _with_bonus(scores, kinds)


def _adapted_rouge(settings: Any, table: pa.Table) -> InstanceScores:
    n_references = counts(table, "n_reference")
    row = np.repeat(np.arange(len(n_references)), n_references)
    kinds = table.column("bonus").to_pylist()
    weight = _bonus_weight(settings, kinds)[row]
    lcs = flat(table, "lcs")
    n_entity_words = plain(table, "n_entity_words")[row]
    is_entity = np.array([kind == adapted.ENTITY for kind in kinds], dtype=bool)[row]
    bonus = np.where(is_entity, n_entity_words, lcs * (flat(table, "agrees") > 0))
    n_candidate = _per_reference(table, n_references)
    n_reference = flat(table, "n_reference")
    both_empty = (n_candidate == 0) & (n_reference == 0)
    parts: list[FloatArray] = []
    for n_words in (n_candidate, n_reference):
        above, below = adapted.add_bonus(matches=lcs, totals=n_words, bonus=bonus, weight=weight)
        part = np.where(both_empty, 1.0, above / np.where(below > 0, below, 1.0))
        parts.append(_without_words(part, table))
    precision, recall = parts
    if settings.over_references == "max":
        each = f_score(precision, recall, beta=settings.gamma)
        score = best_over_references(each, n_references)
    else:
        best_p = best_over_references(precision, n_references)
        best_r = best_over_references(recall, n_references)
        score = f_score(best_p, best_r, beta=settings.gamma)
    return _with_bonus(_scores({"": score}, n_references), kinds)


def _top_n_accuracy(settings: Any, table: pa.Table) -> InstanceScores:
    places = plain(table, "first_overlap").astype(np.int64)
    score = top_n_accuracy(first_overlap=places, n=settings.n)
    return _scores({"": score}, np.ones(len(score), dtype=np.int64))


_FORMULAS: Mapping[str, Callable[[Any, pa.Table], InstanceScores]] = {
    "exact_match": _exact_match,
    "f1": _f1,
    "top_n_accuracy": _top_n_accuracy,
    **{f"bleu_{order}": _bleu for order in _ORDERS},
    "rouge_l": _rouge_l,
    "meteor": _meteor,
    "cider": _cider,
    "q_bleu": _q_bleu,
    "q_bleu_free": _q_bleu,
    "adapted_bleu_4": _adapted_bleu,
    "adapted_rouge_l": _adapted_rouge,
}


def _scores(
    values: Mapping[str, FloatArray], n_targets: IntArray, *, sums: FloatArray | None = None
) -> InstanceScores:
    """Return columns, with the reason of each undefined row."""
    reasons: list[str | None] = [None] * len(n_targets)
    for i in np.flatnonzero(np.isnan(values[""])).tolist():
        reasons[i] = NO_WORDS if n_targets[i] else NO_REFERENCES
    return InstanceScores(
        {name: exact_column(column) for name, column in values.items()}, reasons, sums
    )


def _with_bonus(scores: InstanceScores, kinds: list[str]) -> InstanceScores:
    outputs = {**scores.outputs, "bonus": pa.array(kinds, pa.string())}
    return InstanceScores(outputs, scores.reasons, scores.sums)


def _bonus_weight(settings: Any, kinds: list[str]) -> FloatArray:
    weights = {adapted.YES_NO: settings.alpha, adapted.ENTITY: settings.beta}
    return np.array([weights.get(kind, 0.0) for kind in kinds], dtype=np.float64)


def _without_words(scores: FloatArray, table: pa.Table) -> FloatArray:
    return np.where(flat(table, "no_words") > 0, np.nan, scores)


def _per_reference(table: pa.Table, n_references: IntArray) -> FloatArray:
    """Return the candidate's words, once for each of its references."""
    return np.repeat(plain(table, "n_candidate"), n_references)


def _totals(table: pa.Table, n_references: IntArray) -> FloatArray:
    """Return t_i = max(c - i + 1, 0) for each reference; shape (n_pairs, max_order)."""
    n_words = _per_reference(table, n_references)
    return np.stack([np.maximum(n_words - order + 1, 0.0) for order in _ORDERS], axis=1)


def _by_order(table: pa.Table, name: str) -> FloatArray:
    return np.stack([flat(table, f"{name}_{order}") for order in _ORDERS], axis=1)


def _ints(table: pa.Table, name: str) -> IntArray:
    return np.asarray(list_values(table, name).to_numpy(zero_copy_only=False), dtype=np.int64)
