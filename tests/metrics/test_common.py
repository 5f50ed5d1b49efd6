"""What holds for every lexical metric: range, identity, symmetry, empty texts, batch mates.

Whatever the catalog lists is tested; a new role or exception is added to the tables here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import as_table, run_locally, write_parquet
from qaeval_core import Scorer
from qaeval_core.metrics.base import AnyMetric
from qaeval_core.metrics.catalog import METRICS

Row = dict[str, Any]
WORD_METRICS = [spec for spec in METRICS.values() if spec.needs == ("words",)]
each_metric = pytest.mark.parametrize("spec", WORD_METRICS, ids=lambda spec: spec.name)

# Scores of equal texts that are not the best: (fewest words at which they are, why).
_NO_N_GRAM = "no n-gram of the longest order, and no smoothing"
BELOW_BEST_FOR_EQUAL_TEXTS: Mapping[str, tuple[float, str]] = MappingProxyType(
    {
        "bleu_2": (2, _NO_N_GRAM),
        "bleu_3": (3, _NO_N_GRAM),
        "bleu_4": (4, _NO_N_GRAM),
        "adapted_bleu_4": (4, _NO_N_GRAM),
        "q_bleu": (4, "its BLEU part has a floor of 0.1 matches for an order without n-grams"),
        "q_bleu_free": (4, "as q_bleu"),
        "cider": (4, "an order without n-grams has a cosine of 0"),
        "meteor": (math.inf, "one chunk has a penalty, 1 - gamma (1 / m)^beta"),
    }
)
# Texts whose scores differ when they are swapped; every word of the left one is in the right one.
ASYMMETRIC_PAIRS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"top_n_accuracy": ("honey", "Ann keeps bees behind mills honey")}
)
ASYMMETRIC_PAIR = (
    "Ann keeps the bees behind the mill",
    "Ann keeps the bees behind the mill since 1987 and sells the bees",
)
# Differences between batches that are allowed: sums over n-grams run in the order of their ids.
LAST_BITS: Mapping[str, float] = MappingProxyType({"cider": 1e-13})
# Gives CIDEr a second document, whose n-grams no other text here has.
OTHER_TEXT = "zebras cross some yonder plain"

_WORDS = ("Ann", "keeps", "the", "The", "bees", "mill", "1987", "who", "What", "?", "北京", "👍")
plain_texts = st.lists(st.sampled_from(_WORDS[:9]), min_size=1, max_size=9).map(" ".join)
any_texts = st.one_of(
    st.lists(st.sampled_from(_WORDS), max_size=8).map(" ".join), st.text(max_size=6)
)
places = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 5)).map(lambda span: [span[0], sum(span)]),
    max_size=8,
)
any_rows = st.lists(
    st.fixed_dictionaries(
        {
            "candidate": any_texts,
            "references": st.lists(any_texts, max_size=3),
            "context": any_texts,
            "answer_type": st.sampled_from(["yes_no", "entity", "description", "other", None]),
            "candidate_opinion": st.sampled_from(["Yes", "no", "so", None]),
            "reference_opinions": st.lists(st.sampled_from(["yes", "No", None]), max_size=3),
            "entities": st.one_of(st.none(), st.lists(any_texts, max_size=2)),
            "predicted_spans": places,
            "gold_spans": places,
        }
    ),
    max_size=6,
)


def spans(text: str) -> list[list[int]]:
    """Return a place of its own for every word."""
    starts = [10 * (crc32(word.encode()) % 10_000) for word in text.split()]
    return [[start, start + 5] for start in starts]


def make_row(spec: AnyMetric, candidate: str, *others: str) -> Row:
    """Return a row of the metric that compares a text with others."""
    values = {
        "candidate": candidate,
        "references": list(others),
        "context": " ".join(others),
        "predicted_spans": spans(candidate),
        "gold_spans": [span for other in others for span in spans(other)],
    }
    return {role: values[role] for role in spec.roles}


@cache
def variants(name: str) -> dict[str, dict[str, Any]]:
    """Return instances of a metric: its defaults, then each other choice of each setting."""
    fields = METRICS[name].settings.model_fields
    found = [
        {key: choice}
        for key, field in fields.items()
        for choice in _choices(field.annotation)
        if choice != field.default
    ]
    return {f"m{i}": {"metric": name, **given_ones} for i, given_ones in enumerate([{}, *found])}


def _choices(annotation: object) -> tuple[object, ...]:
    if annotation is bool:
        return (True, False)
    return get_args(annotation) if get_origin(annotation) is Literal else ()


@cache
def scorer(name: str, *, has_variants: bool = False) -> Scorer:
    return Scorer(variants(name) if has_variants else [name])


def score(spec: AnyMetric, rows: Sequence[Row], **options: str) -> list[Any]:
    """Return the scores of rows; None where undefined."""
    own = Scorer({spec.name: options}) if options else scorer(spec.name)
    return list(as_table(own.score(list(rows)))[spec.name].to_pylist())


def equal_texts(spec: AnyMetric, text: str) -> float:
    """Return the score of a text against itself."""
    rows = [make_row(spec, text, text), make_row(spec, OTHER_TEXT, OTHER_TEXT)]
    return float(score(spec, rows)[0])


@each_metric
@settings(deadline=None, max_examples=12)
@given(rows=any_rows)
def test_scores_lie_in_range_or_are_undefined_with_a_reason(
    spec: AnyMetric, rows: list[Row]
) -> None:
    """Protects from unit errors and NaN, under every choice of every setting."""
    for row in rows:
        row["reference_opinions"] = row["reference_opinions"][: len(row["references"])]
    scores = as_table(scorer(spec.name, has_variants=True).score(rows))
    for instance, options in variants(spec.name).items():
        for output in (column.name for column in spec.columns if column.is_score):
            column = scores[f"{instance}_{output}" if output else instance].to_pylist()
            reasons = scores[f"{instance}_reason"].to_pylist()
            assert [value is None for value in column] == [why is not None for why in reasons]
            bounds = (spec.low, spec.high) if output == "" else (0.0, 1.0)
            in_range = (
                bounds[0] <= value <= bounds[1] + 1e-9 for value in column if value is not None
            )
            assert all(in_range), (options, output, column)


@each_metric
@settings(deadline=None, max_examples=40)
@given(text=plain_texts)
def test_equal_texts_have_the_best_score_but_for_the_exceptions(spec: AnyMetric, text: str) -> None:
    """Protects from a formula or normalization that is off."""
    n_words, _ = BELOW_BEST_FOR_EQUAL_TEXTS.get(spec.name, (0, ""))
    found = equal_texts(spec, text)
    if len(text.split()) >= n_words:
        assert found == pytest.approx(spec.high, abs=1e-12)
    elif spec.name == "meteor":
        assert found == pytest.approx(1 - 0.5 / len(text.split()) ** 3)
    else:
        assert spec.low <= found < spec.high  # Else the exception is none.


@pytest.mark.parametrize("spec", [s for s in WORD_METRICS if s.is_symmetric], ids=lambda s: s.name)
@settings(deadline=None, max_examples=60)
@given(left=any_texts, right=any_texts)
def test_symmetric_metrics_do_not_care_which_text_is_the_candidate(
    spec: AnyMetric, left: str, right: str
) -> None:
    """Protects from a metric listed as symmetric that is not."""
    there, back = score(spec, [make_row(spec, left, right), make_row(spec, right, left)])
    assert there == back


@pytest.mark.parametrize(
    "spec", [s for s in WORD_METRICS if not s.is_symmetric], ids=lambda s: s.name
)
def test_asymmetric_metrics_tell_candidate_from_reference(spec: AnyMetric) -> None:
    """Protects from arguments swapped: no other property would notice."""
    left, right = ASYMMETRIC_PAIRS.get(spec.name, ASYMMETRIC_PAIR)
    rows = [make_row(spec, left, right), make_row(spec, right, left)]
    there, back, _ = score(spec, [*rows, make_row(spec, OTHER_TEXT, OTHER_TEXT)])
    assert abs(there - back) > 0.005


@each_metric
@pytest.mark.parametrize("text", ["honey", "Ann keeps the bees behind the mill", "What is it?"])
def test_empty_texts_score_by_rule(spec: AnyMetric, text: str) -> None:
    """Protects from a silent 0 for two empty texts, and from points for an empty answer."""
    rows = [make_row(spec, *pair) for pair in (("", text), (text, ""), ("", ""), ("", "", ""))]
    rows.append(make_row(spec, OTHER_TEXT, OTHER_TEXT))
    expected = [spec.low, spec.low, spec.high, spec.high]
    assert score(spec, rows)[:4] == expected
    for options in variants(spec.name).values():
        own = {key: value for key, value in options.items() if key != "metric"}
        assert score(spec, rows, **own)[2:4] == expected[2:], options


@pytest.mark.parametrize(
    "spec", [s for s in WORD_METRICS if "references" in s.roles], ids=lambda s: s.name
)
def test_rows_without_references_are_undefined(spec: AnyMetric) -> None:
    """Protects from an empty list of references scored like an empty reference."""
    rows = [make_row(spec, "honey"), make_row(spec, ""), make_row(spec, "honey", "honey")]
    rows.append(make_row(spec, OTHER_TEXT, OTHER_TEXT))  # In a corpus of one text nothing weighs.
    scores = as_table(scorer(spec.name).score(rows))
    assert scores[spec.name].to_pylist()[:2] == [None, None]
    reasons = scores[f"{spec.name}_reason"].to_pylist()
    assert reasons == ["no_references", "no_references", None, None]


def mixed_rows(spec: AnyMetric) -> list[Row]:
    """Return rows with repeated texts, empty ones, and none to several others."""
    chance = np.random.default_rng(21)
    texts = [" ".join(chance.choice(_WORDS, size=n)) for n in (0, 1, 2, 4, 5, 6, 7, 9)]
    rows = []
    for i in range(24):
        chosen = chance.choice(texts, size=1 + int(chance.integers(0, 4))).tolist()
        optional = {
            "answer_type": (None, "yes_no", "entity", "yes_no")[i % 4],
            "candidate_opinion": "Yes",
            "reference_opinions": ["yes", "no", "depends"][: len(chosen) - 1],
            "entities": chosen[:1],
        }
        own = {role: optional[role] for role in spec.optional_roles}
        rows.append({**make_row(spec, *chosen), **own})
    return rows


def assert_same(spec: AnyMetric, found: list[Any], expected: list[Any]) -> None:
    """Assert equal scores, to the last bit but for metrics that say why not."""
    values = [
        [math.inf if value is None else value for value in side] for side in (found, expected)
    ]
    assert values[0] == pytest.approx(values[1], abs=LAST_BITS.get(spec.name, 0.0), rel=0.0)


@pytest.fixture(scope="module")
def given_frequencies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Settings that hold document frequencies still: those of the rows above."""
    folder = tmp_path_factory.mktemp("frequencies")
    rows = mixed_rows(METRICS["cider"])
    path = write_parquet(folder / "input.parquet", pa.Table.from_pylist(rows))
    request = {"input.paths": [str(path)], "output.path": str(folder / "out"), "metrics.cider": {}}
    run_locally(request)
    (file,) = Path(folder, "out", "corpus").glob("*.parquet")
    return {"document_frequencies": str(file)}


