"""Transformers peers: Roundtrip, KPQA and MoverScore as people write them.

With transformers, in batches of 32, longest first, padded to their longest; POT for transport.
Like their authors' programs, they compute for each row what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qaeval_core.models.record import MAX_ANSWER_TOKENS

Floats = NDArray[np.float64]

_BATCH = 32


class _Model:
    """A model and its tokenizer, run in batches of similar length."""

    def __init__(self, folder: Path, kind: str, precision: str, *, is_compiled: bool) -> None:
        import torch
        import transformers

        self._without_gradients = torch.inference_mode
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = getattr(transformers, kind).from_pretrained(folder, attn_implementation="sdpa")
        self.model = model.eval()
        if precision == "bf16":
            self.model.bfloat16()
        if is_compiled:
            self.model.forward = torch.compile(self.model.forward, dynamic=True)

    def by_row(
        self, read: Callable[[Any, NDArray[np.bool_]], Any], *texts: Sequence[str]
    ) -> list[Any]:
        """Return of each row what ``read`` makes of its outputs and the tokens of its last text."""
        found: list[Any] = [None] * len(texts[0])
        order = sorted(range(len(texts[0])), key=lambda i: -sum(len(own[i]) for own in texts))
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            batch = self._tokenizer(
                *([own[i] for i in rows] for own in texts),
                padding=True,
                truncation="longest_first" if len(texts) == 1 else "only_second",
                return_tensors="pt",
            )
            with self._without_gradients():
                output = self.model(**batch).to_tuple()
            parts = [part.float().numpy() for part in output if part.ndim > 1]
            for place, row in enumerate(rows):
                is_last = [side == len(texts) - 1 for side in batch.sequence_ids(place)]
                found[row] = read([part[place] for part in parts], np.array(is_last))
        return found


def roundtrip_peer(folders: Sequence[Path], **ways: Any) -> Callable[..., Floats]:
    """Return the probability of the best span, of all spans of the context."""
    reader = _Model(folders[0], "AutoModelForQuestionAnswering", **ways)

    def confidence(output: Any, is_context: NDArray[np.bool_]) -> float:
        first, last = (logits[is_context].astype(np.float64) for logits in output)
        scores = first[:, None] + last[None]
        ahead = np.arange(len(last))[None] - np.arange(len(first))[:, None]
        spans = scores[(ahead >= 0) & (ahead < MAX_ANSWER_TOKENS)]
        return float(1 / np.exp(spans - spans.max()).sum())

    def score(questions: Sequence[str], contexts: Sequence[str], _: Sequence[str]) -> Floats:
        return np.array(reader.by_row(confidence, questions, contexts))

    return score


def moverscore_peer(folders: Sequence[Path], **ways: Any) -> Callable[..., Floats]:
    """Return 1 less the cost of transport, by POT, a pair at a time."""
    import ot
    from scipy.spatial.distance import cdist

    encoder = _Model(folders[0], "AutoModel", **ways)

    def score(candidates: Sequence[str], references: Sequence[str]) -> Floats:
        vectors = encoder.by_row(_unit_vectors, [*candidates, *references])
        found = []
        for own, other in zip(vectors[: len(candidates)], vectors[len(candidates) :], strict=True):
            costs = cdist(own, other)
            found.append(1 - ot.emd2([], [], costs) if costs.size else np.nan)
        return np.array(found)

    return score


def kpqa_peer(folders: Sequence[Path], **ways: Any) -> Callable[..., Floats]:
    """Return BERTScore-KPQA; BLEU-1 and ROUGE-L, which cost no model, are left out."""
    from scipy.special import softmax

    from qaeval_export.loading import in_span_label

    classifier = _Model(folders[0], "AutoModelForTokenClassification", **ways)
    encoder = _Model(folders[1], "AutoModel", **ways)
    label = in_span_label(classifier.model.config)

    def weights(output: Any, is_text: NDArray[np.bool_]) -> Floats:
        own: Floats = softmax(output[0], axis=1)[is_text, label]
        return own

    def score(
        questions: Sequence[str], candidates: Sequence[str], references: Sequence[str]
    ) -> Floats:
        texts = [*candidates, *references]
        weighed = classifier.by_row(weights, [*questions, *questions], texts)
        vectors = encoder.by_row(_all_vectors, texts)
        n = len(candidates)
        return np.array(
            [_weighted_f1(vectors[i], vectors[n + i], weighed[i], weighed[n + i]) for i in range(n)]
        )

    return score


def _unit_vectors(output: Any, is_own: NDArray[np.bool_]) -> NDArray[np.float32]:
    vectors = output[0][is_own]
    unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def _all_vectors(output: Any, is_own: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the vectors of a text with those of [CLS] and [SEP], at its ends."""
    last = int(np.flatnonzero(is_own)[-1]) if is_own.any() else 0
    return _unit_vectors(output, np.arange(len(is_own)) <= last + 1)


def _weighted_f1(own: Any, other: Any, own_weights: Floats, other_weights: Floats) -> float:
    if not len(own_weights) or not len(other_weights):
        return float("nan")
    cosines = own @ other.T
    p = float(own_weights @ cosines[1:-1].max(axis=1) / own_weights.sum())
    r = float(other_weights @ cosines[:, 1:-1].max(axis=0) / other_weights.sum())
    return 2 * p * r / (p + r)
