"""A row explained: tokens join to its texts, and their numbers to what is stored of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from helpers import build_matches, read_scores, run_locally, short_sample, write_parquet
from qaeval_core.configure import load_config
from qaeval_core.explain.parts import Explanation, Part
from qaeval_core.explain.row import explain_row, explain_rows
from qaeval_core.models.session import Session
from qaeval_core.sample import sample_table

# Short, so that the test is quick; what is not plain English shows letters of several tokens.
ROWS = [
    {"id": "a", "question": "Who built it?", "context": "Josiah Penrow built the mill."},
    {
        "id": "b",
        "question": "What is θάλασσα on the quay?",
        "context": "On the quay θάλασσα is the calm water;\nmore is the open sea – since 1979.",
    },
]


def score(folder: Path, rows: list[dict[str, Any]], **settings: object) -> Path:
    """Score rows with the embedded models; return OUT."""
    source = write_parquet(folder / "input.parquet", pa.Table.from_pylist(rows))
    overrides = {
        "input.paths": [str(source)],
        "output.path": str(folder / "out"),
        "metrics.f1.metric": "f1",
        **settings,
    }
    run_locally(overrides)
    build_matches(load_config(overrides=overrides))
    return folder / "out"


def content(part: Part) -> SimpleNamespace:
    """Return what JSON has of a part."""
    return SimpleNamespace(kind=part.kind, **part.data)


def parts_of(explanation: Explanation, family: str) -> list[SimpleNamespace]:
    own = next(found for found in explanation.families if found.family == family)
    return [content(part) for target in own.targets for part in target.parts]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, artifacts_root: Path) -> Path:
    """OUT of two rows with ids, QRelScore and F1."""
    rows = [{**row, "references": [row["question"]]} for row in ROWS]
    folder = tmp_path_factory.mktemp("explain")
    return score(folder, rows, **{"metrics.qrelscore.metric": "qrelscore"})


@pytest.fixture(scope="module")
def explained(out: Path) -> Explanation:
    """The second row, explained."""
    return explain_row(out, identity="b")


def test_gains_sum_to_the_stored_statistic_over_the_whole_context(explained: Explanation) -> None:
    """Protects from gains of other tokens than those that were scored."""
    (gains,) = parts_of(explained, "grg")
    assert gains.kind == "likelihood_gains"
    assert "".join(gains.pieces) == explained.texts["context"]
    assert sum(gains.base_nats) == pytest.approx(gains.base_sum_nats, rel=1e-6)
    assert sum(gains.prompted_nats) == pytest.approx(gains.prompted_sum_nats, rel=1e-6)
    scored = next(i for i in explained.instances if i.name == "qrelscore")
    raw = next(line.stored for line in scored.scores if line.column == "qrelscore_grg_raw")
    assert max(sum(gains.gain_nats) / abs(gains.base_sum_nats), 0) == pytest.approx(raw, abs=1e-5)


def test_matches_average_to_the_stored_precisions(explained: Explanation) -> None:
    """Protects from matches of another layer, or of another model, than was scored."""
    (matches,) = parts_of(explained, "lrm")
    assert matches.kind == "layer_matches"
    assert "".join(matches.candidate) == explained.texts["candidate"]
    assert "".join(matches.context) == explained.texts["context"]
    worth = np.array(matches.worth)
    np.testing.assert_allclose(worth.mean(axis=1), matches.layer_precision, atol=1e-5)
    assert worth.shape == np.array(matches.matched).shape == (6, len(matches.candidate))
    assert {i for layer in matches.matched for i in layer} <= set(range(len(matches.context)))
    scored = next(i for i in explained.instances if i.name == "qrelscore")
    raw = next(line.stored for line in scored.scores if line.column == "qrelscore_lrm_raw")
    assert worth.mean() == pytest.approx(raw, abs=1e-5)


def test_recomputed_values_equal_the_stored_ones(explained: Explanation, out: Path) -> None:
    """Protects from an explanation of a number that is not the score."""
    assert explained.is_equal
    assert explained.max_difference < 1e-5
    stored = read_scores(out).to_dicts()[1]
    lines = [line for instance in explained.instances for line in instance.scores]
    assert len(lines) == 10
    for line in lines:
        assert line.is_compared
        assert line.stored == stored[line.column]
        assert line.now == pytest.approx(line.stored, abs=1e-5)


def test_models_are_opened_once_for_all_rows(
    explained: Explanation, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row opened each model again: a third of the time of five rows."""
    opened: list[Path] = []
    open_session = Session.__init__

    def noted(self: Session, artifact: Any, **given: Any) -> None:
        opened.append(artifact.folder)
        open_session(self, artifact, **given)

    monkeypatch.setattr(Session, "__init__", noted)
    rows = [("b", None), (None, "input.parquet:0"), ("b", None)]
    found = explain_rows(out, rows)
    assert len(opened) == len(set(opened)) == 3, "those of LRM and GRG, and LRM's matches"
    assert [own.id for own in found] == ["b", "a", "b"]
    assert found[0] == found[2] == explained
    assert all(own.is_equal for own in found)


