"""Answers judged by models equal the authors' and the usual programs, on the same weights.

sentence-transformers and bert-score run in this process; what they have not is computed here from
the hidden states that transformers returns for one text alone.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from answer_models import AnswerModels, EncoderOracle
from helpers import as_table
from qaeval_core import Scorer
from qaeval_core.models.registry import resolve_model

# 32 bits on both sides; sums run in another order, and padding is another.
TOLERANCE = 1e-4

Pairs = list[tuple[str, str]]  # candidate and reference
Floats = NDArray[np.float64]

TEXTS = (
    "1874",
    "x",
    "in the year 1874",
    "Anna painted the sea every day, yet she never learned to swim.",
    "灯台は北の崖の上にあります。",
    "👍",
    "Où est l'école, naïve soul?",
    "3.5 kg at €2.40 — AT&T's price…",
    " ".join(["The mill closed, and its owner, an old man by then, kept the key."] * 5),
)
AWKWARD = [(a, b) for i, a in enumerate(TEXTS) for b in (a, TEXTS[i - 1], TEXTS[i - 3])]
LONG = "The lighthouse on the northern cliff was built in 1874 by two brothers. " * 100


@pytest.fixture(scope="module")
def answers(shared_data: Path) -> Pairs:
    """Answers of five systems with the first gold answer, 200 questions apart from each other."""
    gold = pl.read_parquet(shared_data / "squad" / "squad_v2_dev.parquet")
    given = pl.read_parquet(shared_data / "squad" / "squad_v11_dev_predictions.parquet")
    joined = given.join(gold.filter(pl.col("answers").list.len() > 0), on="id").gather_every(29)
    systems = [name for name in joined.columns if name.startswith("pred_")]
    rows = joined.iter_rows(named=True)
    found = [(row[systems[i % 5]], row["answers"][0]) for i, row in enumerate(rows)]
    assert len(found) > 200
    return [pair for pair in found[:200] if pair[0].strip()]


@pytest.fixture(scope="module")
def minilm() -> str:
    """Folder of the embedded encoder."""
    return str(resolve_model("minilm", role="encoder").folder)


def scored(scorer: Scorer, pairs: Pairs, *columns: str) -> list[Floats]:
    """Return columns of scores of pairs."""
    rows = [{"candidate": a, "references": [b]} for a, b in pairs]
    scores = as_table(scorer.score(rows))
    return [np.array(scores[name].to_pylist(), dtype=np.float64) for name in columns]


@pytest.mark.shared_data
@pytest.mark.slow
def test_bi_encoder_equals_sentence_transformers(answers: Pairs, minilm: str) -> None:
    """Protects from other pooling, from padding in the mean, and from a text cut elsewhere."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    peer = sentence_transformers.SentenceTransformer(minilm, device="cpu")
    pairs = [*AWKWARD, *answers, (LONG, "1874"), (LONG, LONG)]
    sides = [peer.encode([pair[k] for pair in pairs], show_progress_bar=False) for k in (0, 1)]
    lengths = np.linalg.norm(sides, axis=2)
    expected = (sides[0] * sides[1]).sum(axis=1) / (lengths[0] * lengths[1])
    scorer = Scorer(["bi_encoder"], n_threads=1)
    found, n_cut = scored(scorer, pairs, "bi_encoder", "bi_encoder_truncated")
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    assert n_cut.tolist() == [0] * (len(pairs) - 2) + [1, 2]


@pytest.mark.parametrize(
    "activation", ["sigmoid", pytest.param("identity", marks=pytest.mark.slow)]
)
def test_sas_equals_cross_encoder_predict(
    activation: str, answer_models: AnswerModels, tmp_path: Path
) -> None:
    """Protects from swapped texts, another cut of a long pair, and an activation too many."""
    cross_encoder = pytest.importorskip("sentence_transformers").CrossEncoder
    folder = answer_models.folders["cross_encoder"]
    if activation == "identity":
        folder = shutil.copytree(folder, tmp_path / "identity")
        config = json.loads((folder / "config.json").read_text())
        config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
        (folder / "config.json").write_text(json.dumps(config))
    long = ["sea " * n for n in (200, 254, 255, 300, 600)]
    pairs = [*AWKWARD, *((a, b) for a in long for b in (long[2], long[3], long[4], "the mill"))]
    peer = cross_encoder(str(folder), device="cpu")
    expected = peer.predict([(b, a) for a, b in pairs], show_progress_bar=False)
    scorer = answer_models.scorer({"sas": answer_models.settings("sas", cross_encoder=str(folder))})
    found, n_cut = scored(scorer, pairs, "sas", "sas_truncated")
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    assert (np.ptp(found) > 1.0) == (activation == "identity")
    assert n_cut.tolist() == [a.count("sea ") + b.count("sea ") > 509 for a, b in pairs]


def bert_score(pairs: Pairs, folder: str, *, layer: int, **given: Any) -> list[Floats]:
    """Return P, R and F of the authors' program; a pair alone has no padding."""
    score = pytest.importorskip("bert_score").score
    candidates, references = [a for a, _ in pairs], [b for _, b in pairs]
    settings = {"num_layers": layer, "device": "cpu", "batch_size": 1, **given}
    found = score(candidates, references, model_type=folder, **settings)
    return [part.numpy().astype(np.float64) for part in found]


def own_bertscore(pairs: Pairs, **given: object) -> list[Floats]:
    """Return P, R and F of the embedded encoder."""
    scorer = Scorer({"m": {"metric": "bertscore", **given}}, n_threads=1)
    return scored(scorer, pairs, "m_precision", "m_recall", "m_f1")


