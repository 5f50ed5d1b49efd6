"""Parity: an exported graph against torch fp32 on fixed texts.

The torch side (``export.eager``) is computed apart from the graph's own module: one row at a time,
without padding, from what transformers returns. The graph's side runs padded batches here. So an
error in the module, in its export or in a conversion all show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from scipy.stats import spearmanr

from export.facts import ModelFacts
from export.loading import LoadedModel
from export.texts import parity_pairs
from qaeval_core.models.record import ArtifactRequest

__all__ = ["Parity", "ParityRow", "compare", "parity_rows", "run_graph"]

# Rows of one batch; texts of unlike length stand together, so padding is exercised.
_N_BATCH = 8

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ParityRow:
    """Token ids of one pair: the candidate's, the context's, and the model's whole row.

    ``second_start`` is the position of the context's first token; 0 in rows of one text.
    """

    ids: list[int]
    candidate_ids: list[int]
    context_ids: list[int]
    second_start: int = 0


@dataclass(frozen=True, slots=True)
class Parity:
    """How far two lists of values are apart."""

    max_abs_diff: float
    spearman: float
    n_values: int


def parity_rows(
    loaded: LoadedModel,
    facts: ModelFacts,
    request: ArtifactRequest,
    pairs: Sequence[tuple[str, str]] | None = None,
) -> list[ParityRow]:
    """Encode the fixed pairs as a model's rows, each cut to fit; a text of its own where one is."""
    rows = []
    for candidate, context in parity_pairs() if pairs is None else pairs:
        first = loaded.tokenizer.encode(candidate, add_special_tokens=False).ids
        second = loaded.tokenizer.encode(context, add_special_tokens=False).ids
        if not first or not second:
            continue  # A vocabulary may know nothing of a script.
        if facts.template is None:
            assert facts.bos_id is not None
            room = facts.max_positions - 1
            first = first[: room // 2]
            second = second[: room - len(first)]
            rows.append(ParityRow([facts.bos_id, *second, *first], first, second))
            continue
        frame = facts.template
        if request.graph in ("sentence_vector", "token_vectors"):
            room = facts.max_positions - len(frame.prefix_ids) - len(frame.suffix_ids)
            rows += [
                ParityRow([*frame.prefix_ids, *ids[:room], *frame.suffix_ids], ids[:room], [])
                for ids in (first, second)
            ]
            continue
        n_special = len(frame.prefix_ids) + len(frame.middle_ids) + len(frame.suffix_ids)
        room = facts.max_positions - n_special
        first = first[: room // 2]
        second = second[: room - len(first)]
        head = [*frame.prefix_ids, *first, *frame.middle_ids]
        rows.append(ParityRow([*head, *second, *frame.suffix_ids], first, second, len(head)))
    return rows


def run_graph(
    session: ort.InferenceSession,
    facts: ModelFacts,
    request: ArtifactRequest,
    rows: Sequence[ParityRow],
) -> list[Values]:
    """Run the graph on padded batches and return each row's values."""
    run = _RUNS[request.graph]
    batches = [rows[i : i + _N_BATCH] for i in range(0, len(rows), _N_BATCH)]
    return [values for batch in batches for values in run(session, facts, batch)]


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


def _padded(rows: Sequence[ParityRow], padding_id: int) -> NDArray[np.int64]:
    n_longest = max(len(row.ids) for row in rows)
    padded = [row.ids + [padding_id] * (n_longest - len(row.ids)) for row in rows]
    return np.asarray(padded, dtype=np.int64)


def _text_inputs(facts: ModelFacts, rows: Sequence[ParityRow]) -> dict[str, NDArray[np.int64]]:
    assert facts.template is not None
    return {
        "input_ids": _padded(rows, facts.template.suffix_ids[-1]),
        "n_tokens": np.asarray([len(row.ids) for row in rows]),
    }


def _pair_inputs(facts: ModelFacts, rows: Sequence[ParityRow]) -> dict[str, NDArray[np.int64]]:
    second_start = np.asarray([row.second_start for row in rows])
    return {**_text_inputs(facts, rows), "second_start": second_start}


def _run_precision(
    session: ort.InferenceSession, facts: ModelFacts, rows: Sequence[ParityRow]
) -> list[Values]:
    return list(np.asarray(session.run(None, _matching_inputs(facts, rows))[0], dtype=np.float64))


def _run_matches(
    session: ort.InferenceSession, facts: ModelFacts, rows: Sequence[ParityRow]
) -> list[Values]:
    # A wrong position has another worth. Positions themselves may differ where attentions tie.
    worth = np.asarray(session.run(None, _matching_inputs(facts, rows))[0], dtype=np.float64)[
        ..., 1
    ]
    return [own[:, : len(row.candidate_ids)].ravel() for own, row in zip(worth, rows, strict=True)]


def _matching_inputs(facts: ModelFacts, rows: Sequence[ParityRow]) -> dict[str, NDArray[np.int64]]:
    n_candidate = np.asarray([len(row.candidate_ids) for row in rows])
    return {
        **_text_inputs(facts, rows),
        "n_candidate": n_candidate,
        "context_start": np.asarray([row.second_start for row in rows]),
        "n_context": np.asarray([len(row.context_ids) for row in rows]),
        "candidate_positions": np.arange(1, n_candidate.max() + 1),
    }


def _run_logprobs(
    session: ort.InferenceSession, facts: ModelFacts, rows: Sequence[ParityRow]
) -> list[Values]:
    assert facts.bos_id is not None
    ids = _padded(rows, facts.bos_id)
    asked = [(0, len(row.ids) - 1) for row in rows]
    inputs = {
        "input_ids": ids,
        "prefix_rows": _asked_rows(asked, ids.shape[1]),
        "target_ids": np.concatenate([np.asarray(row.ids[1:]) for row in rows]),
    }
    return _cut(session.run(None, inputs)[0], asked)


def _run_pair_score(
    session: ort.InferenceSession, facts: ModelFacts, rows: Sequence[ParityRow]
) -> list[Values]:
    found = session.run(None, _pair_inputs(facts, rows))[0]
    return list(np.asarray(found, dtype=np.float64)[:, None])


def _run_sentence_vector(
    session: ort.InferenceSession, facts: ModelFacts, rows: Sequence[ParityRow]
) -> list[Values]:
    found = session.run(None, _text_inputs(facts, rows))[0]
    return list(np.asarray(found, dtype=np.float64)[:, None])


def _run_token_vectors(
    session: ort.InferenceSession, facts: ModelFacts, rows: Sequence[ParityRow]
) -> list[Values]:
    inputs = _text_inputs(facts, rows)
    asked = [(0, len(row.ids)) for row in rows]
    inputs["token_rows"] = _asked_rows(asked, inputs["input_ids"].shape[1])
    return _cut(session.run(None, inputs)[0], asked)


def _run_keyphrase_weights(
    session: ort.InferenceSession, facts: ModelFacts, rows: Sequence[ParityRow]
) -> list[Values]:
    inputs = _pair_inputs(facts, rows)
    asked = [(row.second_start, row.second_start + len(row.context_ids)) for row in rows]
    inputs["token_rows"] = _asked_rows(asked, inputs["input_ids"].shape[1])
    return _cut(session.run(None, inputs)[0], asked)


def _asked_rows(asked: Sequence[tuple[int, int]], width: int) -> NDArray[np.int64]:
    """Return row * width + position of the asked positions of each row."""
    parts = [np.arange(start, stop) + i * width for i, (start, stop) in enumerate(asked)]
    return np.concatenate(parts)


def _cut(found: NDArray[np.float32], asked: Sequence[tuple[int, int]]) -> list[Values]:
    edges = np.cumsum([stop - start for start, stop in asked])[:-1]
    return np.split(np.asarray(found, dtype=np.float64), edges)


_RUNS: Mapping[
    str, Callable[[ort.InferenceSession, ModelFacts, Sequence[ParityRow]], list[Values]]
] = {
    "relevance_matching": _run_precision,
    "token_logprobs": _run_logprobs,
    "pair_score": _run_pair_score,
    "sentence_vector": _run_sentence_vector,
    "token_vectors": _run_token_vectors,
    "keyphrase_weights": _run_keyphrase_weights,
    "relevance_matches": _run_matches,
}
