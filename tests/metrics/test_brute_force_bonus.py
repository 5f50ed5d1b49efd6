"""Adapted BLEU and ROUGE-L against nested loops, and the paper's worked examples."""

from __future__ import annotations

import math
from collections import Counter
from itertools import compress

import numpy as np
import pytest

from helpers import as_table
from oracles import (
    Words,
    assert_scores,
    lcs_length,
    n_clipped,
    random_rows,
    random_text,
    split_row,
)
from qaeval_core import Scorer
from qaeval_core.families.words.bonus import bonus_lcs, bonus_ngrams
from qaeval_core.families.words.rows import Tokenizers, WordTables
from qaeval_core.metrics.adapted import add_bonus

Row = dict[str, object]
# Case, blanks and hyphens do not matter.
TYPES = ("yes_no", "Yes-No", "entity", "ENTITY", "description", "number", "", None)
OPINIONS = ("yes", "No", " DEPENDS ", "maybe", "", None)
# Shortened from examples 1 to 4 of the paper; a full stop is a word.
YES_NO_EXAMPLE: Row = {
    "candidate": "Skipping rope is an aerobic exercise.",
    "references": [
        "Skipping rope is a kind of aerobic exercise with low intensity.",
        "Skipping rope can be regarded as an aerobic exercise only when skipping for a long time.",
    ],
    "answer_type": "yes_no",
    "candidate_opinion": "Yes",
    "reference_opinions": ["Yes", "Depends"],
    "entities": None,
}
ENTITY_EXAMPLE: Row = {
    "candidate": "Qin unified China in 221 BC after the war against other kingdoms which lasted "
    "ten years.",
    "references": ["Qin unified China in ten years, from 230 BC to 221 BC."],
    "answer_type": "entity",
    "candidate_opinion": None,
    "reference_opinions": None,
    "entities": ["ten years", "230 BC", "221 BC"],
}


def bonus_rows() -> list[Row]:
    """Return random rows with types, opinions and entities, some of them missing or wrong."""
    chance = np.random.default_rng(8)
    rows = random_rows(seed=9)
    for row in rows:
        references = row["references"]
        assert isinstance(references, list)
        n_opinions = len(references) + int(chance.choice([0, 0, 0, 0, 1]))
        opinions = [OPINIONS[i] for i in chance.choice([0, 0, 1, 2, 4, 5], size=n_opinions)]
        row["answer_type"] = TYPES[chance.choice([0, 0, 1, 2, 2, 3, 4, 5, 6, 7])]
        row["candidate_opinion"] = OPINIONS[chance.choice([0, 0, 0, 1, 2, 3, 4, 5])]
        row["reference_opinions"] = None if chance.random() < 0.1 else opinions
        entities = [random_text(chance, "abcd", most=3) for _ in range(chance.integers(0, 4))]
        row["entities"] = None if chance.random() < 0.1 else [*entities, *entities[:1]]
    return rows


def _reference_kind(row: Row) -> str:
    """Return the bonus of a row, by the words of the documentation."""
    kind = str(row["answer_type"] or "").lower().replace("-", "_").strip()
    opinions = row["reference_opinions"]
    references, entities = row["references"], row["entities"]
    assert isinstance(references, list)
    if kind == "entity":
        return "entity" if any(entities or []) else "missing_entities"
    if kind != "yes_no":
        return kind if kind == "description" else f"{'unknown' if kind else 'missing'}_answer_type"
    if not row["candidate_opinion"]:
        return "missing_candidate_opinion"
    if not any(opinions or []):
        return "missing_reference_opinions"
    assert isinstance(opinions, list)
    if len(opinions) != len(references):
        return "opinions_do_not_pair_with_references"
    known = {"yes", "no", "depends"}
    given = [str(word).strip().lower() for word in [row["candidate_opinion"], *opinions] if word]
    return "yes_no" if set(given) <= known else "unknown_opinion"


def _agreeing(row: Row) -> list[bool]:
    """Return which references have the candidate's opinion."""
    own = str(row["candidate_opinion"]).strip().lower()
    opinions = row["reference_opinions"]
    assert isinstance(opinions, list)
    return [str(opinion).strip().lower() == own for opinion in opinions]


