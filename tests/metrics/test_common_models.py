"""What holds for every metric by models: range, identity, empty texts, mates.

Whatever the catalog lists is tested; a new metric is added to the tables here. Models are small
and random: their numbers mean nothing, and rules hold for them as for any.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from answer_models import (
    ANSWER_METRICS,
    MODEL_METRICS,
    AnswerModels,
    Row,
    make_row,
    numbers,
    scores_only,
)
from helpers import as_table
from qaeval_core.metrics.base import AnyMetric

pytestmark = pytest.mark.slow

Score = Callable[..., dict[str, list[Any]]]

SPECS = ANSWER_METRICS
each_metric = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
# QRelScore has two parts, which may be undefined apart: its empty texts and references have tests
# of their own.
each_of_all = pytest.mark.parametrize("spec", MODEL_METRICS, ids=lambda spec: spec.name)
# fp32 sums over rows that are padded otherwise.
TOLERANCE = 1e-5

# Equal texts have the best score, but for these.
NO_IDENTITY: Mapping[str, str] = MappingProxyType(
    {
        "sas": "what a cross-encoder says of equal texts is its training's; a random one has none",
        "roundtrip": "it compares an answer with another, not a question with its context",
    }
)
# Sub-scores that have other bounds than the metric, of all settings or of one.
BOUNDS: Mapping[tuple[object, ...], dict[str, tuple[float, float]]] = MappingProxyType(
    {
        ("sas", "identity"): {"": (-math.inf, math.inf)},  # the logit itself
        ("qrelscore",): dict.fromkeys(("lrm", "lrm_raw"), (-1.0, 1.0)),  # cosines
        # The program's gain is no share: it may be more than 1.
        **{
            (name, "authors"): dict.fromkeys(outputs, (-1.0, math.inf))
            for name, outputs in (
                ("qrelscore", ("", "lrm", "lrm_raw", "grg", "grg_raw")),
                ("ref_qrelscore", ("", "context", "reference")),
            )
        },
        ("roundtrip",): {"null_margin": (-math.inf, math.inf)},  # a difference of logits
        ("kpqa", "authors"): {"rouge_l": (0.0, 2.0)},  # nothing is clipped there
    }
)
# F of BERTScore is a mean only where P and R are both positive.
F_SCORES = {"f1": ("precision", "recall"), "bertscore": ("bertscore_precision", "bertscore_recall")}

# Scores of (empty, text), (text, empty), (empty, empty), or why there is none.
_UNDEFINED = ("empty_candidate", "empty_reference", "empty_candidate")
EMPTY_TEXTS: Mapping[str, tuple[float | str, ...]] = MappingProxyType(
    {
        "sas": _UNDEFINED,
        "bi_encoder": _UNDEFINED,
        "bertscore": _UNDEFINED,
        "bertscore_free": ("empty_candidate", "empty_context", "empty_candidate"),
        "moverscore": _UNDEFINED,
        "roundtrip": ("empty_candidate", "empty_context", "empty_candidate"),
        "kpqa": (0.0, 0.0, 1.0),  # as BLEU and ROUGE-L, which are two of its three
    }
)
# What a random model finds is never the given answer: these are 0 throughout.
ALWAYS_ZERO: Mapping[str, tuple[str, ...]] = MappingProxyType({"roundtrip": ("", "exact")})
EMPTY = ("", " \n\t ")  # no word piece

# Choices that need another one, or write other columns.
_OF_WEIGHTED = [{"aggregate": "average"}, {"aggregate": "mover"}, {"gain": "absolute"}]
IMPOSSIBLE = [
    ("bertscore_free", {"idf": True}),
    *((name, one) for name in ("qrelscore", "ref_qrelscore") for one in _OF_WEIGHTED),
]

WORDS = ("Anna", "painted", "the", "sea", "every", "day", "1874", "?", "灯台", "👍", "x")
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join)
any_texts = st.one_of(texts, st.sampled_from(EMPTY), st.text(max_size=6))
any_rows = st.lists(
    st.fixed_dictionaries(
        {
            "question": any_texts,
            "candidate": any_texts,
            "references": st.lists(any_texts, max_size=3),
            "context": any_texts,
            "answer": any_texts,
        }
    ),
    max_size=5,
)


@pytest.fixture(scope="module")
def score(answer_models: AnswerModels) -> Score:
    """Score rows by a metric; scorers are kept."""
    scorers: dict[str, Any] = {}

    def score_by(spec: AnyMetric, rows: Sequence[Row], **given: object) -> dict[str, list[Any]]:
        key = f"{spec.name} {given}"
        if key not in scorers:
            own = {"m": answer_models.settings(spec.name, **given)}
            scorers[key] = answer_models.scorer(own)
        return numbers(spec, as_table(scorers[key].score(list(rows))))

    return score_by


def variants(spec: AnyMetric) -> list[dict[str, object]]:
    """Return the defaults, then each other choice of each setting."""
    found: list[dict[str, object]] = [{}]
    for name, field in spec.settings.model_fields.items():
        kind = field.annotation
        choices = (True, False) if kind is bool else ()
        choices = get_args(kind) if get_origin(kind) is Literal else choices
        found += [{name: choice} for choice in choices if choice != field.default]
    return [one for one in found if (spec.name, one) not in IMPOSSIBLE]


def assert_same(
    spec: AnyMetric, found: Mapping[str, list[Any]], expected: Mapping[str, list[Any]]
) -> None:
    """Assert equal reasons and counts, and scores within the tolerance, nulls in one place."""
    for output in found:
        if output in scores_only(spec, found):
            sides = [
                [math.inf if v is None else v for v in one[output]] for one in (found, expected)
            ]
            assert sides[0] == pytest.approx(sides[1], abs=TOLERANCE, rel=0.0), output
        else:
            assert found[output] == expected[output], output


@each_of_all
def test_scores_lie_in_range_or_are_undefined_with_a_reason(
    spec: AnyMetric, answer_models: AnswerModels
) -> None:
    """Protects from unit errors and NaN, under every choice of every setting."""
    chosen = variants(spec)
    instances = {f"m{i}": answer_models.settings(spec.name, **one) for i, one in enumerate(chosen)}
    scorer = answer_models.scorer(instances)

    @settings(deadline=None, max_examples=8)
    @given(rows=any_rows)
    def check(rows: list[Row]) -> None:
        scores = as_table(scorer.score(rows))
        for instance, one in zip(instances, chosen, strict=True):
            found = numbers(spec, scores, instance)
            own = scores_only(spec, found)
            for i, reason in enumerate(found["reason"]):
                values = {output: column[i] for output, column in own.items()}
                assert (None in values.values()) == (reason is not None), (one, values)
                special = {
                    **BOUNDS.get((spec.name,), {}),
                    **BOUNDS.get((spec.name, *one.values()), {}),
                }
                for output, value in values.items():
                    parts = [values[part] for part in F_SCORES.get(output, ())]
                    if value is not None and all(part > 0 for part in parts):
                        low, high = special.get(output, (spec.low, spec.high))
                        assert low <= value <= high, (one, output, value)

    check()


@each_metric
@pytest.mark.parametrize("text", ["1874", "x", "Anna painted the sea", "👍 灯台", "sea " * 600])
def test_equal_texts_have_the_best_score(spec: AnyMetric, text: str, score: Score) -> None:
    """Protects from a normalization that is off, in one window and in several."""
    if spec.name in NO_IDENTITY:
        pytest.skip(NO_IDENTITY[spec.name])
    for output, values in scores_only(spec, score(spec, [make_row(spec, text, text)])).items():
        assert values == pytest.approx([spec.high], abs=TOLERANCE), output


PAIRS = [
    ("Anna painted the sea", "Every day Anna painted"),
    ("1874", "in the year 1874"),
    ("x", "?"),
]


@each_metric
def test_symmetry_is_as_the_catalog_says(spec: AnyMetric, score: Score) -> None:
    """Protects from arguments swapped: no other property would notice."""
    there = scores_only(spec, score(spec, [make_row(spec, a, b) for a, b in PAIRS]))
    back = scores_only(spec, score(spec, [make_row(spec, b, a) for a, b in PAIRS]))
    for output in there.keys() - set(ALWAYS_ZERO.get(spec.name, ())):
        gap = float(np.abs(np.subtract(there[output], back[output])).max())
        if output in F_SCORES or spec.is_symmetric:
            assert gap < TOLERANCE, output
        else:
            assert gap > 1e-3, output
    if "precision" in there:
        assert there["precision"] == pytest.approx(back["recall"], abs=TOLERANCE)


@each_metric
@pytest.mark.parametrize("empty", EMPTY)
def test_empty_texts_score_by_rule(spec: AnyMetric, empty: str, score: Score) -> None:
    """Protects from a model's opinion of nothing, and from a silent 0."""
    pairs = [(empty, "sea"), ("sea", empty), (empty, empty)]
    found = score(spec, [make_row(spec, *pair) for pair in pairs])
    for i, expected in enumerate(EMPTY_TEXTS[spec.name]):
        is_score = isinstance(expected, float)
        assert found["reason"][i] == (None if is_score else expected)
        for values in scores_only(spec, found).values():
            assert values[i] == (expected if is_score else None)