@pytest.mark.long
def test_windows_tile_a_long_context(tmp_path: Path, artifacts_root: Path) -> None:
    """Protects from matches beside their tokens from the second window on."""
    row = next(row for row in sample_table().to_pylist() if len(row["context"]) > 7_000)
    out = score(tmp_path, [row], **{"metrics.qrelscore.metric": "qrelscore"})
    explanation = explain_row(out, identity=row["id"])
    for family, pieces in (("lrm", "context"), ("grg", "pieces")):
        parts = parts_of(explanation, family)
        assert len(parts) > 1
        assert [part.window for part in parts] == list(range(1, len(parts) + 1))
        whole = "".join(piece for part in parts for piece in getattr(part, pieces))
        assert whole == row["context"]


@pytest.mark.slow
def test_references_are_explained_one_by_one(tmp_path: Path, artifacts_root: Path) -> None:
    """Protects from the tokens of one reference beside the numbers of another."""
    row = next(row for row in short_sample(60).to_pylist() if len(row["references"]) == 2)
    first, second = row["references"]
    row["references"] = [first, second, first, ""]
    out = score(tmp_path, [row], **{"metrics.ref_qrelscore.metric": "ref_qrelscore"})
    explanation = explain_row(out, identity=row["id"])
    for family, pieces in (("lrm_references", "context"), ("grg_references", "pieces")):
        own = next(found for found in explanation.families if found.family == family)
        assert [target.reason for target in own.targets] == [None, None, None, "empty_target"]
        texts = ["".join(getattr(part, pieces)) for part in parts_of(explanation, family)]
        assert texts == [first, second, first]
    for part in parts_of(explanation, "grg_references"):
        assert sum(part.prompted_nats) == pytest.approx(part.prompted_sum_nats, rel=1e-6)


@pytest.mark.long
def test_other_profiles_and_readings_are_explained(tmp_path: Path, artifacts_root: Path) -> None:
    """Protects from an explanation of the default reading of a score of another one."""
    rows = short_sample(1).to_pylist()
    settings = {
        "metrics.authors": {"metric": "qrelscore", "profile": "authors"},
        "metrics.weighted": {"metric": "qrelscore", "matching": "weighted", "layers": "last"},
    }
    explanation = explain_row(score(tmp_path, rows, **settings), identity=rows[0]["id"])
    lrm = {found.instances: found for found in explanation.families if found.family == "lrm"}
    (authors,) = map(content, lrm["authors",].targets[0].parts)
    (weighted,) = map(content, lrm["weighted",].targets[0].parts)
    assert (authors.is_cosine, weighted.is_cosine) == (True, False)
    assert weighted.used_layers == [4, 5]  # The last third of six.
    # The authors' program leaves out the last token of both sides.
    assert len(authors.candidate) == len(weighted.candidate) - 1
    assert len(authors.context) == len(weighted.context) - 1
    grg = next(f for f in explanation.families if f.instances == ("authors",) and f.family == "grg")
    alone, joined = map(content, grg.targets[0].parts)
    assert "".join(alone.pieces[:-1]) == rows[0]["context"]
    assert "".join(joined.pieces[:-1]) == f"{rows[0]['question']} {rows[0]['context']}"
    for part in (alone, joined):
        assert np.mean(part.probability) == pytest.approx(part.mean, rel=1e-6)
