"""Lexical metrics against the programs that others use: NLTK, sacrebleu, rouge-score."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.translate import bleu_score, meteor_score
from rouge_score import rouge_scorer
from sacrebleu.metrics import BLEU

from helpers import as_table
from oracles import random_rows, split_row
from qaeval_core import Scorer
from qaeval_core.metrics.catalog import corpus_score
from qaeval_core.metrics.meteor import align, meteor
from qaeval_core.running.score_rows import score_rows
from qaeval_core.text.tokenize import make_tokenizer, porter_stem
from qaeval_core.text.wordnet import load_wordnet

Row = dict[str, object]
# Programs sum logarithms in another order; sacrebleu gives percent.
TOLERANCE = 1e-9
# NLTK's value for an order without a match is the smallest float, not 0.
NLTK_ZERO = 1e-70
NLTK_SMOOTHING = {"none": "method0", "floor": "method1", "add_one": "method2"}
SENTENCES = (
    "Who keeps the bees behind the old mill, and since when?",
    "Who has kept bees behind the mill since 1987?",
    "Ann, the miller's daughter, keeps them; her father didn't.",
    "The bees are kept by Ann, the daughter of the miller.",
    "It cost $3.50 (about 3,5 euros) -- far too much!",
    "It costs about 3.50 dollars, which is a lot.",
    "Cars and automobiles were running quickly through large towns.",
    "A big auto ran fast through the town's narrow streets.",
    "Bees",
    "",
)


def sentence_rows(*, seed: int, n_references: Sequence[int], n_rows: int = 60) -> list[Row]:
    """Return rows of the sentences above, pieces of them mixed."""
    chance = random.Random(seed)

    def text() -> str:
        if chance.random() < 0.3:
            return chance.choice(SENTENCES)
        words = chance.choice(SENTENCES).split() + chance.choice(SENTENCES).split()
        start = chance.randrange(3)
        return " ".join(words[start : start + chance.randrange(16)])

    return [
        {"candidate": text(), "references": [text() for _ in range(chance.choice(n_references))]}
        for _ in range(n_rows)
    ]


def corpus_bleu(scorer: Scorer, rows: list[Row], name: str) -> float:
    """Return an instance's corpus score, from the statistics of its rows."""
    columns = {"candidate": "candidate", "references": "references"}
    run = scorer.compile(columns)
    values = {role: [row[role] for row in rows] for role in columns}
    table = score_rows(run, scorer.statistics(run, values), with_statistics=True)
    sums = np.sum([row for row in table[f"{name}_statistics"].to_pylist() if row], axis=0)
    own = scorer.config.metrics[name].model_dump()
    return float(corpus_score(name, own, sums))


@pytest.mark.parametrize("smoothing", list(NLTK_SMOOTHING))
def test_bleu_is_that_of_nltk(smoothing: str) -> None:
    """Protects from smoothing of other orders than NLTK's, per row and for a corpus."""
    rows = [row for row in random_rows(seed=11) if row["references"]]
    method = getattr(bleu_score.SmoothingFunction(), NLTK_SMOOTHING[smoothing])
    options = {"tokenizer": "whitespace", "smoothing": smoothing}
    scorer = Scorer({f"bleu_{order}": options for order in (1, 2, 3, 4)})
    scores = as_table(scorer.score(rows))
    pairs = [split_row(row) for row in rows]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "\nThe hypothesis contains 0 counts")
        for order in (1, 2, 3, 4):
            weights = (1 / order,) * order
            for i, (candidate, references) in enumerate(pairs):
                found = scores[f"bleu_{order}"][i].as_py()
                if not candidate and [] in references:
                    assert found == 1.0  # NLTK: 0, as for any empty text.
                    continue
                expected = bleu_score.sentence_bleu(references, candidate, weights, method)
                assert found == pytest.approx(expected, abs=TOLERANCE + NLTK_ZERO), rows[i]
            # NLTK counts an n-gram in texts too short for one; sacrebleu and we do not.
            long = [i for i, (candidate, _) in enumerate(pairs) if len(candidate) >= order]
            expected = bleu_score.corpus_bleu(
                [pairs[i][1] for i in long], [pairs[i][0] for i in long], weights, method
            )
            found = corpus_bleu(scorer, [rows[i] for i in long], f"bleu_{order}")
            assert found == pytest.approx(expected, abs=TOLERANCE)