@each_metric
def test_nulls_are_quarantined_and_no_reference_is_undefined(
    spec: AnyMetric, answer_models: AnswerModels
) -> None:
    """Protects from a null, or no reference, scored as an empty text."""
    full = make_row(spec, "sea", "the sea")
    rows = [full, *({**full, role: None} for role in spec.roles)]
    expected = [None, *(f"null_{role}" for role in spec.roles)]
    has_references = "references" in spec.roles
    if has_references:
        rows += [{**full, "references": [None, "sea"]}, make_row(spec, "sea"), make_row(spec, "")]
        expected += ["null_in_list_references", None, None]
    scores = as_table(answer_models.scorer({"m": answer_models.settings(spec.name)}).score(rows))
    assert scores["quarantine_reason"].to_pylist() == expected
    found = numbers(spec, scores)
    n_quarantined = len(spec.roles) + has_references
    assert found["reason"] == [None] * (1 + n_quarantined) + ["no_references"] * 2 * has_references
    for values in scores_only(spec, found).values():
        assert values[0] is not None and values[1:] == [None] * (len(rows) - 1)


@pytest.mark.parametrize(
    "spec", [s for s in SPECS if "references" in s.roles], ids=lambda s: s.name
)
def test_the_best_reference_counts_and_an_empty_one_does_not(spec: AnyMetric, score: Score) -> None:
    """Protects from a mean over references, and from P and R of other references than F."""
    texts = (
        "灯台",
        "",
        "in the year 1874",
        "1874",
        "x in",
        "1874 in 1874 in 1874",
        "the sea in it",
    )
    alone = scores_only(spec, score(spec, [make_row(spec, "in 1874", own) for own in texts]))
    chosen = list(itertools.permutations(range(len(texts)), 2))
    rows = [make_row(spec, "in 1874", *(texts[i] for i in own)) for own in chosen]
    found = scores_only(spec, score(spec, rows))
    n_apart = 0
    for name, column in found.items():
        f_name = next((f for f, parts in F_SCORES.items() if name in parts), name)
        ranks, own_ranks = (
            [-math.inf if v is None else v for v in alone[one]] for one in (f_name, name)
        )
        if spec.name == "bertscore":  # As bert-score: the best of each, whichever reference has it.
            ranks = own_ranks
        best = [max(own, key=ranks.__getitem__) for own in chosen]
        assert column == pytest.approx([alone[name][i] for i in best], abs=TOLERANCE), name
        n_apart += sum(
            max(map(own_ranks.__getitem__, own)) > own_ranks[i]
            for own, i in zip(chosen, best, strict=True)
        )
    shows_parts = spec.name != "bertscore" and any(f in found for f in F_SCORES)
    assert (n_apart > 0) == shows_parts  # else P and R show nothing