def _fixed(spec: AnyMetric, given_frequencies: dict[str, str]) -> dict[str, str]:
    takes = spec.settings.model_fields.keys() & given_frequencies.keys()
    return {key: given_frequencies[key] for key in takes}


@each_metric
def test_order_of_rows_does_not_matter(spec: AnyMetric) -> None:
    """Protects from a row that takes its neighbor's counts; corpus statistics stay the same."""
    rows = mixed_rows(spec)
    expected = score(spec, rows)
    for order in (np.arange(len(rows))[::-1], np.random.default_rng(3).permutation(len(rows))):
        turned = score(spec, [rows[i] for i in order])
        assert_same(spec, turned, [expected[i] for i in order])


@each_metric
def test_batch_mates_do_not_matter(spec: AnyMetric, given_frequencies: dict[str, str]) -> None:
    """Protects from hidden state: one row at a time is the oracle."""
    rows, options = mixed_rows(spec), _fixed(spec, given_frequencies)
    together = score(spec, rows)
    assert_same(spec, together, score(spec, rows, **options))
    assert_same(spec, together, [score(spec, [row], **options)[0] for row in rows])
    assert len({value for value in together if value is not None}) > 1


@each_metric
def test_metrics_beside_it_do_not_matter(spec: AnyMetric) -> None:
    """Protects from texts or counts that one metric leaves behind for the next."""
    rows = mixed_rows(spec)
    names = [other.name for other in WORD_METRICS if {*other.roles} <= {*rows[0]} | {"context"}]
    for row in rows:
        row.setdefault("context", f"{row.get('candidate', '')} by the mill since 1987")
    scores = as_table(
        Scorer([*names[::-1], *([] if spec.name in names else [spec.name])]).score(rows)
    )
    assert_same(spec, scores[spec.name].to_pylist(), score(spec, rows))
