"""Golden: values that other tools print for given texts, read from the shared evaluation data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers import as_table
from qaeval_core import Scorer
from qaeval_core.metrics.catalog import corpus_score
from qaeval_core.running.score_rows import score_instance

pytestmark = pytest.mark.shared_data

SPLIT = {"tokenizer": "whitespace", "lowercase": False}


@pytest.fixture(scope="module")
def golden(shared_data: Path) -> dict[str, Any]:
    return json.loads((shared_data / "golden" / "golden_values.json").read_text("utf-8"))


def rows(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> list[dict[str, object]]:
    pairs = zip(candidates, references, strict=True)
    return [{"candidate": text, "references": list(own)} for text, own in pairs]


def scores(data: list[dict[str, object]], metric: str, **settings: object) -> list[float]:
    return as_table(Scorer({metric: settings}).score(data)).column(metric).to_pylist()


def corpus(data: list[dict[str, object]], metric: str, **settings: object) -> float:
    """Return the corpus score from the rows' statistics."""
    return float(corpus_score(metric, settings, corpus_counts(data, metric, **settings)))


def corpus_counts(
    data: list[dict[str, object]], metric: str, **settings: object
) -> NDArray[np.float64]:
    """Return the rows' summed statistics."""
    scorer = Scorer({metric: settings})
    columns = {"candidate": "candidate", "references": "references"}
    values = {role: [row[role] for row in data] for role in columns}
    run = scorer.compile(columns)
    found = score_instance(run.instances[0], scorer.statistics(run, values))
    assert found.sums is not None
    return found.sums.sum(axis=0)


def text(words: Sequence[str]) -> str:
    return " ".join(words)


def test_nlg_eval_prints_the_same_bleu_rouge_and_cider(golden: dict[str, Any]) -> None:
    """Protects from another BLEU, ROUGE-L or CIDEr than coco-caption's."""
    for case in golden["nlg_eval"]["cases"]:
        expected: Mapping[str, float] = case["expected"]
        data = rows(case["hypotheses"], list(zip(*case["references"], strict=True)))
        for order in (1, 2, 3, 4):
            if f"Bleu_{order}" in expected:
                own = corpus(data, f"bleu_{order}", **SPLIT, smoothing="coco")
                assert own == pytest.approx(expected[f"Bleu_{order}"], abs=2e-5)
        own_rouge = np.mean(scores(data, "rouge_l", **SPLIT, beta=1.2))
        assert own_rouge == pytest.approx(expected["ROUGE_L"], abs=1e-5)
        if "CIDEr" in expected:
            own_cider = corpus(data, "cider", **SPLIT)
            assert own_cider == pytest.approx(expected["CIDEr"], abs=1e-5)


def test_nltk_prints_the_same_bleu_and_meteor(golden: dict[str, Any]) -> None:
    """Protects from a BLEU of summed precisions, and from another METEOR alignment."""
    nltk = golden["nltk"]
    one = nltk["sentence_bleu"]
    data = rows([text(one["hypothesis"])], [[text(words) for words in one["references"]]])
    assert str(scores(data, "bleu_4", **SPLIT)[0]).startswith(one["expected_prefix"])
    none = nltk["sentence_bleu_no_overlap"]
    data = rows([text(none["hypothesis"])], [[text(words) for words in none["references"]]])
    assert scores(data, "bleu_4", **SPLIT) == [none["expected"]]
    floor = scores(data, "bleu_4", **SPLIT, smoothing="floor")[0]
    assert str(floor).startswith(none["smoothing_method1_prefix"])
    whole = nltk["corpus_bleu"]
    references = [[text(words) for words in own] for own in whole["references"]]
    data = rows([text(words) for words in whole["hypotheses"]], references)
    assert str(corpus(data, "bleu_4", **SPLIT)).startswith(whole["expected_prefix"])
    mean = np.mean(scores(data, "bleu_4", **SPLIT))
    assert str(mean).startswith(whole["mean_of_sentence_bleu_prefix"])
    for name, expected in (("meteor_score", "expected_4dp"), ("meteor_no_match", "expected")):
        case = nltk[name]
        data = rows([text(case["hypothesis"])], [[text(words) for words in case["references"]]])
        own = scores(data, "meteor", tokenizer="whitespace")[0]
        assert round(own, 4) == case[expected]