def mixed_rows(spec: AnyMetric) -> list[Row]:
    """Return rows with repeated texts, empty and long ones, and one or several others."""
    chance = np.random.default_rng(21)
    lengths = (0, 1, 1, 2, 4, 7, 12, 60, 300)
    pool = [" ".join(chance.choice(WORDS, size=n)) for n in lengths]
    chosen = [chance.choice(pool, size=2 + i % 3).tolist() for i in range(16)]
    return [make_row(spec, *own) for own in chosen]


@each_of_all
def test_order_neighbors_and_padding_do_not_matter(
    spec: AnyMetric, score: Score, answer_models: AnswerModels
) -> None:
    """Protects from padding that counts and from hidden state: one row at a time is the oracle."""
    rows = mixed_rows(spec)
    together = score(spec, rows)
    alone = [score(spec, [row]) for row in rows]
    assert_same(spec, together, {k: [one[k][0] for one in alone] for k in together})
    turned = score(spec, rows[::-1])
    assert_same(spec, together, {k: column[::-1] for k, column in turned.items()})
    for budget in (512, 8192):
        sizes = {f"models.{role}.max_batch_tokens": budget for role in answer_models.folders}
        own = answer_models.scorer({"m": answer_models.settings(spec.name)}, **sizes)
        assert_same(spec, together, numbers(spec, as_table(own.score(rows))))
    for output, values in scores_only(spec, together).items():
        assert output in ALWAYS_ZERO.get(spec.name, ()) or len(set(values)) > 4, output
