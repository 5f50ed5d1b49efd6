"""Bonus: statistics of adapted BLEU and ROUGE-L: which bonus a row has, and how much."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.families.words.counts import (
    clipped,
    lcs_statistics,
    pooled_matches,
    pooled_ngrams,
    single_ngrams,
)
from qaeval_core.families.words.rows import (
    Compute,
    Pairs,
    WordStatistics,
    WordTables,
    lists,
    numbers,
)
from qaeval_core.metrics.adapted import ENTITY, YES_NO, bonus_kind, plain
from qaeval_core.metrics.words import MAX_ORDER
from qaeval_core.text.ngrams import IntArray

Values = Mapping[str, Sequence[Any]]


def bonus_ngrams(values: Values, options: Mapping[str, Any], texts: WordTables) -> Compute:
    """Count n-grams in common, and those in agreeing references or in entities."""
    kinds = bonus_kinds(values)
    table = texts.table(options)
    pairs = texts.pairs(table, values["candidate"], values["references"])
    is_single = options.get("over_references") == "max"
    rewarded = _named(values, kinds) if is_single else list(_rewarded(values, kinds))
    bonus_pairs = texts.pairs(table, values["candidate"], rewarded)
    agrees = np.array(list(chain.from_iterable(_agreeing(values, kinds))), dtype=bool)

    def compute() -> WordStatistics:
        if is_single:
            return {
                **single_ngrams(pairs, options),
                **_single_bonus(pairs, bonus_pairs, agrees),
                "bonus": pa.array(kinds, pa.string()),
            }
        return {
            **pooled_ngrams(pairs, options),
            **pooled_matches(bonus_pairs, "bonus", pairs.n_others > 0),
            "bonus": pa.array(kinds, pa.string()),
        }

    return compute


def _single_bonus(pairs: Pairs, named: Pairs, agrees: NDArray[np.bool_]) -> WordStatistics:
    """Return the bonus of each reference alone: its own matches, or those of the entities."""
    ones = np.ones(len(pairs.other), dtype=np.int64)
    matches = clipped(pairs, pairs.own_candidate, pairs.other, ones)
    entities = clipped(named, named.candidate, named.other, named.n_others)
    bonus = np.where(agrees[:, None], matches, entities[pairs.row])
    return {
        f"bonus_{order}": lists(bonus[:, order - 1], pairs.n_others)
        for order in range(1, MAX_ORDER + 1)
    }


def bonus_lcs(values: Values, options: Mapping[str, Any], texts: WordTables) -> Compute:
    """Measure common subsequences; say which references agree, and how long found entities are."""
    kinds = bonus_kinds(values)
    table = texts.table(options)
    pairs = texts.pairs(table, values["candidate"], values["references"])
    agrees = list(chain.from_iterable(_agreeing(values, kinds)))
    named = texts.pairs(table, values["candidate"], _named(values, kinds))

    def compute() -> WordStatistics:
        return {
            **lcs_statistics(pairs, options),
            "agrees": lists(np.array(agrees, dtype=bool), pairs.n_others),
            "n_entity_words": numbers(found_lengths(named)),
            "bonus": pa.array(kinds, pa.string()),
        }

    return compute


def found_lengths(pairs: Pairs) -> IntArray:
    """Return the summed lengths of each row's distinct others that its candidate holds whole.

    Words must follow each other without a gap.
    """
    sequences = [_joined(sequence) for sequence in pairs.table.sequences()]
    lengths = pairs.table.lengths
    found = np.zeros(len(pairs.candidate), dtype=np.int64)
    seen = set()
    rows, candidates = pairs.row.tolist(), pairs.own_candidate.tolist()
    for row, i, j in zip(rows, candidates, pairs.other.tolist(), strict=True):
        if (row, sequences[j]) not in seen and sequences[j] in sequences[i]:
            found[row] += lengths[j]
        seen.add((row, sequences[j]))
    return found


def _joined(sequence: str | list[int]) -> str:
    """Return words as a text in which a run of words is a substring."""
    if isinstance(sequence, str):
        return sequence
    return "".join(f",{number};" for number in sequence)


def bonus_kinds(values: Values) -> list[str]:
    """Return which bonus each row has, or why none."""
    n_rows = len(values["candidate"])
    columns = [
        values.get(role) or [None] * n_rows
        for role in ("answer_type", "candidate_opinion", "reference_opinions", "entities")
    ]
    return [
        bonus_kind(
            answer_type=answer_type,
            candidate_opinion=opinion,
            reference_opinions=opinions,
            entities=entities,
            n_references=len(references),
        )
        for answer_type, opinion, opinions, entities, references in zip(
            *columns, values["references"], strict=True
        )
    ]


def _agreeing(values: Values, kinds: Sequence[str]) -> Iterable[list[bool]]:
    """Yield, for each row, which of its references have the candidate's opinion."""
    for i, (kind, references) in enumerate(zip(kinds, values["references"], strict=True)):
        if kind == YES_NO:
            opinion = plain(values["candidate_opinion"][i])
            yield [plain(other) == opinion for other in values["reference_opinions"][i]]
        else:
            yield [False] * len(references)


def _entities(values: Values, n_rows: int) -> list[list[str]]:
    given = values.get("entities") or [None] * n_rows
    return [[entity for entity in own or () if entity] for own in given]


def _named(values: Values, kinds: Sequence[str]) -> list[list[str]]:
    """Return the entities of rows whose bonus they are."""
    entities = _entities(values, len(kinds))
    return [own if kind == ENTITY else [] for own, kind in zip(entities, kinds, strict=True)]


def _rewarded(values: Values, kinds: Sequence[str]) -> Iterable[list[str]]:
    """Yield, for each row, the texts whose n-grams count once more."""
    agreeing, entities = _agreeing(values, kinds), _entities(values, len(kinds))
    for i, (kind, agrees) in enumerate(zip(kinds, agreeing, strict=True)):
        if kind == ENTITY:
            yield entities[i]
        else:
            pairs = zip(values["references"][i], agrees, strict=True)
            yield [reference for reference, does in pairs if does]
