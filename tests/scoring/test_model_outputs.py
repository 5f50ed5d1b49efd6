"""What a model may put out and people may write: no numbers, no weights, and JSON of it."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from answer_models import ANSWER_METRICS, AnswerModels, make_row, numbers, scores_only
from helpers import as_table
from qaeval_core.families.contract import Engine, statistics_table
from qaeval_core.families.model_units import NO_WEIGHT, NON_FINITE
from qaeval_core.metrics.base import AnyMetric
from qaeval_core.metrics.catalog import METRICS
from qaeval_core.models.session import Session
from qaeval_core.running.score_rows import score_rows

SPECS = ANSWER_METRICS

# A vector or a probability that overflows is NaN; a logit is infinite first.
NON_NUMBERS = [(spec, math.nan) for spec in SPECS] + [(METRICS["sas"], math.inf)]


@pytest.mark.parametrize(("spec", "number"), NON_NUMBERS, ids=lambda x: getattr(x, "name", x))
def test_a_model_output_that_is_no_number_is_a_reason(
    spec: AnyMetric, number: float, answer_models: AnswerModels
) -> None:
    """Overflow must not be the best score: sigmoid(inf) is 1, and POT moves NaN at no cost."""
    sides = itertools.permutations(("sea", "the mill", "x y"), 2)
    rows = [make_row(spec, *pair) for pair in sides]
    scorer = answer_models.scorer({"m": answer_models.settings(spec.name)})
    run = scorer.compile({role: role for role in spec.roles})
    values = {role: [row[role] for row in rows] for role in spec.roles}
    clean = numbers(spec, score_rows(run, scorer.statistics(run, values)))
    for plan in run.families:
        statistics = scorer.statistics(run, values)
        runner = plan.open_runner(Engine(models=scorer.config.models, n_threads=1))
        prepared = runner.layout.prepare({role: values[role] for role in plan.columns})
        runner.run(prepared)
        first = Session(plan.artifact, n_threads=1).run(prepared.work.units.make_inputs([0]))
        prepared.work.units.take([0], np.full_like(first, number))
        statistics[plan.key] = statistics_table(prepared, first_position=0)
        found = numbers(spec, score_rows(run, statistics))
        is_hit = [reason == NON_FINITE for reason in found["reason"]]
        assert 0 < sum(is_hit) < len(rows)
        for output, column in found.items():
            for hit, value, expected in zip(is_hit, column, clean[output], strict=True):
                if not hit:
                    assert value == expected, output
        main = list(scores_only(spec, found))[-1]
        assert [value is None for value in found[main]] == is_hit


def test_shown_weights_are_json_or_null(answer_models: AnswerModels) -> None:
    """NaN is no JSON: a reader of the column would fail on the one row without weights."""
    spec = METRICS["kpqa"]
    own = answer_models.settings("kpqa", show_weights=True)
    rows = [make_row(spec, "the sea", "sea"), make_row(spec, "", "sea"), make_row(spec, "sea")]
    rows.append({**rows[0], "question": ""})
    scores = as_table(answer_models.scorer({"m": own}).score(rows))
    shown = [None if v is None else json.loads(v) for v in scores["m_weights"].to_pylist()]
    assert [token for token, _ in shown[0]] == ["the", "sea"]
    assert shown[1:] == [[], [], None]


@pytest.mark.parametrize(
    ("metric", "given"),
    [
        ("bertscore", {"idf": True}),
        ("moverscore", {"idf": True}),
        ("kpqa", {"profile": "authors"}),
        ("kpqa", {"profile": "authors", "weights": "plain"}),
    ],
)
def test_a_text_whose_tokens_every_reference_has_weighs_nothing(
    metric: str, given: dict[str, object], answer_models: AnswerModels
) -> None:
    """Its idf is 0: 0 / 0 is no score, and no fault of the model either."""
    spec = METRICS[metric]
    scorer = answer_models.scorer({"m": answer_models.settings(metric, **given)})
    common = make_row(spec, "the sea", "the sea")
    found = numbers(spec, as_table(scorer.score([common, common])))
    assert found["reason"] == [NO_WEIGHT, NO_WEIGHT]
    if metric == "kpqa":  # Its words have weights: no idf there.
        assert found["bleu_1"] == pytest.approx([1.0, 1.0])
    found = numbers(spec, as_table(scorer.score([common, make_row(spec, "the mill", "the mill")])))
    assert found["reason"] == [None, None]


def test_texts_too_long_to_transport_are_undefined_and_run_no_model(
    answer_models: AnswerModels,
) -> None:
    """50,000 x 50,000 distances would take 20 GB, and the worker with them."""
    spec = METRICS["moverscore"]
    scorer = answer_models.scorer({"m": answer_models.settings("moverscore")})
    run = scorer.compile({"candidate": "candidate", "references": "references"})
    rows = [make_row(spec, "sea " * 50_000, "mill " * 50_000), make_row(spec, "sea", "mill " * 900)]
    runner = run.families[0].open_runner(Engine(models=scorer.config.models, n_threads=1))
    prepared = runner.layout.prepare({role: [row[role] for row in rows] for role in spec.roles})
    assert prepared.stats.n_units == 1 + 2  # "sea", and two windows
    found = numbers(spec, as_table(scorer.score(rows)))
    assert found["reason"] == ["too_long_to_transport", None]
    assert found[""][0] is None and found[""][1] is not None
