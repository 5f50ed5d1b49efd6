"""Answers explained: best partners of BERTScore, weights of KPQA, statistics of the others."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from answer_models import AnswerModels
from helpers import read_scores, run_locally, write_parquet
from qaeval_core.explain.parts import Explanation, FamilyExplanation, TargetParts
from qaeval_core.explain.row import explain_row
from qaeval_core.pages.html import Table

ROW = {
    "id": "a",
    "question": "How much honey stays in each hive?",
    "candidate": "Eighteen kilograms, she says.",
    "references": ["18 kg", "", "eighteen kilograms", "18 kg"],
    "context": "Marta always leaves eighteen kilograms in each hive for the winter.",
}


def score(folder: Path, rows: list[dict[str, Any]], **settings: object) -> Path:
    source = write_parquet(folder / "input.parquet", pa.Table.from_pylist(rows))
    run_locally({"input.paths": [str(source)], "output.path": str(folder / "out"), **settings})
    return folder / "out"


def family_of(explanation: Explanation, instance: str, family: str) -> FamilyExplanation:
    return next(
        found
        for found in explanation.families
        if found.family == family and instance in found.instances
    )


def parts_of(target: TargetParts) -> list[SimpleNamespace]:
    """Return what JSON has of a target's parts."""
    return [SimpleNamespace(kind=part.kind, **part.data) for part in target.parts]


def _reference_means(part: SimpleNamespace) -> tuple[float, float]:
    """Precision and recall as sums over the tokens that the part shows."""
    means = []
    for cosines, weights in (
        (part.candidate_cosine, part.candidate_weight),
        (part.reference_cosine, part.reference_weight),
    ):
        total = sum(w * c for w, c in zip(weights, cosines, strict=True))
        means.append(total / sum(weights))
    return means[0], means[1]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, artifacts_root: Path) -> Path:
    """OUT of BERTScore with and without idf and special tokens, on two rows."""
    other = {**ROW, "id": "b", "references": ["eighteen stones"]}
    settings = {
        "metrics.bertscore.metric": "bertscore",
        "metrics.idf": {"metric": "bertscore", "idf": True, "special_tokens": "exclude"},
        "metrics.bertscore_free.metric": "bertscore_free",
    }
    return score(tmp_path_factory.mktemp("answers"), [ROW, other], **settings)


@pytest.fixture(scope="module")
def explained(out: Path) -> Explanation:
    return explain_row(out, identity="a")


@pytest.mark.parametrize("instance", ["bertscore", "idf"])
def test_best_partners_average_to_the_score(
    explained: Explanation, out: Path, instance: str
) -> None:
    """Protects from partners of another reference, layer or weight than was scored."""
    found = family_of(explained, instance, "token_match")
    assert [target.reason for target in found.targets] == [None, "empty_target", None, None]
    f1 = []
    for target in found.targets:
        for part in parts_of(target):
            assert part.kind == "token_matches"
            assert "".join(part.candidate) == ROW["candidate"]
            assert "".join(part.reference) == ROW["references"][target.target]
            precision, recall = _reference_means(part)
            assert (precision, recall) == pytest.approx((part.precision, part.recall), abs=1e-6)
            f1.append(2 * precision * recall / (precision + recall))
    stored = read_scores(out).to_dicts()[0]
    assert max(f1) == pytest.approx(stored[f"{instance}_f1"], abs=1e-5)


def test_special_tokens_are_partners_only_where_they_may_be(explained: Explanation) -> None:
    """Protects from [SEP] shown as a word, and from idf that weighs nothing."""
    excluded = parts_of(family_of(explained, "idf", "token_match").targets[0])[0]
    assert None not in (*excluded.candidate_matched, *excluded.reference_matched)
    assert len(set(excluded.candidate_weight)) > 1
    allowed = parts_of(family_of(explained, "bertscore", "token_match").targets[0])[0]
    assert set(allowed.candidate_weight) == {1.0}
    same = parts_of(family_of(explained, "bertscore", "token_match").targets[2])[0]
    assert [same.reference[i].strip() for i in same.candidate_matched[:2]] == [
        "eighteen",
        "kilograms",
    ]


def test_a_context_is_explained_although_its_tokens_are_not_stored(explained: Explanation) -> None:
    """Protects from means of a context that nobody can look into."""
    (target,) = family_of(explained, "bertscore_free", "token_match_context").targets
    (part,) = parts_of(target)
    assert "".join(part.reference) == ROW["context"]
    scored = next(i for i in explained.instances if i.name == "bertscore_free")
    stored = {line.column: line.stored for line in scored.scores}
    assert part.precision == pytest.approx(stored["bertscore_free_precision"], abs=1e-5)
    assert part.recall == pytest.approx(stored["bertscore_free_recall"], abs=1e-5)


def test_all_of_it_equals_what_is_stored(explained: Explanation) -> None:
    """Protects from frequencies of another corpus, and from a family that is left out."""
    assert explained.is_equal
    assert explained.max_difference < 1e-5
    # The count of the corpus runs no model: there are no tokens to show.
    assert {found.family for found in explained.families} == {"token_match", "token_match_context"}


def framed(map_: Table) -> list[tuple[int, str]]:
    """Return the column and the number of the framed cell of each row of a heat map."""
    found = []
    for row in map_.rows:
        ((i, cell),) = [(i, own) for i, own in enumerate(row[1:]) if " best" in own]
        found.append((i, re.findall(">(.*)<", cell)[0]))
    return found


