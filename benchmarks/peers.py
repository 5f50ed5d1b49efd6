"""Peers: a fixed per-row loop, written like the reference programs of QRelScore's paper.

One pair a forward, eager attention, everything the model returns materialized: all attentions and
hidden states (LRM); logits of every position over the whole vocabulary, and the context's own
likelihood computed again for every row (GRG). Weights, tokenizer and windows are the same as ours.

But: this is no authors' code; it is what their programs do, without their differences in formula.
"""

from __future__ import annotations

import contextlib
import copy
import io
from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.data import Rows
from qaeval_core.families.model_units import target_windows
from qaeval_core.models.record import ArtifactRequest
from qaeval_core.models.registry import resolve_model
from qaeval_core.text.encode import equal_windows
from qaeval_export.loading import LoadedModel, load_model, make_facts


class LoopPeer(ABC):
    """What scores one row after another, on a model of PyTorch.

    Parameters
    ----------
    model : str
        Its name.
    role : str
        Of the model.
    device : {"cpu", "cuda"}
        fp16 on a GPU.
    precision : {"fp32", "bf16"}
        On a CPU.
    """

    def __init__(self, model: str, *, role: str, device: str = "cpu", precision: str) -> None:
        self._loaded = _load(model, role=role, device=device, precision=precision)
        self._device = device
        self._forward: Any = self._loaded.model

    def compiled(self) -> Self:
        """Return one with a model that torch.compile made of this one's; it compiles as it runs."""
        other = copy.copy(self)
        other._forward = torch.compile(self._loaded.model, dynamic=True)
        return other

    @torch.inference_mode()
    def score(self, rows: Rows) -> NDArray[np.float64]:
        """Score one row after another; shape (n_rows,)."""
        pairs = zip(rows.questions, rows.contexts, strict=True)
        return np.array([self._score_row(question, context) for question, context in pairs])

    @abstractmethod
    def _score_row(self, question: str, context: str) -> float:
        """Return a row's score."""


class LrmPeer(LoopPeer):
    """Raw LRM of every row (paper profile, attended matching, all layers)."""

    def __init__(self, model: str, *, device: str = "cpu", precision: str = "fp32") -> None:
        super().__init__(model, role="encoder", device=device, precision=precision)
        self._facts = make_facts(
            self._loaded, ArtifactRequest("relevance_matching", "minilm", "fp32")
        )

    def _score_row(self, question: str, context: str) -> float:
        encode = self._loaded.tokenizer.encode
        candidate = encode(question, add_special_tokens=False).ids
        target = encode(context, add_special_tokens=False).ids
        room, _ = target_windows(
            np.array([len(candidate)]),
            np.array([len(target)]),
            n_positions=self._facts.max_positions,
            n_special=3,
        )
        windows = equal_windows(len(target), max_tokens=int(room[0]))
        scores = [self._score_window(candidate, target[a:b]) for a, b in windows]
        return sum(scores) / len(scores)

    def _score_window(self, candidate: list[int], context: list[int]) -> float:
        frame = self._facts.template
        assert frame is not None
        first = [*frame.prefix_ids, *candidate, *frame.middle_ids]
        second = [*context, *frame.suffix_ids]
        start, stop = len(first), len(first) + len(context)
        output = self._forward(
            input_ids=torch.tensor([[*first, *second]], device=self._device),
            token_type_ids=torch.tensor([[0] * start + [1] * len(second)], device=self._device),
            output_attentions=True,
            output_hidden_states=True,
        )
        precision = []
        for attention, hidden in zip(output.attentions, output.hidden_states[1:], strict=True):
            seen = attention[0, :, 1 : 1 + len(candidate), start:stop].amax(dim=0)
            matched = hidden[0, start:stop][seen.argmax(dim=1)]
            cosine = torch.cosine_similarity(hidden[0, 1 : 1 + len(candidate)], matched, dim=1)
            precision.append(cosine.mean())
        return float(torch.stack(precision).mean())


class GrgPeer(LoopPeer):
    """Raw GRG of every row (paper profile); windows have their special tokens in them."""

    def __init__(
        self, model: str, *, max_window_tokens: int, device: str = "cpu", precision: str = "fp32"
    ) -> None:
        super().__init__(model, role="causal_lm", device=device, precision=precision)
        facts = make_facts(self._loaded, ArtifactRequest("token_logprobs", "smollm2-135m", "fp32"))
        self._n_positions = min(facts.max_positions, max_window_tokens)

    def _score_row(self, question: str, context: str) -> float:
        encode = self._loaded.tokenizer.encode
        candidate = encode(question, add_special_tokens=False).ids
        target = encode(" " + context, add_special_tokens=False).ids
        room, _ = target_windows(
            np.array([len(candidate)]),
            np.array([len(target)]),
            n_positions=self._n_positions,
            n_special=1,
        )
        gains = []
        for a, b in equal_windows(len(target), max_tokens=int(room[0])):
            base = self._nats([], target[a:b])
            gains.append(max((self._nats(candidate, target[a:b]) - base) / abs(base), 0.0))
        return sum(gains) / len(gains)

    def _nats(self, prompt: list[int], window: list[int]) -> float:
        ids = torch.tensor([[self._loaded.bos_id, *prompt, *window]], device=self._device)
        logits = self._forward(input_ids=ids).logits[0, len(prompt) : -1]
        logprobs = logits.float().log_softmax(dim=1)
        return float(logprobs.gather(1, ids[0, 1 + len(prompt) :, None]).double().sum())


def load_quietly(model: str, *, role: str) -> LoadedModel:
    """Load a model without the progress bars of loading."""
    with contextlib.redirect_stderr(io.StringIO()):
        return load_model(resolve_model(model, role=role), role=role)


def _load(model: str, *, role: str, device: str, precision: str) -> LoadedModel:
    loaded = load_quietly(model, role=role)
    if precision == "bf16":
        loaded.model.bfloat16()
    if device == "cuda":
        loaded.model.half().to(device)
    return loaded
