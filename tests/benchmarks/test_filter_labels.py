"""The benchmark of filter's labels on made-up scores, and the pages that repeat its record."""

from __future__ import annotations

import doctest

import numpy as np
import polars as pl
import pytest

from benchmarks import filter_labels
from benchmarks.filter_labels import (
    COLUMNS,
    ELSEWHERE,
    LEARNED,
    PEERS,
    Corpus,
    areas,
    certified,
    ranks,
)
from benchmarks.label_draws import learned_elsewhere
from benchmarks.validity import score_columns


def corpus(n_rows: int = 1200, *, n_peers: int = 0) -> Corpus:
    """Return rows of which `roundtrip` tells good from bad, and nothing else does but `meteor`."""
    draw = np.random.default_rng(0)
    is_good = np.arange(n_rows) % 2 == 0
    metrics = score_columns(["roundtrip", "qrelscore", "bertscore_free", "q_bleu_free", "meteor"])
    columns = {name: draw.random(n_rows) for name in metrics}
    columns["roundtrip"] += is_good
    columns["meteor"] += 2 * is_good
    table = pl.DataFrame(
        {**columns, "is_good": is_good, "cluster": [f"p{i // 3}" for i in range(n_rows)]}
    )
    peers = {f"peer {i}": draw.random(n_rows) + is_good for i in range(n_peers)}
    return Corpus(table, metrics, peers)


def test_examples_are_true() -> None:
    found = doctest.testmod(filter_labels)
    assert found.attempted > 0 and found.failed == 0


def test_every_column_has_an_area_and_only_those_without_reference_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A column left out of the table could be the best; one with a reference ranks no corpus."""
    monkeypatch.setattr(filter_labels, "learned_elsewhere", lambda *_, **__: np.zeros(240))
    made = corpus(240, n_peers=2)
    found = areas(made)
    assert list(found["columns"]) == list(made.metrics)
    assert found["columns"]["roundtrip"]["auc"] == found["columns"]["meteor"]["auc"] == 1.0
    needing = [name for name, own in found["columns"].items() if own["needs_reference"]]
    assert needing == ["meteor"]
    assert 0.4 < found["columns"]["q_bleu_free"]["auc"] < 0.6
    assert found["learned"]["of"] == list(COLUMNS) and found["learned"]["auc"] > 0.99
    assert set(found["learned_from_all_free"]["of"]) == set(made.metrics) - {"meteor"}
    assert set(found["peers"]["columns"]) == {"peer 0", "peer 1"}
    found["columns"]["meteor"]["auc"] = 2.0
    assert list(ranks(made, found)) == ["`roundtrip`", LEARNED, ELSEWHERE, PEERS]
    found["columns"]["qrelscore"]["auc"] = 1.5
    assert list(ranks(corpus(240), found)) == ["`roundtrip`", "`qrelscore`", LEARNED, ELSEWHERE]


def test_draws_certify_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the rows are good: a rank that knows them keeps about half; a useless one nothing."""
    monkeypatch.setattr(filter_labels, "_N_DRAWS", 20)
    made = corpus()
    targets = (0.4, 0.9)
    known = certified(made, made.scores["roundtrip"], n_labels=400, targets=targets)
    low, high = known
    assert (low["target"], high["target"], low["n_labels"]) == (0.4, 0.9, 400)
    assert low["kept"] == 1.0 and low["nothing"] == low["missed"] == 0.0
    assert 0.45 <= high["kept"] <= 0.55 and high["nothing"] == high["missed"] == 0.0
    blind = certified(made, made.scores["q_bleu_free"], n_labels=400, targets=(0.55,))[0]
    assert blind["kept"] == blind["missed"] == 0.0 and blind["nothing"] == 1.0
    assert blind["naive_kept"] > 0.05 and blind["naive_missed"] > 0.1
    monkeypatch.setattr(filter_labels, "_N_DRAWS", 3)
    learned = certified(made, None, n_labels=400, targets=targets)[1]
    assert 0 < learned["kept"] <= high["kept"] and learned["missed"] == 0.0


def test_a_rank_learned_elsewhere_saw_no_verdict_of_its_passage() -> None:
    """A rank that has seen what judges it would be certified for its memory."""
    draw = np.random.default_rng(0)
    passages = np.arange(240) // 6
    is_good = draw.random(240) < 0.5
    scores = {"a": draw.random(240) + is_good, "b": draw.random(240)}
    before = learned_elsewhere(scores, is_good=is_good, passages=passages)
    other = np.where(passages == 3, ~is_good, is_good)
    after = learned_elsewhere(scores, is_good=other, passages=passages)
    assert np.array_equal(after[passages == 3], before[passages == 3])
    assert not np.array_equal(after[passages != 3], before[passages != 3])
