"""Answers judged by models: logits, cosines and weights to the columns of an instance."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.metrics import bertscore as bert
from qaeval_core.metrics import kpqa
from qaeval_core.metrics.bi_encoder import bi_encoder
from qaeval_core.metrics.model_settings import SasSettings
from qaeval_core.metrics.moverscore import moverscore
from qaeval_core.metrics.references import best_over_references, first_best, take
from qaeval_core.metrics.sas import sas
from qaeval_core.scoring.compile_answers import activation_of
from qaeval_core.scoring.families.base import EMPTY_TARGET, NO_WEIGHT, NON_FINITE
from qaeval_core.scoring.formulas.columns import (
    FloatArray,
    InstanceScores,
    IntArray,
    counts,
    flat,
    list_values,
    score_column,
)
from qaeval_core.scoring.plans import InstancePlan, ModelFamilyPlan

NO_REFERENCES = "no_references"

BoolArray = NDArray[np.bool_]
Values = Mapping[str, FloatArray | IntArray]


def score_answers(plan: InstancePlan, statistics: Mapping[str, pa.Table]) -> InstanceScores:
    """Return the scores of a metric that judges answers by models; see `score_instance`."""
    tables = {name: statistics[family.key] for name, family in plan.families.items()}
    return _FORMULAS[plan.settings.metric](plan, tables)


def _sas(plan: InstancePlan, tables: Mapping[str, pa.Table]) -> InstanceScores:
    table, n_targets = tables["sas"], counts(tables["sas"], "logit")
    family, settings = plan.families["sas"], plan.settings
    assert isinstance(family, ModelFamilyPlan)
    assert isinstance(settings, SasSettings)
    activation = activation_of(settings, family.artifact)
    scores = sas(logit=flat(table, "logit"), activation=activation)
    values: Values = {
        "": best_over_references(scores, n_targets),
        "truncated": _sum(table, "is_truncated"),
    }
    return _scores(values, _row_reasons(table, scores, n_targets))


def _bi_encoder(_: InstancePlan, tables: Mapping[str, pa.Table]) -> InstanceScores:
    table, n_targets = tables["bi_encoder"], counts(tables["bi_encoder"], "cosine")
    scores = bi_encoder(cosine=flat(table, "cosine"))
    values: Values = {
        "": best_over_references(scores, n_targets),
        "truncated": _sum(table, "n_truncated"),
    }
    return _scores(values, _row_reasons(table, scores, n_targets))


def _moverscore(_: InstancePlan, tables: Mapping[str, pa.Table]) -> InstanceScores:
    table, n_targets = tables["token_transport"], counts(tables["token_transport"], "reasons")
    scores = moverscore(transport_cost=flat(table, "transport_cost"))
    best = best_over_references(scores, n_targets)
    return _scores({"": best}, _row_reasons(table, scores, n_targets))


def _bertscore(plan: InstancePlan, tables: Mapping[str, pa.Table]) -> InstanceScores:
    (table,) = tables.values()
    n_targets, matches = counts(table, "reasons"), _matches(table)
    scores = bert.bertscore(**matches)
    if plan.rescaling is not None:
        parts = zip(scores, plan.rescaling, strict=True)
        scores = bert.BertScore(*(bert.rescale(part, baseline=b) for part, b in parts))
    best = first_best(scores.f1, n_targets)
    values = {
        "precision": take(scores.precision, best),
        "recall": take(scores.recall, best),
        "f1": take(scores.f1, best),
    }
    is_free = plan.settings.metric == "bertscore_free"
    reasons = _row_reasons(
        table,
        scores.f1,
        n_targets,
        empty_target="empty_context" if is_free else "empty_reference",
        has_weight=_has_weight(matches),
    )
    return _scores(values, reasons)


def _kpqa(plan: InstancePlan, tables: Mapping[str, pa.Table]) -> InstanceScores:
    settings: Any = plan.settings
    table = tables["kpqa_weights"]
    n_targets = counts(table, "reasons")
    bleu, rouge = _weighted_words(settings, table)
    matches = _weighted_matches(settings, table, tables["token_match"])
    match = _judge_empty(kpqa.kpqa_bertscore(**matches), table)
    best = first_best(match.f1, n_targets)
    values: Values = {
        "bleu_1": best_over_references(bleu, n_targets),
        "rouge_l": best_over_references(rouge, n_targets),
        "bertscore": take(match.f1, best),
        "bertscore_precision": take(match.precision, best),
        "bertscore_recall": take(match.recall, best),
    }
    reasons = _row_reasons(table, match.f1, n_targets, has_weight=_has_weight(matches))
    found = _scores(values, reasons)
    if not settings.show_weights:
        return found
    return InstanceScores({**found.outputs, "weights": _shown_weights(table)}, found.reasons)


def _weighted_words(settings: Any, table: pa.Table) -> tuple[FloatArray, FloatArray]:
    """Return BLEU-1-KPQA and ROUGE-L-KPQA of every target; plain ones weigh every token 1."""
    sums = {name: flat(table, name) for name in _PLAIN_COUNTS}
    if settings.weights == "plain":
        sums = {name: flat(table, plain) for name, plain in _PLAIN_COUNTS.items()}
    n_tokens = {name: flat(table, name) for name in ("n_candidate", "n_reference")}
    bleu = kpqa.kpqa_bleu_1(
        matched_weight=sums["matched_weight"],
        candidate_weight=sums["candidate_weight"],
        profile=settings.profile,
        **n_tokens,
    )
    rouge = kpqa.kpqa_rouge_l(
        lcs_weight=sums["lcs_weight"],
        lcs_reference_weight=sums["lcs_reference_weight"],
        candidate_weight=sums["candidate_weight"],
        reference_weight=sums["reference_weight"],
        beta=1.0 if settings.profile == "authors" else settings.beta,
        profile=settings.profile,
        **n_tokens,
    )
    return bleu, rouge


# What a weighted count becomes where every token weighs 1.
_PLAIN_COUNTS = {
    "matched_weight": "n_matched",
    "candidate_weight": "n_candidate",
    "reference_weight": "n_reference",
    "lcs_weight": "lcs_length",
    "lcs_reference_weight": "lcs_length",
}


def _weighted_matches(settings: Any, weights: pa.Table, matches: pa.Table) -> dict[str, Any]:
    """Return what BERTScore-KPQA reads: vectors' matches, with the classifier's weights."""
    found = _matches(matches)
    for side in ("candidate", "reference"):
        keyphrase = flat(weights, f"{side}_weights")
        if settings.weights == "plain":
            keyphrase = np.ones_like(keyphrase)
        # Both families hold the tokens of targets that have a score in both; the others get NaN.
        keyphrase = _aligned(keyphrase, _side_counts(weights, side), found[f"n_{side}"])
        found[f"{side}_weights"] = found[f"{side}_weights"] * keyphrase
    return found


def _side_counts(table: pa.Table, side: str) -> IntArray:
    """Return the tokens of one side of every target; 0 where the target has no score."""
    n_tokens = flat(table, f"n_{side}")
    return np.where(np.isnan(n_tokens), 0, n_tokens).astype(np.int64)


def _aligned(values: FloatArray, n_values: IntArray, n_wanted: IntArray) -> FloatArray:
    """Return the values of targets that are wanted; NaN for those that have none.

    A target has as many values as are wanted, or none, or none is wanted.
    """
    found = np.full(int(n_wanted.sum()), np.nan)
    is_kept = n_values == n_wanted
    found[np.repeat(is_kept, n_wanted)] = values[np.repeat(is_kept, n_values)]
    return found


def _judge_empty(scores: bert.BertScore, table: pa.Table) -> bert.BertScore:
    """Return scores with 1 for two empty texts and 0 for one, as BLEU and ROUGE-L have them."""
    n_candidate, n_reference = flat(table, "n_candidate"), flat(table, "n_reference")
    is_empty = (n_candidate == 0) | (n_reference == 0)
    both = ((n_candidate == 0) & (n_reference == 0)).astype(np.float64)
    return bert.BertScore(*(np.where(is_empty, both, score) for score in scores))


def _shown_weights(table: pa.Table) -> pa.Array:
    """Return the candidate's tokens and weights as JSON; null where it has no weights."""
    tokens = table.column("shown_tokens").to_pylist()
    weights = table.column("shown_weights").to_pylist()
    rows = [
        [[token, round(weight, 6)] for token, weight in zip(own, values, strict=True)]
        for own, values in zip(tokens, weights, strict=True)
    ]
    shown = [
        # NaN is no JSON.
        json.dumps(row, ensure_ascii=False) if np.isfinite(own).all() else None
        for row, own in zip(rows, weights, strict=True)
    ]
    return pa.array(shown, pa.string())


