"""Parity: an exported graph against torch fp32 on fixed texts.

The torch side (``qaeval_export.eager``) is computed apart from the graph's own module: one row at a
time, without padding, from what transformers returns. The graph's side runs padded batches
(``qaeval_export.graphs``). So an error in the module, in its export or in a conversion all show.
Here are the texts, the rows of token ids that both sides read, and the comparison.

The texts are own sentences. Pairs vary in length from one word to about 200 tokens, in script and
in topic, because an error of a graph shows at some lengths and tokens only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr
from tokenizers import Tokenizer

from qaeval_core.models.record import ArtifactRequest
from qaeval_export.facts import ModelFacts

# Ranks of the fixed pairs by their mean value; below this, metrics would order texts differently.
MIN_SPEARMAN = 0.999

_CANDIDATES = (
    "Why?",
    "water",
    "Who built the lighthouse?",
    "When did the mill close its doors for the last time?",
    "How many boats were in the harbour on the morning of the storm?",
    "Wie heißt der Fluss, der durch die Stadt fließt?",
    "Où se trouve la bibliothèque de l'école ?",
    "What is the price of 3.5 kg of apples at €2.40 per kilogram?",
    "灯台はどこにありますか",
    "Which of the two sisters, the one who painted or the one who kept bees, moved to the island "
    "first, and what did she take with her?",
)

_SENTENCES = (
    "The lighthouse on the northern cliff was built in 1874 by two brothers from the village.",
    "Its lamp burned whale oil at first, later paraffin, and was made electric only in 1951.",
    "On the morning of the storm there were fourteen boats in the harbour and none at sea.",
    "The mill closed in the autumn of 1923; its owner, an old man by then, kept the key.",
    "Bees need water in summer, and they fly up to three kilometres to find it.",
    "Anna painted the sea every day, yet she never learned to swim.",
    "Der Fluss fließt durch die Altstadt, an der Mühle vorbei und weiter bis zum Meer.",
    "La bibliothèque de l'école est ouverte le mardi et le jeudi après-midi.",
    "灯台は北の崖の上にあります。",
    "A kilogram of apples costs €2.40, pears cost €3.10, and plums are sold by the basket.",
    "The train leaves at 07:45, stops at every station, and arrives shortly after noon.",
    "Nobody knew why the clock in the tower had stopped at a quarter past four.",
)

# How many sentences the contexts have, from short to long.
_CONTEXT_SENTENCES = (1, 2, 4, 8)


def parity_pairs() -> list[tuple[str, str]]:
    """Return the fixed (candidate, context) pairs.

    Examples
    --------
    >>> pairs = parity_pairs()
    >>> len(pairs), pairs[0]
    (40, ('Why?', 'Nobody knew why the clock in the tower had stopped at a quarter past four.'))
    """
    pairs = []
    for i, candidate in enumerate(_CANDIDATES):
        for j, n_sentences in enumerate(_CONTEXT_SENTENCES):
            start = 11 + 5 * i + 7 * j
            chosen = [_SENTENCES[(start + k) % len(_SENTENCES)] for k in range(n_sentences)]
            pairs.append((candidate, " ".join(chosen)))
    return pairs


Values = NDArray[np.float64]
TextPairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ParityRow:
    """Token ids of one pair: the candidate's, the context's, and the model's whole row.

    ``second_start`` is the position of the context's first token; 0 in rows of one text. A row is
    padded to ``width`` at least.
    """

    ids: list[int]
    candidate_ids: list[int]
    context_ids: list[int]
    second_start: int = 0
    width: int = 0


RowMaker = Callable[[Tokenizer, ModelFacts, TextPairs], list[ParityRow]]
# (loaded model, request, row) -> the row's values, in torch fp32.
Oracle = Callable[[Any, ArtifactRequest, ParityRow], Values]


def pair_rows(tokenizer: Tokenizer, facts: ModelFacts, pairs: TextPairs) -> list[ParityRow]:
    """Return each pair in an encoder's template, cut to fit."""
    frame = facts.template
    assert frame is not None
    n_special = len(frame.prefix_ids) + len(frame.middle_ids) + len(frame.suffix_ids)
    rows = []
    for first, second in _encoded(tokenizer, pairs, room=facts.max_positions - n_special):
        head = [*frame.prefix_ids, *first, *frame.middle_ids]
        rows.append(ParityRow([*head, *second, *frame.suffix_ids], first, second, len(head)))
    return rows


def text_rows(tokenizer: Tokenizer, facts: ModelFacts, pairs: TextPairs) -> list[ParityRow]:
    """Return both texts of each pair, one after the other, each in a row of its own."""
    frame = facts.template
    assert frame is not None
    room = facts.max_positions - len(frame.prefix_ids) - len(frame.suffix_ids)
    return [
        ParityRow([*frame.prefix_ids, *ids[:room], *frame.suffix_ids], ids[:room], [])
        for both in _encoded(tokenizer, pairs)
        for ids in both
    ]


def prompted_rows(tokenizer: Tokenizer, facts: ModelFacts, pairs: TextPairs) -> list[ParityRow]:
    """Return each pair as a causal LM reads it, the context before the candidate, cut to fit."""
    assert facts.bos_id is not None
    return [
        ParityRow([facts.bos_id, *second, *first], first, second)
        for first, second in _encoded(tokenizer, pairs, room=facts.max_positions - 1)
    ]


def _encoded(
    tokenizer: Tokenizer, pairs: TextPairs, *, room: int | None = None
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the token ids of both texts, cut to a room for both together."""
    for candidate, context in pairs:
        first = tokenizer.encode(candidate, add_special_tokens=False).ids
        second = tokenizer.encode(context, add_special_tokens=False).ids
        if not first or not second:
            continue  # A vocabulary may know nothing of a script.
        if room is not None:
            first = first[: room // 2]
            second = second[: room - len(first)]
        yield first, second


@dataclass(frozen=True, slots=True)
class Parity:
    """How far two lists of values are apart."""

    max_abs_diff: float
    spearman: float
    n_values: int


def compare(found: Sequence[Values], expected: Sequence[Values]) -> Parity:
    """Compare values one by one, and the order of the rows by the means of their values.

    Vectors (two axes, or one of unit length) are ranked by their product with the first row's.
    A value that is not finite makes the difference infinite.
    """
    left, right = (
        np.concatenate([v.ravel() for v in found]),
        np.concatenate([v.ravel() for v in expected]),
    )
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return Parity(float("inf"), 0.0, left.size)
    rank = spearmanr(_ranked(found), _ranked(expected)).statistic
    return Parity(float(np.abs(left - right).max()), float(np.nan_to_num(rank)), left.size)


def _ranked(values: Sequence[Values]) -> list[float]:
    if values[0].ndim < 2:
        return [float(v.mean()) for v in values]
    anchor = values[0].mean(axis=0)
    return [float(v.mean(axis=0) @ anchor) for v in values]
