"""Training texts: how much of a judged set the shipped models have seen.

What the adapters were trained on is read again from its files (`recipes`, the adapters' cards) and
compared with a set's texts, word by word in lower case. What their base was trained on is not at
hand: there its card's list of datasets is all that is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import polars as pl

from benchmarks.judged_sets import DATA, JudgedSet, RewordedSet
from recipes.reader_minilm.passages import normalized, split_passages
from recipes.sas_minilm import sources

# The shipped model of a metric, where it was trained for this project.
ADAPTERS = {"sas": "sas-minilm", "kpqa": "kpqa-minilm", "roundtrip": "reader-minilm"}
# Datasets that the card of all-MiniLM-L6-v2, the base of all, names among its own.
BASE_DATA = ("MS MARCO", "SQuAD")
# Shorter ones, such as a year, coincide by chance.
_LEAST_WORDS = 3


@dataclass(frozen=True, slots=True)
class TrainingTexts:
    """Passages, and shorter texts, that a model was trained on; normalized."""

    passages: frozenset[str]
    texts: frozenset[str]


def seen_texts(judged: JudgedSet | RewordedSet, model: str) -> dict[str, int]:
    """Return how many distinct texts of a set are among a model's training texts."""
    known = _training_texts(model)
    passages = set(map(normalized, judged.passages))
    texts = _texts(judged)
    return {
        "passages": len(passages),
        "passages_seen": len(passages & known.passages),
        "texts": len(texts),
        "texts_seen": len(texts & known.texts),
    }


def _texts(judged: JudgedSet | RewordedSet) -> set[str]:
    """Return questions, answers and references of three words or more."""
    rows = judged.rows
    single = [name for name in ("candidate", "question", "answer") if name in rows.columns]
    found = {text for name in single for text in rows[name].unique()}
    if "references" in rows.columns:
        found.update(rows["references"].explode().unique())
    return {text for text in map(normalized, found) if len(text.split()) >= _LEAST_WORDS}


@cache
def _training_texts(model: str) -> TrainingTexts:
    squad = pl.read_parquet(DATA / "squad/squad_v2_dev.parquet")
    if model == "reader-minilm":
        judged = pl.read_parquet(DATA / "qgeval/qgeval_squad.parquet")["passage"].to_list()
        train, dev, _ = split_passages(squad, judged)
        return _of_squad(pl.concat([train, dev]))
    if model == "kpqa-minilm":
        return _of_squad(squad.filter(pl.col("answers").list.len() > 0))
    questions, answers = sources.hotpot_texts(DATA)
    pairs: Iterable[tuple[str, str]] = [
        *sources.answers_with_references(DATA),
        *((one, other) for one, other, _ in sources.sentence_pairs(DATA, split="train")),
        *((one, other) for one, other, _ in sources.sentence_pairs(DATA, split="dev")),
        *((one, other) for one, other, _ in sources.name_pairs(DATA, split="train")),
    ]
    texts = [*questions, *answers, *(text for pair in pairs for text in pair)]
    return TrainingTexts(
        frozenset(map(normalized, squad["context"].unique())), frozenset(map(normalized, texts))
    )


def _of_squad(rows: pl.DataFrame) -> TrainingTexts:
    texts = [*rows["question"], *rows["answers"].explode().drop_nulls()]
    return TrainingTexts(
        frozenset(map(normalized, rows["context"].unique())), frozenset(map(normalized, texts))
    )