_FORMULAS: Mapping[str, Callable[[InstancePlan, Mapping[str, pa.Table]], InstanceScores]] = {
    "sas": _sas,
    "bi_encoder": _bi_encoder,
    "bertscore": _bertscore,
    "bertscore_free": _bertscore,
    "moverscore": _moverscore,
    "kpqa": _kpqa,
}


def _matches(table: pa.Table) -> dict[str, Any]:
    return {
        "best_candidate": flat(table, "best_candidate"),
        "candidate_weights": flat(table, "candidate_weights"),
        "n_candidate": _ints(table, "n_candidate"),
        "best_reference": flat(table, "best_reference"),
        "reference_weights": flat(table, "reference_weights"),
        "n_reference": _ints(table, "n_reference"),
    }


def _ints(table: pa.Table, name: str) -> IntArray:
    return np.asarray(list_values(table, name).to_numpy(zero_copy_only=False), dtype=np.int64)


def _sum(table: pa.Table, name: str) -> IntArray:
    n_targets = counts(table, name)
    owner = np.repeat(np.arange(len(n_targets)), n_targets)
    return np.bincount(owner, weights=flat(table, name), minlength=len(n_targets)).astype(np.int64)


def _row_reasons(
    table: pa.Table,
    scores: FloatArray,
    n_targets: IntArray,
    *,
    empty_target: str = "empty_reference",
    has_weight: BoolArray | None = None,
) -> list[str | None]:
    """Return why a row has no score: the reason of its first target; None where it has one.

    A target without a reason of its own has no weight, or the model gave no number.
    """
    own = list_values(table, "reasons").to_pylist()
    first = np.cumsum(n_targets) - n_targets
    best = best_over_references(scores, n_targets)
    reasons: list[str | None] = [None] * len(n_targets)
    for i in np.flatnonzero(np.isnan(best)).tolist():
        if not n_targets[i]:
            reasons[i] = NO_REFERENCES
            continue
        at = int(first[i])
        is_weightless = has_weight is not None and not has_weight[at]
        reason = own[at] or (NO_WEIGHT if is_weightless else NON_FINITE)
        reasons[i] = empty_target if reason == EMPTY_TARGET else reason
    return reasons


def _has_weight(matches: Mapping[str, Any]) -> BoolArray:
    """Return whether both sides of every target have a token that counts."""
    found = np.ones(len(matches["n_candidate"]), dtype=bool)
    for side in ("candidate", "reference"):
        n_tokens, weights = matches[f"n_{side}"], matches[f"{side}_weights"]
        owner = np.repeat(np.arange(len(n_tokens)), n_tokens)
        found &= np.bincount(owner, weights=weights, minlength=len(n_tokens)) > 0
    return found


def _scores(values: Values, reasons: list[str | None]) -> InstanceScores:
    return InstanceScores({name: score_column(v) for name, v in values.items()}, reasons)
