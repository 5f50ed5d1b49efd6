"""The benchmark of filter's labels on made-up scores, and the pages that repeat its record."""

from __future__ import annotations

import doctest
import json
import re
from typing import Any

import numpy as np
import polars as pl
import pytest

from benchmarks import filter_labels
from benchmarks.filter_labels import (
    COLUMNS,
    ELSEWHERE,
    LEARNED,
    N_LABELS,
    PEERS,
    SECOND,
    TARGETS,
    Corpus,
    areas,
    certificate_row,
    certified,
    fraction,
    ranks,
)
from benchmarks.judged_sets import SETS, metrics_of
from benchmarks.label_draws import learned_elsewhere
from benchmarks.validity import score_columns
from helpers import REPOSITORY


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
    assert low["kept"] > 0.99 and low["nothing"] == low["missed"] == 0.0
    assert 0.45 <= high["kept"] <= 0.55 and high["nothing"] == high["missed"] == 0.0
    blind = certified(made, made.scores["q_bleu_free"], n_labels=400, targets=(0.55,))[0]
    assert blind["kept"] == blind["missed"] == 0.0 and blind["nothing"] == 1.0
    assert blind["naive_kept"] > 0.05 and blind["naive_missed"] >= 0.1
    second = certified(
        made, made.scores["roundtrip"], n_labels=60, targets=(0.9,), has_second=True
    )[0]
    once = certified(made, made.scores["roundtrip"], n_labels=60, targets=(0.9,))[0]
    assert second["kept"] > once["kept"] and second["missed"] == 0.0
    monkeypatch.setattr(filter_labels, "_N_DRAWS", 3)
    learned = certified(made, None, n_labels=400, targets=targets)[1]
    assert 0 < learned["kept"] < 0.6 and learned["missed"] == 0.0


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


_CERTIFICATE_ROW = re.compile(r"^\| .* \| \.\d\d \| \d+ \| .*", re.MULTILINE)


def record() -> dict[str, Any]:
    """Return what was measured."""
    path = REPOSITORY / "docs/evidence/filter_labels.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def page(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


@pytest.mark.shared_data
@pytest.mark.usefixtures("shared_data")
def test_the_record_is_of_all_that_the_benchmark_measures() -> None:
    """A record of an older benchmark, or of some of its ranks, would pass for all."""
    for name, own in record().items():
        measured = {(one["rank"], one["target"], one["n_labels"]) for one in own["certified"]}
        names = {rank for rank, _, _ in measured}
        assert {"`roundtrip`", SECOND, LEARNED, ELSEWHERE} <= names
        assert (PEERS in names) == (name == "qgeval")
        assert measured == {(a, b, c) for a in names for b in TARGETS[name] for c in N_LABELS}
        assert len(own["certified"]) == len(measured)
        assert list(own["auc"]["columns"]) == list(score_columns(metrics_of(SETS[name]())))
        assert own["n_draws"] == filter_labels._N_DRAWS


def test_pages_say_what_was_certified() -> None:
    """Each line of docs/filter.md is one of the record, and none is left out."""
    found = record()
    told = _CERTIFICATE_ROW.findall(page("docs/filter.md"))
    assert told == [certificate_row(one) for own in found.values() for one in own["certified"]]
    text = " ".join(page("docs/filter.md").split())
    own = found["qgeval"]
    assert f"{own['n_rows']:,} questions of 15 systems" in text
    assert f"{100 * own['share_good']:.1f} % good" in text
    missed = {
        name: [100 * one["naive_missed"] for one in own["certified"] if one["rank"] != SECOND]
        for name, own in found.items()
    }
    low, high = min(missed["qgeval"]), max(missed["qgeval"])
    assert f"in {low:.0f} to {high:.0f} % of draws on QGEval" in text
    assert f"in up to {max(missed['quiz_design']):.0f} % on quiz_design" in text
    own = found["quiz_design"]
    assert "Of quiz_design nothing is certified at .80 in any draw" in page("docs/filter.md")
    assert {one["nothing"] for one in own["certified"] if one["target"] == 0.8} == {1.0}
    told = f"{own['n_rows']:,} questions about {own['n_passages']} passages"
    assert f"{told}, {100 * own['share_good']:.1f} %" in " ".join(page("docs/filter.md").split())


def test_pages_say_how_well_columns_rank() -> None:
    """Every column of the record is in docs/filter.md with its areas, and no other figure is."""
    found = {name: own["auc"] for name, own in record().items()}
    text = " ".join(page("docs/filter.md").split())
    quiz = found["quiz_design"]["columns"]
    for name, own in found["qgeval"]["columns"].items():
        if own["needs_reference"]:
            assert f"`{name}` {fraction(own['auc'])}" in text
        else:
            assert f"| `{name}` | {fraction(own['auc'])} | {fraction(quiz[name]['auc'])} |" in text
    for title, key in {
        "learned from the six": "learned",
        "learned from all twelve": "learned_from_all_free",
    }.items():
        areas_of = " | ".join(fraction(found[name][key]["auc"]) for name in found)
        assert f"| {title} | {areas_of} |" in text
    assert "are worth less together on QGEval than the six" in text
    qgeval = found["qgeval"]
    assert qgeval["learned_from_all_free"]["auc"] < qgeval["learned"]["auc"]
    peers = qgeval["peers"]
    assert len(qgeval["learned_from_all_free"]["of"]) == 12
    assert f"learned from the peers' six {fraction(peers['learned'])}" in text
    assert f"from {fraction(min(peers['columns'].values()))}" in text
    assert f"to {fraction(max(peers['columns'].values()))}" in text
