"""Eager: the values of a graph, from what transformers returns for one row alone, in torch fp32.

The oracles of ``qaeval_export.parity``; they share no code with ``qaeval_export.graphs``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from qaeval_core.models.record import MAX_ANSWER_TOKENS, N_ANSWER_SPANS, ArtifactRequest
from qaeval_export.loading import LoadedModel, in_span_label, wanted_layer
from qaeval_export.parity import Oracle, ParityRow, Values
from qaeval_export.sentence_files import SentenceFiles


def eager_values(
    loaded: LoadedModel,
    request: ArtifactRequest,
    rows: Sequence[ParityRow],
    *,
    oracle: Oracle | None = None,
) -> list[Values]:
    """Compute each row's values, by the oracle of a plugin's graph or by ours."""
    compute = oracle or ORACLES[request.graph]
    with torch.no_grad():
        return [compute(loaded, request, row) for row in rows]


def _call(loaded: LoadedModel, row: ParityRow, **asked: bool) -> Any:
    """Run an encoder, or an encoder with a head, on one row; the second text is segment 1."""
    inputs = {
        "input_ids": torch.tensor([row.ids]),
        "attention_mask": torch.ones(1, len(row.ids), dtype=torch.long),
    }
    n_types = getattr(loaded.config, "type_vocab_size", 1)
    if n_types > 1:
        has_second = bool(row.second_start)
        segment = [int(has_second and i >= row.second_start) for i in range(len(row.ids))]
        inputs["token_type_ids"] = torch.tensor([segment])
    return loaded.model(**inputs, **asked)


def _logprobs(loaded: LoadedModel, _: ArtifactRequest, row: ParityRow) -> Values:
    ids = torch.tensor([row.ids])
    logits = loaded.model(input_ids=ids).logits[0].double()
    logprobs = torch.log_softmax(logits, dim=-1)[:-1].gather(1, ids[0, 1:, None])
    return np.asarray(logprobs.squeeze(1).numpy())


def _precision(loaded: LoadedModel, request: ArtifactRequest, row: ParityRow) -> Values:
    if request.options["aggregate"] == "mover":
        return _matches(loaded, request, row)
    worth = _matches(loaded, request, row).reshape(-1, len(row.candidate_ids))
    return np.asarray(worth.mean(axis=1))


def _matches(loaded: LoadedModel, request: ArtifactRequest, row: ParityRow) -> Values:
    """Return what each candidate token is worth in each layer, one layer after another."""
    output = _call(loaded, row, output_attentions=True, output_hidden_states=True)
    candidate = slice(1, 1 + len(row.candidate_ids))
    context = slice(row.second_start, row.second_start + len(row.context_ids))
    values = []
    for attention, state in zip(output.attentions, output.hidden_states[1:], strict=True):
        seen = attention[0].amax(dim=0)[candidate, context]
        unit = state[0].double() / state[0].double().norm(dim=-1, keepdim=True)
        cosine = unit[candidate] @ unit[context].T
        values.append(_match(seen, cosine, request).flatten().numpy())
    return np.concatenate(values)


def _match(attention: torch.Tensor, cosine: torch.Tensor, request: ArtifactRequest) -> torch.Tensor:
    if request.options["matching"] == "attended":
        return cosine.gather(1, attention.argmax(dim=1, keepdim=True))
    if request.options["aggregate"] == "mover":
        return cosine
    worth = attention * cosine
    return worth.amax(dim=1) if request.options["aggregate"] == "max" else worth.mean(dim=1)


def _pair_score(loaded: LoadedModel, _: ArtifactRequest, row: ParityRow) -> Values:
    return np.asarray(_call(loaded, row).logits[0].double().numpy())


def _sentence_vector(loaded: LoadedModel, _: ArtifactRequest, row: ParityRow) -> Values:
    states = _call(loaded, row).last_hidden_state[0].double()
    pooled = {"mean": states.mean(dim=0), "cls": states[0], "max": states.amax(dim=0)}
    vector = pooled[SentenceFiles(loaded.source, "SentenceTransformer").pooling()]
    return np.asarray((vector / vector.norm()).numpy())[None]


def _token_vectors(loaded: LoadedModel, request: ArtifactRequest, row: ParityRow) -> Values:
    states = _call(loaded, row, output_hidden_states=True).hidden_states
    chosen = states[wanted_layer(loaded, request)][0].double()
    return np.asarray((chosen / chosen.norm(dim=-1, keepdim=True)).numpy())


def _keyphrase_weights(loaded: LoadedModel, _: ArtifactRequest, row: ParityRow) -> Values:
    logits = _call(loaded, row).logits[0].double()
    weights = torch.softmax(logits, dim=-1)[:, in_span_label(loaded.config)]
    return np.asarray(weights[row.second_start : row.second_start + len(row.context_ids)].numpy())


def _answer_spans(loaded: LoadedModel, _: ArtifactRequest, row: ParityRow) -> Values:
    """Return the sum over all spans, "no answer", and the best spans that begin elsewhere."""
    output = _call(loaded, row)
    first, last = output.start_logits[0].double(), output.end_logits[0].double()
    stop = row.second_start + len(row.context_ids)
    scores = [
        first[i] + last[i : min(i + MAX_ANSWER_TOKENS, stop)] for i in range(row.second_start, stop)
    ]
    best = torch.stack([own.max() for own in scores]).sort(descending=True).values
    total = torch.cat(scores).logsumexp(dim=0)
    return np.asarray([float(total), float(first[0] + last[0]), *best[:N_ANSWER_SPANS].tolist()])


ORACLES: Mapping[str, Oracle] = {
    "relevance_matching": _precision,
    "token_logprobs": _logprobs,
    "pair_score": _pair_score,
    "sentence_vector": _sentence_vector,
    "token_vectors": _token_vectors,
    "keyphrase_weights": _keyphrase_weights,
    "relevance_matches": _matches,
    "answer_span": _answer_spans,
}
