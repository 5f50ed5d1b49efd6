"""Parity: an exported graph against torch fp32 on fixed texts.

The torch side is computed apart from the graph's own module: one pair at a time, without padding,
from the hidden states, attentions and logits that transformers returns. So an error in the module,
in its export or in a conversion all show here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr

from export.facts import ModelFacts
from export.loading import LoadedModel
from export.texts import parity_pairs
from qaeval_core.models.record import ArtifactRequest

__all__ = ["Parity", "compare", "eager_values", "parity_rows", "run_graph"]

# Rows of one batch; texts of unlike length stand together, so padding is exercised.
_N_BATCH = 8


@dataclass(frozen=True, slots=True)
class ParityRow:
    """Token ids of one pair: the candidate's, the context's, and the model's whole row."""

    ids: list[int]
    candidate_ids: list[int]
    context_ids: list[int]


@dataclass(frozen=True, slots=True)
class Parity:
    """How far two lists of values are apart."""

    max_abs_diff: float
    spearman: float
    n_values: int


def parity_rows(
    loaded: LoadedModel, facts: ModelFacts, pairs: Sequence[tuple[str, str]] | None = None
) -> list[ParityRow]:
    """Encode the fixed pairs as a model's rows, each cut to fit."""
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
            ids = [facts.bos_id, *second, *first]
        else:
            frame = facts.template
            n_special = len(frame.prefix_ids) + len(frame.middle_ids) + len(frame.suffix_ids)
            room = facts.max_positions - n_special
            first = first[: room // 2]
            second = second[: room - len(first)]
            ids = [*frame.prefix_ids, *first, *frame.middle_ids, *second, *frame.suffix_ids]
        rows.append(ParityRow(ids, first, second))
    return rows


def eager_values(
    loaded: LoadedModel, facts: ModelFacts, request: ArtifactRequest, rows: Sequence[ParityRow]
) -> list[NDArray[np.float64]]:
    """Compute each row's values from what transformers returns for it alone."""
    with torch.no_grad():
        if facts.template is None:
            return [_eager_logprobs(loaded, row) for row in rows]
        return [_eager_precision(loaded, facts, request, row) for row in rows]


def run_graph(
    session: ort.InferenceSession, facts: ModelFacts, rows: Sequence[ParityRow]
) -> list[NDArray[np.float64]]:
    """Run the graph on padded batches and return each row's values."""
    run = _run_logprobs if facts.template is None else _run_precision
    batches = [rows[i : i + _N_BATCH] for i in range(0, len(rows), _N_BATCH)]
    return [values for batch in batches for values in run(session, facts, batch)]


def compare(
    found: Sequence[NDArray[np.float64]], expected: Sequence[NDArray[np.float64]]
) -> Parity:
    """Compare values one by one, and the order of the rows by the means of their values.

    A value that is not finite makes the difference infinite.
    """
    left, right = (
        np.concatenate([v.ravel() for v in found]),
        np.concatenate([v.ravel() for v in expected]),
    )
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return Parity(float("inf"), 0.0, left.size)
    rank = spearmanr([v.mean() for v in found], [v.mean() for v in expected]).statistic
    return Parity(float(np.abs(left - right).max()), float(np.nan_to_num(rank)), left.size)


def _eager_logprobs(loaded: LoadedModel, row: ParityRow) -> NDArray[np.float64]:
    ids = torch.tensor([row.ids])
    logits = loaded.model(input_ids=ids).logits[0].double()
    logprobs = torch.log_softmax(logits, dim=-1)[:-1].gather(1, ids[0, 1:, None])
    return np.asarray(logprobs.squeeze(1).numpy())


def _eager_precision(
    loaded: LoadedModel, facts: ModelFacts, request: ArtifactRequest, row: ParityRow
) -> NDArray[np.float64]:
    assert facts.template is not None
    start = 1 + len(row.candidate_ids) + len(facts.template.middle_ids)
    two_types = loaded.config.type_vocab_size > 1
    segment = [int(two_types and i >= start) for i in range(len(row.ids))]
    output = loaded.model(
        input_ids=torch.tensor([row.ids]),
        token_type_ids=torch.tensor([segment]),
        attention_mask=torch.ones(1, len(row.ids), dtype=torch.long),
        output_attentions=True,
        output_hidden_states=True,
    )
    candidate = slice(1, 1 + len(row.candidate_ids))
    context = slice(start, start + len(row.context_ids))
    values = []
    for attention, state in zip(output.attentions, output.hidden_states[1:], strict=True):
        seen = attention[0].amax(dim=0)[candidate, context]
        unit = state[0].double() / state[0].double().norm(dim=-1, keepdim=True)
        cosine = unit[candidate] @ unit[context].T
        values.append(_match(seen, cosine, request).mean().item())
    return np.asarray(values)


def _match(attention: torch.Tensor, cosine: torch.Tensor, request: ArtifactRequest) -> torch.Tensor:
    if request.options["matching"] == "attended":
        return cosine.gather(1, attention.argmax(dim=1, keepdim=True))
    worth = attention * cosine
    return worth.amax(dim=1) if request.options["aggregate"] == "max" else worth.mean(dim=1)


def _padded(rows: Sequence[ParityRow], padding_id: int) -> NDArray[np.int64]:
    n_longest = max(len(row.ids) for row in rows)
    padded = [row.ids + [padding_id] * (n_longest - len(row.ids)) for row in rows]
    return np.asarray(padded, dtype=np.int64)


def _run_precision(
    session: ort.InferenceSession, facts: ModelFacts, rows: Sequence[ParityRow]
) -> list[NDArray[np.float64]]:
    assert facts.template is not None
    n_candidate = np.asarray([len(row.candidate_ids) for row in rows])
    inputs = {
        "input_ids": _padded(rows, facts.template.suffix_ids[-1]),
        "n_tokens": np.asarray([len(row.ids) for row in rows]),
        "n_candidate": n_candidate,
        "context_start": 1 + n_candidate + len(facts.template.middle_ids),
        "n_context": np.asarray([len(row.context_ids) for row in rows]),
        "candidate_positions": np.arange(1, n_candidate.max() + 1),
    }
    return list(np.asarray(session.run(None, inputs)[0], dtype=np.float64))


def _run_logprobs(
    session: ort.InferenceSession, facts: ModelFacts, rows: Sequence[ParityRow]
) -> list[NDArray[np.float64]]:
    assert facts.bos_id is not None
    ids = _padded(rows, facts.bos_id)
    n_asked = [len(row.ids) - 1 for row in rows]
    starts = [i * ids.shape[1] for i in range(len(rows))]
    prefix_rows = [np.arange(start, start + n) for start, n in zip(starts, n_asked, strict=True)]
    inputs = {
        "input_ids": ids,
        "prefix_rows": np.concatenate(prefix_rows),
        "target_ids": np.concatenate([np.asarray(row.ids[1:]) for row in rows]),
    }
    values = np.asarray(session.run(None, inputs)[0], dtype=np.float64)
    return np.split(values, np.cumsum(n_asked)[:-1])