def test_bleu_is_that_of_sacrebleu() -> None:
    """Protects from numbers that the most used program would not print."""
    rows = sentence_rows(seed=12, n_references=(1, 2, 3))
    scorer = Scorer({"bleu_4": {"smoothing": "exponential"}})
    scores = as_table(scorer.score(rows))["bleu_4"].to_pylist()
    peer = BLEU(lowercase=True, tokenize="13a", smooth_method="exp", effective_order=True)
    n_between = 0
    for row, found in zip(rows, scores, strict=True):
        candidate, references = str(row["candidate"]), row["references"]
        assert isinstance(references, list)
        if not candidate and "" in references:
            assert found == 1.0  # sacrebleu: 0.
            continue
        expected = peer.sentence_score(candidate, references).score / 100
        assert found == pytest.approx(expected, abs=TOLERANCE), row
        n_between += 0 < expected < 1
    assert n_between > 30
    for is_lower in (True, False):
        whole = BLEU(lowercase=is_lower, tokenize="13a", smooth_method="exp")
        references = [row["references"] for row in rows]
        streams = [[own[i] if i < len(own) else None for own in references] for i in range(3)]  # type: ignore[arg-type, index]
        expected = whole.corpus_score([str(row["candidate"]) for row in rows], streams).score
        options = {"smoothing": "exponential", "lowercase": is_lower}
        found = corpus_bleu(Scorer({"bleu_4": options}), rows, "bleu_4")
        assert found == pytest.approx(expected / 100, abs=TOLERANCE)


@pytest.mark.parametrize("has_stemmer", [False, True], ids=["plain", "stemmer"])
def test_rouge_l_is_that_of_rouge_score(has_stemmer: bool) -> None:
    """Protects from other words, stems or best references than rouge-score's."""
    rows = sentence_rows(seed=13, n_references=(1, 2, 3))
    options = {"over_references": "max", "stemming": "porter" if has_stemmer else "none"}
    scores = as_table(Scorer({"rouge_l": options}).score(rows))
    peer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=has_stemmer)
    for i, row in enumerate(rows):
        references = row["references"]
        assert isinstance(references, list)
        expected = peer.score_multi(references, str(row["candidate"]))["rougeL"]
        found = [scores[f"rouge_l{part}"][i].as_py() for part in ("", "_precision", "_recall")]
        if not row["candidate"] and "" in references:
            assert found == [1.0, 1.0, 1.0]  # rouge-score: 0.
            continue
        assert found[0] == pytest.approx(expected.fmeasure, abs=TOLERANCE), row
        if len(references) == 1:  # Of several with one F the programs may take another.
            assert found[1:] == pytest.approx([expected.precision, expected.recall]), row


class _Lemma(NamedTuple):
    text: str

    def name(self) -> str:
        return self.text


class _Synset(NamedTuple):
    words: frozenset[str]

    def lemmas(self) -> list[_Lemma]:
        return [_Lemma(word) for word in self.words]


class _OwnWordNet:
    """Our synonyms as NLTK's METEOR asks for them."""

    def synsets(self, word: str) -> list[_Synset]:
        return [_Synset(load_wordnet().synonyms(word))]


METEOR_WORDS = (
    *("car", "auto", "cars", "quickly", "fast", "run", "running", "ran", "mill", "milling"),
    *("big", "large", "the", "bee"),
)
meteor_texts = st.lists(st.sampled_from(METEOR_WORDS), max_size=9)


@settings(deadline=None, max_examples=150)
@given(meteor_texts, meteor_texts)
def test_alignment_is_that_of_nltk(candidate: list[str], reference: list[str]) -> None:
    """Protects from matches in another order of stages, and from other chunks."""
    own = align(candidate, reference, stem=porter_stem, synonyms=load_wordnet().synonyms)
    matches, _, _ = meteor_score.align_words(candidate, reference, wordnet=_OwnWordNet())
    n_chunks = meteor_score._count_chunks(matches) if matches else 0
    assert own == (len(matches), n_chunks)


def test_meteor_is_that_of_nltk() -> None:
    """Protects from alpha, beta or gamma in another place, and from words split otherwise."""
    rows = sentence_rows(seed=14, n_references=(1, 2, 3))
    parameters = {"alpha": 0.8, "beta": 2.0, "gamma": 0.4}
    split = make_tokenizer("treebank", lowercase=False)
    for options in ({}, parameters):
        scores = as_table(Scorer({"meteor": options}).score(rows))["meteor"].to_pylist()
        for row, found in zip(rows, scores, strict=True):
            references = row["references"]
            assert isinstance(references, list)
            expected = meteor_score.meteor_score(
                [split(reference) for reference in references],
                split(str(row["candidate"])),
                wordnet=_OwnWordNet(),
                **options,
            )
            if not row["candidate"] and "" in references:
                assert found == 1.0  # NLTK: 0.
                continue
            assert found == pytest.approx(expected, abs=TOLERANCE), row


def test_meteor_has_the_value_of_its_paper_for_equal_texts() -> None:
    """Six words in one chunk: 1 - 0.5 (1/6)^3, as in the description of METEOR."""
    six, one = np.array([6.0]), np.array([1.0])
    found = meteor(n_matches=six, n_chunks=one, n_candidate=six, n_reference=six)
    assert found[0] == pytest.approx(1 - 0.5 / 216)
