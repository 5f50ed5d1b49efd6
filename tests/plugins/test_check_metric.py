"""`check_metric`: our metrics pass, and planted ones fail by the name of what they break."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from qaeval_core.metrics.base import Metric, Scores
from qaeval_core.metrics.catalog import METRICS
from qaeval_core.metrics.f1 import F1
from qaeval_core.metrics.targets import Targets
from qaeval_core.metrics.words import WordMetric, WordSettings, scored
from qaeval_core.testing import MetricCheckError, check_metric, example_rows

_COUNTER = itertools.count()


class Planted(WordMetric[WordSettings]):
    """Common words over the candidate's; each subclass breaks one thing."""

    name, title = "planted", "a planted metric"
    source = "a test"
    settings = WordSettings
    statistic = "overlap"

    def score_words(self, settings: WordSettings, words: Targets) -> Scores:
        each = words["n_common"] / np.maximum(words.per_target("n_candidate"), 1)
        return scored(words, {"": words.best(each)})

    def changed(self, settings: WordSettings, words: Targets) -> tuple[Any, list[str | None]]:
        found = Planted.score_words(self, settings, words)
        return np.array(found.columns[""]), list(found.reasons)


class LooksAtOthers(Planted):
    """Scores above the mean of the rows beside it."""

    def score_words(self, settings: WordSettings, words: Targets) -> Scores:
        values, reasons = self.changed(settings, words)
        return Scores({"": values - np.nan_to_num(values).mean()}, reasons)


class WrongShape(Planted):
    def score_words(self, settings: WordSettings, words: Targets) -> Scores:
        values, reasons = self.changed(settings, words)
        return Scores({"": values[:-1]}, reasons)


class WrongType(Planted):
    def score_words(self, settings: WordSettings, words: Targets) -> Scores:
        values, reasons = self.changed(settings, words)
        return Scores({"": [str(value) for value in values]}, reasons)


class NanAsScore(Planted):
    def score_words(self, settings: WordSettings, words: Targets) -> Scores:
        values, reasons = self.changed(settings, words)
        return Scores({"": np.where(values == 1.0, np.nan, values)}, reasons)


class NotPicklable(Planted):
    def __init__(self) -> None:
        self.sign = lambda value: -value


class UnstableSignature(Planted):
    def signed(self, settings: WordSettings) -> dict[str, object]:
        return {**super().signed(settings), "asked": next(_COUNTER)}


class UndefinedInSilence(Planted):
    def score_words(self, settings: WordSettings, words: Targets) -> Scores:
        values, _ = self.changed(settings, words)
        return Scores({"": values}, [None] * len(values))


class ChangesOrder(Planted):
    def score_words(self, settings: WordSettings, words: Targets) -> Scores:
        values, reasons = self.changed(settings, words)
        order = np.argsort(np.nan_to_num(values, nan=-1.0), kind="stable")
        return Scores({"": values[order]}, [reasons[i] for i in order.tolist()])


class Forgotten(Planted):
    def score_words(self, settings: WordSettings, words: Targets) -> Scores:
        _, reasons = self.changed(settings, words)
        return Scores({}, reasons)


PLANTED: Mapping[type[Metric[Any]], str] = {
    LooksAtOthers: "batch_independence",
    WrongShape: "shape",
    WrongType: "type",
    NanAsScore: "nan_score",
    NotPicklable: "pickling",
    UnstableSignature: "signature",
    UndefinedInSilence: "undefined_reason",
    ChangesOrder: "row_order",
    Forgotten: "shape",
}


@pytest.mark.parametrize("kind", PLANTED, ids=lambda kind: kind.__name__)
def test_what_breaks_the_contract_fails_by_name(kind: type[Metric[Any]]) -> None:
    with pytest.raises(MetricCheckError) as raised:
        check_metric(kind())
    assert raised.value.check == PLANTED[kind]
    assert str(raised.value).startswith(f"{PLANTED[kind]}: ")


def test_what_keeps_it_passes() -> None:
    check_metric(Planted())


def coverage(candidate: str, references: list[str]) -> float | None:
    """Share of the first reference's words that the candidate has."""
    words = references[0].split() if references else []
    return sum(word in candidate.split() for word in words) / len(words) if words else None


_seen: list[float] = []


def remembers(candidate: str) -> float:
    """Counts the calls: a function that depends on what came before."""
    _seen.append(1.0)
    return float(len(_seen))


def test_functions_are_checked_alike() -> None:
    check_metric(coverage)
    with pytest.raises(MetricCheckError):
        check_metric(remembers)


@pytest.mark.parametrize(
    "name", [name for name, own in METRICS.items() if own.needs == ("words",) and name != "cider"]
)
def test_our_own_lexical_metrics_pass(name: str) -> None:
    check_metric(METRICS[name])


def test_settings_and_rows_may_be_given() -> None:
    check_metric(F1(), settings={"tokenizer": "whitespace"}, rows=example_rows()[:4])
    rows: Sequence[Mapping[str, object]] = [
        {"candidate": "a b", "references": ["a"]},
        {"candidate": "b", "references": ["a", "b"]},
        {"candidate": "...", "references": ["a"]},
    ]
    with pytest.raises(MetricCheckError, match="row_order|batch"):
        check_metric(LooksAtOthers(), rows=rows)