def _entity_words(row: Row) -> list[Words]:
    entities = row["entities"]
    assert isinstance(entities, list)
    return [entity.split() for entity in entities]


def _reference_adapted_bleu_4(row: Row, *, alpha: float, beta: float) -> float | None:
    candidate, references = split_row(row)
    if not references:
        return None
    kind = _reference_kind(row)
    weight, rewarded = 0.0, []
    if kind == "yes_no":
        weight, rewarded = alpha, list(compress(references, _agreeing(row)))
    elif kind == "entity":
        weight, rewarded = beta, _entity_words(row)
    closest = min((abs(len(words) - len(candidate)), len(words)) for words in references)[1]
    if not candidate:
        return float(closest == 0)
    product = 1.0
    for n in (1, 2, 3, 4):
        bonus = weight * n_clipped(candidate, rewarded, n)
        total = max(len(candidate) - n + 1, 0) + bonus
        product *= (n_clipped(candidate, references, n) + bonus) / total if total else 0.0
    return product**0.25 * math.exp(min(0.0, 1 - closest / len(candidate)))


def _contains(text: Words, part: Words) -> bool:
    return any(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))


def _reference_adapted_rouge_l(
    row: Row, *, alpha: float, beta: float, gamma: float
) -> float | None:
    candidate, references = split_row(row)
    kind = _reference_kind(row)
    agrees = _agreeing(row) if kind == "yes_no" else [False] * len(references)
    distinct = {tuple(entity) for entity in _entity_words(row)} if kind == "entity" else set()
    found = beta * sum(len(entity) for entity in distinct if _contains(candidate, list(entity)))
    precisions, recalls = [], []
    for words, does_agree in zip(references, agrees, strict=True):
        lcs = lcs_length(candidate, words)
        bonus = alpha * lcs if does_agree else found
        is_empty = not candidate and not words
        below = len(candidate) + bonus, len(words) + bonus
        parts = [1.0 if is_empty else (lcs + bonus) / total if total else 0.0 for total in below]
        precisions.append(parts[0])
        recalls.append(parts[1])
    if not references:
        return None
    p, r = max(precisions), max(recalls)
    return (1 + gamma**2) * p * r / (r + gamma**2 * p) if p + r else 0.0


def test_adapted_metrics_of_random_rows_are_brute_force() -> None:
    """Protects from a bonus for a neighbor's opinion or entities, and from two weights swapped."""
    rows = bonus_rows()
    weights = {"alpha": 2.5, "beta": 0.75}
    metrics = {
        "adapted_bleu_4": {"tokenizer": "whitespace", **weights},
        "adapted_rouge_l": {"tokenizer": "whitespace", "gamma": 1.5, **weights},
    }
    scores = as_table(Scorer(metrics).score(rows))
    kinds = [_reference_kind(row) for row in rows]
    assert set(Counter(kinds)) >= {"yes_no", "entity", "description", "unknown_opinion"}
    assert scores["adapted_bleu_4_bonus"].to_pylist() == kinds
    assert scores["adapted_rouge_l_bonus"].to_pylist() == kinds
    bleu = [_reference_adapted_bleu_4(row, **weights) for row in rows]
    assert_scores(scores["adapted_bleu_4"].to_pylist(), bleu)
    rouge = [_reference_adapted_rouge_l(row, gamma=1.5, **weights) for row in rows]
    assert_scores(scores["adapted_rouge_l"].to_pylist(), rouge)


def _alone(row: Row) -> list[Row]:
    """Return the row once for each of its references."""
    references, opinions = row["references"], row["reference_opinions"]
    assert isinstance(references, list)
    kind = _reference_kind(row)
    has_bonus = kind in ("yes_no", "entity")
    return [
        {
            **row,
            "answer_type": row["answer_type"] if has_bonus else None,
            "references": [reference],
            "reference_opinions": opinions[i : i + 1] if isinstance(opinions, list) else None,
        }
        for i, reference in enumerate(references)
    ]