def test_evaluate_prints_the_same_bleu_rouge_meteor_and_squad(golden: dict[str, Any]) -> None:
    """Protects from other rules over references, and from another normalization of answers."""
    evaluate = golden["hf_evaluate"]
    case = evaluate["bleu"]
    data = rows(case["predictions"], case["references"])
    assert corpus(data, "bleu_4") == pytest.approx(case["expected"]["bleu"])
    case = evaluate["sacrebleu"]
    data = rows(case["predictions"], case["references"])
    own = corpus(data, "bleu_4", lowercase=False, smoothing="exponential")
    assert 100 * own == pytest.approx(case["expected"])
    case = evaluate["rouge"]
    data = rows(case["predictions"], case["references"])
    own = np.mean(scores(data, "rouge_l", over_references="max"))
    assert own == pytest.approx(case["expected"]["rougeL"], abs=1e-4)
    case = evaluate["meteor"]
    data = rows(case["predictions"], case["references"])
    assert round(scores(data, "meteor")[0], 2) == case["expected_2dp"]
    case = evaluate["squad"]
    data = rows(case["predictions"], [[reference] for reference in case["references"]])
    for metric in ("exact_match", "f1"):
        own = 100 * np.mean(scores(data, metric))
        assert own == pytest.approx(case["expected"][metric])
    case = evaluate["exact_match"]
    data = rows(case["preds"], [[reference] for reference in case["refs"]])
    cased = np.mean(scores(data, "exact_match", **SPLIT))
    assert cased == pytest.approx(case["expected"])


def test_jury_prints_the_same_bleu_rouge_and_meteor(golden: dict[str, Any]) -> None:
    """Protects from a mean where the best reference counts."""
    jury = golden["jury"]
    for name in ("basic", "multiple_ref"):
        case, expected = jury["inputs"][name], jury["expected"]
        references = [[own] if isinstance(own, str) else own for own in case["references"]]
        data = rows(case["predictions"], references)
        bleu = expected["bleu"][name]["bleu"]
        counts = corpus_counts(data, "bleu_4", tokenizer="words")
        # It takes the shortest reference's length; ours is the closest one's, as Papineni's is.
        shortest = sum(min(len(text.split()) for text in own) for own in references)
        assert (counts[0], shortest) == (bleu["translation_length"], bleu["reference_length"])
        assert (counts[2:6] / counts[6:10]).tolist() == pytest.approx(bleu["precisions"])
        assert corpus(data, "bleu_4", tokenizer="words") == bleu["score"]
        meteor = np.mean(scores(data, "meteor", tokenizer="words"))
        assert meteor == pytest.approx(expected["meteor"][name]["meteor"]["score"])
        rouge = expected["rouge"][name]["rouge"]["rougeL"]
        own = np.mean(scores(data, "rouge_l", over_references="max"))
        assert own == pytest.approx(rouge, abs=1e-9)


def test_q_bleu_program_prints_the_same_with_its_weights(golden: dict[str, Any]) -> None:
    """Protects from another reading of the kinds of words.

    The program applies the entities' weight to question words and the other way round, and
    counts a kind that is absent on both sides as 0.
    """
    case = golden["q_bleu"]
    data = rows(case["hypotheses"], [case["references"]])
    given = case["weights"]
    for order in (1, 2, 3):
        own = scores(
            data,
            "q_bleu",
            tokenizer="coco",
            order=order,
            absent="zero",
            entity_weight=given["question_type"],
            question_weight=given["ner"],
            relevant_weight=given["relevant"],
            delta=given["delta"],
        )[0]
        assert own == pytest.approx(case["expected"][f"Bleu_{order}"]["answerability"], abs=5e-4)
