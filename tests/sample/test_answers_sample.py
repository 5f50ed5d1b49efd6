"""The samples of predicted answers are what their README says."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import Any

import numpy as np

from qaeval_core import Scorer
from qaeval_core.sample import hard_table, sample_table
from qaeval_core.stats.ranking import auc

RIGHT = ("right", "reworded")
WRONG = ("wrong", "yes_no_flipped", "number_changed")

_UNITS = "one two three four five six seven eight nine ten eleven twelve"
_TEENS = "thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety hundred thousand"
_NUMBER_WORDS = frozenset(f"{_UNITS} {_TEENS} {_TENS}".split())


def rows(*kinds: str) -> list[dict[str, Any]]:
    found = hard_table().to_pylist()
    return [row for row in found if not kinds or row["kind"] in kinds]


def numbers(text: str) -> list[str]:
    """Return the number words and figures of a text, in order."""
    return [word for word in words(text) if word.isdigit() or word in _NUMBER_WORDS]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def opinion(text: str) -> str | None:
    first = words(text)[0]
    return first if first in ("yes", "no") else None


@cache
def f1_by_id() -> dict[str, float]:
    scores = Scorer(["f1"], columns={"candidate": "prediction"}).score(hard_table())
    return dict(zip(scores["id"].to_pylist(), scores["f1"].to_pylist(), strict=True))


def test_rows_have_ids_kinds_and_no_empty_text() -> None:
    """Protects from a row that no label fits, and from one counted twice."""
    found = rows()
    assert 150 <= len(found) <= 170
    assert len({row["id"] for row in found}) == len(found)
    assert {row["kind"] for row in found} == {*RIGHT, *WRONG}
    for row in found:
        assert row["is_right"] == int(row["kind"] in RIGHT), row
        texts = [row["question"], row["prediction"], *row["references"]]
        assert all(text.strip() == text and text for text in texts), row
        assert 1 <= len(row["references"]) <= 3
        assert row["question"].endswith("?")
        assert len(set(texts)) >= len(texts) - 1, row  # The prediction may be a reference.


def test_each_question_has_a_right_and_a_wrong_prediction_about_a_passage() -> None:
    """Protects from a label that the question alone gives away."""
    passages = {identity.split("-")[0] for identity in sample_table()["id"].to_pylist()}
    found = rows()
    assert {row["id"].split("-")[0] for row in found} == passages
    labels: dict[str, list[int]] = {}
    for row in found:
        labels.setdefault(row["question"], []).append(row["is_right"])
    assert all(sorted(given) == [0, 1] for given in labels.values())
    assert sum(row["is_right"] for row in found) * 2 == len(found)


def test_yes_is_flipped_to_no_and_the_reverse() -> None:
    """Protects from a flipped answer that is right after all."""
    for row in rows("yes_no_flipped"):
        gold = {opinion(reference) for reference in row["references"]}
        assert len(gold) == 1 and gold <= {"yes", "no"}, row
        assert {opinion(row["prediction"])} == {"yes", "no"} - gold, row
    for row in rows("right"):
        gold = opinion(row["references"][0])
        assert gold is None or opinion(row["prediction"]) == gold, row


def test_a_changed_number_is_all_that_changed() -> None:
    """Protects from a wrong number that other words give away, and from one that is right."""
    for row in rows("number_changed"):
        right = next(r for r in rows(*RIGHT) if r["question"] == row["question"])
        known = {word for text in [*row["references"], right["prediction"]] for word in words(text)}
        known |= set(words(row["question"]))
        others = [word for word in words(row["prediction"]) if word not in numbers(word)]
        assert set(others) <= known, row
        gold = [Counter(numbers(reference)) for reference in row["references"]]
        given = Counter(numbers(row["prediction"]))
        assert given and given not in gold, row


def test_right_answers_share_words_and_reworded_ones_do_not() -> None:
    """Protects from kinds that are hard for no metric: F1 alone must not tell right from wrong."""
    scores = f1_by_id()
    by_kind = {
        kind: [scores[row["id"]] for row in rows(kind)]
        for kind in ("right", "reworded", "wrong", "number_changed", "yes_no_flipped")
    }
    assert min(by_kind["right"]) > 0.3
    assert max(by_kind["reworded"]) < 0.4
    assert min(by_kind["wrong"]) > 0.0 < min(by_kind["number_changed"])
    mean = {kind: sum(values) / len(values) for kind, values in by_kind.items()}
    assert mean["right"] > mean["number_changed"] > mean["wrong"] > mean["reworded"]
    right = [scores[row["id"]] for row in rows(*RIGHT)]
    wrong = [scores[row["id"]] for row in rows(*WRONG)]
    assert auc(positive=np.array(right), negative=np.array(wrong)) < 0.5


def test_predictions_differ_in_length() -> None:
    """Protects from a sample of single words, or of sentences alone."""
    lengths = Counter(
        "word" if n == 1 else "phrase" if n <= 5 else "sentence"
        for n in (len(words(row["prediction"])) for row in rows())
    )
    assert lengths["word"] >= 3
    assert lengths["phrase"] >= 40
    assert lengths["sentence"] >= 40
