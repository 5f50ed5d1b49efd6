"""KPQA end to end equals the paper's equations in nested loops, one question and text at a time."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from transformers import AutoModelForTokenClassification

from answer_models import AnswerModels, EncoderOracle, plain_tokenizer
from helpers import as_table
from qaeval_core.configure import load_config
from qaeval_core.errors import ConfigError
from qaeval_core.models.artifact import Artifact, ArtifactRequest, find_artifact
from qaeval_core.planning.compile import compile_run

# 32 bits on both sides; sums run in another order, and padding is another.
TOLERANCE = 1e-4
# Of the classifier of tests/workshop.py: label 0 is the answer's.
ANSWER = 0

QUESTION = "What did Anna paint every day?"
SHARED = "Anna painted the sea, the whole sea."
LONG = " ".join(f"the sea {i % 60}" for i in range(600))
ROWS: list[dict[str, Any]] = [
    {"question": QUESTION, "candidate": SHARED, "references": ["the sea", "灯台 👍", "x"]},
    # The same texts under another question have other weights.
    {"question": "Who?", "candidate": SHARED, "references": ["Anna", SHARED, "the sea"]},
    {"question": "q", "candidate": "x", "references": ["a x b x"]},
    {"question": "灯台?", "candidate": "北の崖 👍 naïve", "references": ["崖の上", "北"]},
    {"question": QUESTION, "candidate": "day after day the sea", "references": ["the sea day"]},
    {"question": "why " * 80, "candidate": "the lamp burned", "references": ["oil burned"]},
]


class Side(NamedTuple):
    """One text: its tokens, what they weigh, and their vectors, special ones first and last."""

    ids: list[int]
    weights: list[float]
    idf: list[float]
    vectors: np.ndarray


class Oracle:
    """Weights of a text's tokens for a question, as transformers' classifier has them."""

    def __init__(self, models: AnswerModels) -> None:
        folder = models.folders["keyphrase_classifier"]
        self._classifier = AutoModelForTokenClassification.from_pretrained(folder).eval()
        self._encoder = EncoderOracle(models.folders["encoder"])
        self._tokenizer = plain_tokenizer(folder)
        self._documents: list[set[int]] = []

    def read_corpus(self, rows: list[dict[str, Any]]) -> None:
        """Count tokens of all references."""
        texts = [text for row in rows for text in row["references"]]
        self._documents = [set(self.ids(text)) for text in texts]

    def ids(self, text: str) -> list[int]:
        """Return token ids without special tokens."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def side(self, question: str, text: str) -> Side:
        """Return everything about a text under a question."""
        ids = self.ids(text)
        n = len(self._documents)
        n_with = [sum(token in document for document in self._documents) for token in ids]
        idf = [math.log((n + 1) / (own + 1)) for own in n_with]
        return Side(ids, self.weights(question, ids), idf, self._encoder.vectors(text))

    def weights(self, question: str, ids: list[int]) -> list[float]:
        """Run the classifier on equal windows of the text, each with the whole question."""
        (cls, sep), asked = self._tokenizer.encode("").ids, self.ids(question)
        room = 512 - 3 - max(len(asked), 64)
        found: list[float] = []
        for part in np.array_split(ids, -(-len(ids) // room)):
            sequence = [cls, *asked, sep, *part, sep]
            start = 2 + len(asked)
            segments = [int(i >= start) for i in range(len(sequence))]
            with torch.inference_mode():
                logits = self._classifier(
                    torch.tensor([sequence]), token_type_ids=torch.tensor([segments])
                ).logits[0, start:-1]
            found += torch.softmax(logits.double(), dim=-1)[:, ANSWER].tolist()
        return found


def _reference_kpqa_bleu_1(candidate: Side, reference: Side, *, is_authors: bool) -> float:
    total = 0.0
    for token in set(candidate.ids):
        own = [w for i, w in zip(candidate.ids, candidate.weights, strict=True) if i == token]
        total += min(len(own), Counter(reference.ids)[token]) * sum(own) / len(own)
    score = total / sum(candidate.weights)
    c, r = len(candidate.ids), len(reference.ids)
    return score * math.exp(1 - r / c) if is_authors and c < r else score


def _heaviest_lcs(own: Side, other: Side) -> float:
    """Weight, by one side's weights, of the heaviest of the longest common subsequences."""
    above = [(0, 0.0)] * (len(other.ids) + 1)
    for token, weight in zip(own.ids, own.weights, strict=True):
        row = [(0, 0.0)]
        for j, match in enumerate(other.ids):
            length, heaviest = above[j]
            taken = (length + 1, heaviest + weight) if token == match else (0, 0.0)
            row.append(max(taken, above[j + 1], row[-1]))
        above = row
    return above[-1][1]


def _reference_kpqa_rouge_l(candidate: Side, reference: Side, *, is_authors: bool) -> float:
    below = [sum(candidate.weights), sum(reference.weights)]
    if is_authors:
        beta, common = 1.0, _heaviest_lcs(reference, candidate)
        p, r = (common / own for own in below)
    else:
        beta, common = 1.2, _heaviest_lcs(candidate, reference)
        p, r = (min(common / own, 1.0) for own in below)
    return (1 + beta**2) * p * r / (r + beta**2 * p) if common else 0.0


def _reference_kpqa_bertscore(candidate: Side, reference: Side, *, is_authors: bool) -> list[float]:
    means = []
    for own, other in ((candidate, reference), (reference, candidate)):
        weights = [
            w * (idf if is_authors else 1) for w, idf in zip(own.weights, own.idf, strict=True)
        ]
        best = [max(other.vectors @ x) for x in own.vectors[1:-1]]
        means.append(math.fsum(w * b for w, b in zip(weights, best, strict=True)) / sum(weights))
    p, r = means
    return [2 * p * r / (p + r), p, r]


def _reference_kpqa(oracle: Oracle, row: dict[str, Any], *, profile: str, weights: str) -> list:
    """Return BLEU-1, ROUGE-L, F, P and R of a row: the best of each; P and R with the best F."""
    sides = [oracle.side(row["question"], text) for text in (row["candidate"], *row["references"])]
    if weights == "plain":
        sides = [side._replace(weights=[1.0] * len(side.ids)) for side in sides]
    candidate, *references = sides
    pairs = [(candidate, reference) for reference in references]
    is_authors = profile == "authors"
    return [
        max(_reference_kpqa_bleu_1(*pair, is_authors=is_authors) for pair in pairs),
        max(_reference_kpqa_rouge_l(*pair, is_authors=is_authors) for pair in pairs),
        *max(_reference_kpqa_bertscore(*pair, is_authors=is_authors) for pair in pairs),
    ]


COLUMNS = ("m_bleu_1", "m_rouge_l", "m_bertscore", "m_bertscore_precision", "m_bertscore_recall")


@pytest.fixture(scope="module")
def oracle(answer_models: AnswerModels) -> Oracle:
    return Oracle(answer_models)


@pytest.mark.parametrize(
    ("profile", "weights"),
    [("paper", "keyphrase"), ("paper", "plain"), ("authors", "keyphrase"), ("authors", "plain")],
)
def test_scores_equal_the_equations(
    profile: str, weights: str, oracle: Oracle, answer_models: AnswerModels
) -> None:
    """Protects from weights of other tokens, another question or label, and other references."""
    oracle.read_corpus(ROWS)
    settings = answer_models.settings("kpqa", profile=profile, weights=weights)
    scores = as_table(answer_models.scorer({"m": settings}).score(ROWS))
    for i, row in enumerate(ROWS):
        found = [scores[name][i].as_py() for name in COLUMNS]
        expected = _reference_kpqa(oracle, row, profile=profile, weights=weights)
        assert found == pytest.approx(expected, abs=TOLERANCE), row


def test_weights_of_a_long_text_are_those_of_its_windows(
    oracle: Oracle, answer_models: AnswerModels
) -> None:
    """Protects from a text cut in silence, and from vectors and weights that part at a window."""
    rows = [
        {
            "question": QUESTION,
            "candidate": LONG,
            "references": ["the sea 7", LONG[: len(LONG) // 2]],
        }
    ]
    assert len(oracle.ids(LONG)) > 1_200
    scores = as_table(answer_models.scorer({"m": answer_models.settings("kpqa")}).score(rows))
    found = [scores[name][0].as_py() for name in COLUMNS]
    expected = _reference_kpqa(oracle, rows[0], profile="paper", weights="keyphrase")
    assert found == pytest.approx(expected, abs=TOLERANCE)


def test_shown_weights_are_those_of_the_classifier(
    oracle: Oracle, answer_models: AnswerModels
) -> None:
    """Protects from weights shown beside other tokens than they belong to."""
    settings = answer_models.settings("kpqa", show_weights=True)
    scores = as_table(answer_models.scorer({"m": settings}).score(ROWS))
    for row, shown in zip(ROWS, scores["m_weights"].to_pylist(), strict=True):
        found = json.loads(shown)
        encoding = oracle._tokenizer.encode(row["candidate"], add_special_tokens=False)
        assert [token for token, _ in found] == encoding.tokens
        expected = oracle.weights(row["question"], encoding.ids)
        assert [weight for _, weight in found] == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("weights", ["keyphrase", "plain"])
@pytest.mark.parametrize(
    ("question", "reason"), [(" ", "empty_question"), ("why " * 500, "question_too_long")]
)
def test_a_question_that_cannot_be_read_leaves_all_undefined(
    question: str, reason: str, weights: str, answer_models: AnswerModels
) -> None:
    """Protects from plain twins that are scored on other rows than what they are compared with."""
    rows = [{"question": question, "candidate": "x", "references": ["x"]}, *ROWS[:1]]
    scorer = answer_models.scorer({"m": answer_models.settings("kpqa", weights=weights)})
    scores = as_table(scorer.score(rows))
    assert scores["m_reason"].to_pylist() == [reason, None]
    assert [scores[name][0].as_py() for name in COLUMNS] == [None] * len(COLUMNS)


def test_models_that_split_texts_otherwise_are_refused(answer_models: AnswerModels) -> None:
    """Protects from weights of one tokenizer's pieces on another's vectors."""
    settings = answer_models.settings("kpqa")
    config = load_config(overrides=answer_models.overrides({"kpqa": settings}))

    def resolve(request: ArtifactRequest) -> Artifact:
        artifact = find_artifact(answer_models.root, request)
        if request.role == "encoder":
            return artifact
        other = artifact.record.model_copy(update={"tokenizer_hash": "0" * 64})
        return replace(artifact, record=other)

    expected = "keyphrase_classifier.*'bert_tokens'.*'bert'.*QA0209"
    columns = {role: role for role in ("question", "candidate", "references")}
    with pytest.raises(ConfigError, match=expected):
        compile_run(config, columns=columns, device="cpu", resolve_artifact=resolve)