def test_the_best_single_reference_has_the_bonus_of_its_own_opinion() -> None:
    """Protects from an agreeing reference that rewards matches with another one."""
    rows = bonus_rows()
    options = {"tokenizer": "whitespace", "over_references": "max", "alpha": 2.5, "beta": 0.75}
    metrics = {"adapted_bleu_4": options, "adapted_rouge_l": options}
    scores = as_table(Scorer(metrics).score(rows))
    weights = {"alpha": 2.5, "beta": 0.75}
    bleu = [
        max((_reference_adapted_bleu_4(own, **weights) or 0.0 for own in _alone(row)), default=None)
        for row in rows
    ]
    assert_scores(scores["adapted_bleu_4"].to_pylist(), bleu)
    rouge = [
        max(
            (_reference_adapted_rouge_l(own, gamma=1.2, **weights) or 0.0 for own in _alone(row)),
            default=None,
        )
        for row in rows
    ]
    assert_scores(scores["adapted_rouge_l"].to_pylist(), rouge)


def test_rows_without_bonus_are_scored_by_the_plain_metrics() -> None:
    """Protects from a missing opinion turned into a missing score, or into a bonus."""
    rows = [
        {**row, "answer_type": kind} for row in bonus_rows()[:40] for kind in ("description", None)
    ]
    metrics = {
        "bleu_4": {},
        "adapted_bleu_4": {},
        "rouge_l": {"tokenizer": "13a", "beta": 1.2},
        "adapted_rouge_l": {},
    }
    scores = as_table(Scorer(metrics).score(rows))
    for name in ("bleu_4", "rouge_l"):
        assert_scores(scores[f"adapted_{name}"].to_pylist(), scores[name].to_pylist())


@pytest.mark.parametrize(
    ("row", "plain_p2", "adapted_p2", "n_bonus"),
    [(YES_NO_EXAMPLE, 4 / 6, 7 / 9, 3), (ENTITY_EXAMPLE, 5 / 16, 7 / 18, 2)],
    ids=["example 1", "example 2"],
)
def test_bigram_precisions_are_those_of_the_paper(
    row: Row, plain_p2: float, adapted_p2: float, n_bonus: int
) -> None:
    """Protects from bonus counts of other bigrams: .67 -> .78 and .31 -> .39 in print."""
    options = {"tokenizer": "13a", "lowercase": True, "stemming": "none"}
    values = {role: [value] for role, value in row.items()}
    found = bonus_ngrams(values, options, WordTables(Tokenizers()))()
    matches, bonus = (np.array([found[f"{name}_2"][0].as_py()[0]]) for name in ("matches", "bonus"))
    totals = np.array([found["n_candidate"][0].as_py() - 1])
    assert matches / totals == pytest.approx(plain_p2)
    assert bonus == n_bonus
    above, below = add_bonus(matches=matches, totals=totals, bonus=bonus, weight=1.0)
    assert above / below == pytest.approx(adapted_p2)


@pytest.mark.parametrize(
    ("row", "plain", "adapted", "lcs"),
    [(YES_NO_EXAMPLE, 0.632, 0.774, 6), (ENTITY_EXAMPLE, 0.452, 0.564, 7)],
    ids=["example 3", "example 4"],
)
def test_rouge_l_is_that_of_the_paper(row: Row, plain: float, adapted: float, lcs: int) -> None:
    """Protects from an entity found in pieces, or a bonus for the reference that disagrees.

    The paper prints .59 for example 3, which is the value without the full stop, and averages
    precision and recall alike, so gamma is 1.
    """
    weights = {"alpha": 1.0, "beta": 1.0, "gamma": 1.0}
    metrics = {"adapted_rouge_l": weights, "rouge_l": {"tokenizer": "13a"}}
    scores = as_table(Scorer(metrics).score([row]))
    assert round(scores["adapted_rouge_l"][0].as_py(), 3) == adapted
    only_first = {**row, "references": list(row["references"])[:1]}  # type: ignore[call-overload]
    assert round(as_table(Scorer(metrics).score([only_first]))["rouge_l"][0].as_py(), 3) == plain
    options = {"tokenizer": "13a", "lowercase": True, "stemming": "none"}
    values = {role: [value] for role, value in row.items()}
    found = bonus_lcs(values, options, WordTables(Tokenizers()))()
    assert found["lcs"][0].as_py()[0] == lcs
    assert found["agrees"][0].as_py()[1:] in ([], [False])