@pytest.mark.slow
@pytest.mark.shared_data
def test_bertscore_equals_bert_score(answers: Pairs, minilm: str) -> None:
    """Protects from another layer, and from special tokens that weigh something."""
    pairs = [*AWKWARD, *answers[::2]]
    expected = bert_score(pairs, minilm, layer=6)
    np.testing.assert_allclose(own_bertscore(pairs), expected, atol=TOLERANCE)


@pytest.mark.long
@pytest.mark.shared_data
# bert-score hands a table of pandas to torch as it is, and reads it alone.
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
def test_layer_idf_and_rescaling_equal_bert_score(
    answers: Pairs, minilm: str, tmp_path: Path
) -> None:
    """Protects from a layer off by one, from idf of another corpus, and from another baseline."""
    pairs = [*AWKWARD, *answers]
    expected = bert_score(pairs, minilm, layer=2)
    np.testing.assert_allclose(own_bertscore(pairs, layer=2), expected, atol=TOLERANCE)
    baseline = tmp_path / "baseline.tsv"
    lines = [f"{layer},0.{layer}1,0.{layer}2,0.{layer}3" for layer in range(7)]
    baseline.write_text("\n".join(["LAYER,P,R,F", *lines]))
    peer = {"rescale_with_baseline": True, "baseline_path": str(baseline), "lang": "en"}
    expected = bert_score(pairs, minilm, layer=2, **peer)
    found = own_bertscore(pairs, layer=2, baseline=str(baseline))
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    expected = bert_score(pairs, minilm, layer=6, idf=True, nthreads=0)
    np.testing.assert_allclose(own_bertscore(pairs, idf=True), expected, atol=TOLERANCE)


@pytest.mark.slow
def test_a_negative_cosine_is_not_raised_to_zero_by_neighbors(minilm: str) -> None:
    """bert_score multiplies padding by 0, and a row's score depends on what it is scored with."""
    pair, neighbor = (TEXTS[3], "1874"), (TEXTS[3], TEXTS[8])
    alone = [part[0] for part in bert_score([pair], minilm, layer=6)]
    beside = [part[0] for part in bert_score([pair, neighbor], minilm, layer=6, batch_size=64)]
    assert abs(beside[0] - alone[0]) > 10 * TOLERANCE
    ours = [part[0] for part in own_bertscore([pair, neighbor])]
    np.testing.assert_allclose(ours, alone, atol=TOLERANCE)


def _reference_bertscore(candidate: Floats, reference: Floats, *, is_special_matched: bool) -> list:
    matched = slice(None) if is_special_matched else slice(1, -1)
    best = [
        [max(math.fsum(token * other) for other in others[matched]) for token in own[1:-1]]
        for own, others in ((candidate, reference), (reference, candidate))
    ]
    p, r = (math.fsum(side) / len(side) for side in best)
    return [p, r, 2 * p * r / (p + r)]


@pytest.mark.parametrize("special", ["match", "exclude"])
def test_bertscore_equals_nested_loops_with_and_without_special_tokens(
    special: str, answer_models: AnswerModels
) -> None:
    """Protects from [CLS] that is matched although it is excluded; the peer has no such switch."""
    reference = EncoderOracle(answer_models.folders["encoder"])
    settings = answer_models.settings("bertscore", special_tokens=special)
    found = scored(
        answer_models.scorer({"m": settings}), AWKWARD, "m_precision", "m_recall", "m_f1"
    )
    for i, pair in enumerate(AWKWARD):
        vectors = [reference.vectors(text) for text in pair]
        expected = _reference_bertscore(*vectors, is_special_matched=special == "match")
        assert [part[i] for part in found] == pytest.approx(expected, abs=TOLERANCE), pair


def test_bertscore_of_a_long_text_is_that_of_its_windows(answer_models: AnswerModels) -> None:
    """Protects from a text cut at 512 in silence, and from special tokens between windows."""
    texts = (" ".join(f"sea {i}" for i in range(600)), TEXTS[3])
    reference = EncoderOracle(answer_models.folders["encoder"])
    vectors = [reference.vectors(text) for text in texts]
    assert len(vectors[0]) > 2 * 512
    scorer = answer_models.scorer({"m": answer_models.settings("bertscore")})
    for pair, sides in ((texts, vectors), (texts[::-1], vectors[::-1])):
        expected = _reference_bertscore(*sides, is_special_matched=True)
        found = scored(scorer, [pair], "m_precision", "m_recall", "m_f1")
        assert [part[0] for part in found] == pytest.approx(expected, abs=TOLERANCE)


def _reference_moverscore(candidate: Floats, reference: Floats) -> float:
    """The linear program written out: flows >= 0, each token's flow its equal share."""
    own, others = candidate[1:-1], reference[1:-1]
    n, m = len(own), len(others)
    distances = [math.dist(x, y) for x in own for y in others]
    rows = [[float(k // m == i) for k in range(n * m)] for i in range(n)]
    columns = [[float(k % m == j) for k in range(n * m)] for j in range(m)]
    shares = [1 / n] * n + [1 / m] * m
    return 1 - float(linprog(distances, A_eq=rows + columns, b_eq=shares).fun)


def test_moverscore_equals_the_linear_program(answer_models: AnswerModels) -> None:
    """Protects from squared distances, from special tokens that move, and from a bound instead."""
    reference = EncoderOracle(answer_models.folders["encoder"])
    pairs = [(TEXTS[i], TEXTS[j]) for i in (0, 3, 4, 6) for j in (2, 6, 7)][:10]
    scorer = answer_models.scorer({"m": answer_models.settings("moverscore")})
    (found,) = scored(scorer, pairs, "m")
    expected = [_reference_moverscore(*(reference.vectors(text) for text in p)) for p in pairs]
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