def test_a_heat_map_frames_the_best_partner_of_each_token(explained: Explanation) -> None:
    """Protects from a picture of another pair than was scored."""
    for target in family_of(explained, "idf", "token_match").targets:
        for part, data in zip(target.parts, parts_of(target), strict=True):
            (shown,) = part.blocks
            assert len(shown.head) == 1 + len(data.reference)
            assert [row[0] for row in shown.rows] == [own.strip() for own in data.candidate]
            for (i, number), best, cosine in zip(
                framed(shown), data.candidate_matched, data.candidate_cosine, strict=True
            ):
                assert i == best and float(number) == pytest.approx(cosine, abs=0.00501)


@pytest.mark.slow
def test_moverscore_shows_what_moving_costs(tmp_path: Path, artifacts_root: Path) -> None:
    out = score(tmp_path, [ROW], **{"metrics.moverscore.metric": "moverscore"})
    explanation = explain_row(out, identity="a")
    (family,) = explanation.families
    assert [target.reason for target in family.targets] == [None, "empty_target", None, None]
    parts = [part for target in family.targets for part in target.parts]
    stored = read_scores(out).to_dicts()[0]["moverscore"]
    assert max(1 - part.data["transport_cost"] for part in parts) == pytest.approx(stored, abs=1e-5)
    for part in parts:
        shown = part.blocks[-1]
        assert len(framed(shown)) == len(part.data["candidate"])
        assert shown.head[1:] == [own.strip() for own in part.data["reference"]]


@pytest.mark.slow
def test_kpqa_weights_stand_beside_their_tokens(tmp_path: Path) -> None:
    """Protects from weights that slide along the text by a token."""
    from workshop import save_small

    classifier = save_small("bert_tokens", tmp_path / "tokens")
    encoder = save_small("bert", tmp_path / "bert")
    shutil.copy(classifier / "tokenizer.json", encoder)
    settings = {
        "metrics.kpqa.metric": "kpqa",
        "metrics.kpqa.keyphrase_classifier": str(classifier),
        "metrics.kpqa.encoder": str(encoder),
        "metrics.bi_encoder": {"metric": "bi_encoder", "encoder": str(encoder)},
        "models.artifacts_path": str(tmp_path / "artifacts"),
    }
    rows = [ROW, {**ROW, "id": "none", "references": []}]
    out = score(tmp_path / "run", rows, **settings)
    artifacts = tmp_path / "artifacts"
    explanation = explain_row(out, identity="a", artifacts=artifacts)
    found = family_of(explanation, "kpqa", "kpqa_weights")
    # An empty answer is a wrong one, not an undefined one: it has no token to weigh.
    sides = [[part.text for part in parts_of(target)] for target in found.targets]
    assert sides[0] == ["candidate", "reference"]
    assert all(own == ["reference"] for own in sides[2:])
    for target in found.targets:
        for part in parts_of(target):
            text = ROW["candidate"]
            if part.text == "reference":
                text = ROW["references"][target.target]
            assert "".join(part.pieces) == text
            assert len(part.weight) == len(part.pieces)
            assert np.all((np.array(part.weight) > 0) & (np.array(part.weight) < 1))
    of_texts = family_of(explanation, "bi_encoder", "bi_encoder")
    assert not any(target.parts for target in of_texts.targets)
    assert -1 <= of_texts.targets[0].statistics["cosine"] <= 1
    alone = explain_row(out, identity="none", artifacts=artifacts)
    assert alone.is_equal and all(found.targets == () for found in alone.families)


PASSAGE = "Anna painted the sea every day. Bees need water in summer, and they fly far to find it."


def test_the_span_its_rivals_and_no_answer_are_shown(
    tmp_path: Path, answer_models: AnswerModels
) -> None:
    """Protects from runners-up of another order, and from places that are off."""
    settings = answer_models.overrides({"roundtrip": answer_models.settings("roundtrip")})
    rows = [
        {"id": "a", "candidate": "Who painted?", "context": PASSAGE, "answer": "Anna"},
        {"id": "long", "candidate": "Who?", "context": f"{PASSAGE} " * 60, "answer": "Bees"},
        {"id": "none", "candidate": "Who?", "context": PASSAGE, "answer": ""},
    ]
    out = score(tmp_path / "run", rows, **settings)
    for name, context in (("a", PASSAGE), ("long", f"{PASSAGE} " * 60)):
        found = explain_row(out, identity=name, artifacts=answer_models.root)
        assert found.is_equal
        (scored,) = found.instances
        stored = {line.column: line.stored for line in scored.scores}
        (target,) = family_of(found, "roundtrip", "answer_span").targets
        (part,) = target.parts
        spans = part.data["spans"]
        assert len(spans) > 1
        assert spans[0]["text"] == stored["roundtrip_answer"]
        assert spans[0]["confidence"] == pytest.approx(stored["roundtrip_confidence"], rel=1e-4)
        assert part.data["null_margin"] == pytest.approx(stored["roundtrip_null_margin"], rel=1e-4)
        scores = [span["score"] for span in spans]
        assert scores == sorted(scores, reverse=True)
        for span in spans:
            assert context[span["start"] :].startswith(span["text"])
        strip = part.blocks[0]
        assert "".join(strip.pieces) == context and len(strip.values) == len(strip.pieces)
    nothing = explain_row(out, identity="none", artifacts=answer_models.root)
    (target,) = family_of(nothing, "roundtrip", "answer_span").targets
    assert (target.reason, target.parts) == ("empty_answer", ())
