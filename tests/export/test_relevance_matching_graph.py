"""The relevance_matching graph against nested loops over what transformers returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from qaeval_core.models.artifact import Artifact

_PAIRS = [
    ("Why?", "Nobody knew why the clock had stopped."),
    ("water", "Bees need water in summer."),
    ("boats", "灯台"),
    ("Où est l'école, s'il vous plaît ?", "La bibliothèque de l'école est ouverte le mardi. " * 5),
]
_CASES = [
    pytest.param("minilm", "attended", "max", marks=pytest.mark.slow),
    pytest.param("minilm", "weighted", "max", marks=pytest.mark.slow),
    pytest.param("minilm", "weighted", "average", marks=pytest.mark.slow),
    ("bert", "attended", "max"),
    pytest.param("roberta", "attended", "max", marks=pytest.mark.slow),
    ("electra", "weighted", "average"),
]


def _encode(artifact: Artifact, pair: tuple[str, str]) -> tuple[list[int], list[int], list[int]]:
    tokenizer = Tokenizer.from_file(str(artifact.tokenizer_path))
    candidate, context = (tokenizer.encode(t, add_special_tokens=False).ids for t in pair)
    frame = artifact.record.template
    assert frame is not None
    row = [*frame.prefix_ids, *candidate, *frame.middle_ids, *context, *frame.suffix_ids]
    assert row == tokenizer.encode(*pair).ids
    return row, candidate, context


def _run(
    workshop: Any, artifact: Artifact, pairs: list[tuple[str, str]], *, n_extra: int = 0
) -> np.ndarray:
    encoded = [_encode(artifact, pair) for pair in pairs]
    frame = artifact.record.template
    assert frame is not None
    n_longest = max(len(row) for row, _, _ in encoded) + n_extra
    n_candidate = np.array([len(candidate) for _, candidate, _ in encoded])
    inputs = {
        "input_ids": np.array([row + [0] * (n_longest - len(row)) for row, _, _ in encoded]),
        "n_tokens": np.array([len(row) for row, _, _ in encoded]),
        "n_candidate": n_candidate,
        "context_start": 1 + n_candidate + len(frame.middle_ids),
        "n_context": np.array([len(context) for _, _, context in encoded]),
        "candidate_positions": np.arange(1, n_candidate.max() + 1),
    }
    return np.asarray(workshop.session(artifact).run(None, inputs)[0])


def _reference_relevance_matching(
    model: Any, artifact: Artifact, pair: tuple[str, str]
) -> list[float]:
    """Equation 4 of QRelScore with nested loops, one pair, no padding."""
    row, candidate, context = _encode(artifact, pair)
    frame, options = artifact.record.template, artifact.record.options
    assert frame is not None
    start = 1 + len(candidate) + len(frame.middle_ids)
    types = [int(i >= start and model.config.type_vocab_size > 1) for i in range(len(row))]
    with torch.no_grad():
        output = model(
            torch.tensor([row]),
            token_type_ids=torch.tensor([types]),
            output_attentions=True,
            output_hidden_states=True,
        )
    layers = []
    for attention, hidden in zip(output.attentions, output.hidden_states[1:], strict=True):
        total = 0.0
        for m in range(1, 1 + len(candidate)):
            seen, cosines = [], []
            for n in range(start, start + len(context)):
                seen.append(max(attention[0, h, m, n].item() for h in range(attention.shape[1])))
                x, c = hidden[0, m].double(), hidden[0, n].double()
                cosines.append((x @ c / (x.norm() * c.norm())).item())
            if options["matching"] == "attended":
                total += cosines[seen.index(max(seen))]
            else:
                worth = [a * cos for a, cos in zip(seen, cosines, strict=True)]
                average = sum(worth) / len(worth)
                total += max(worth) if options["aggregate"] == "max" else average
        layers.append(total / len(candidate))
    return layers


@pytest.mark.parametrize(("kind", "matching", "aggregate"), _CASES)
def test_graph_equals_nested_loops(workshop: Any, kind: str, matching: str, aggregate: str) -> None:
    """A wrong slice, segment or position id gives plausible scores that nobody would question."""
    artifact = workshop.artifact("relevance_matching", kind, matching=matching, aggregate=aggregate)
    model = workshop.loaded(kind, "encoder").model
    expected = [_reference_relevance_matching(model, artifact, pair) for pair in _PAIRS]
    np.testing.assert_allclose(_run(workshop, artifact, _PAIRS), expected, atol=1e-4)


@pytest.mark.slow
def test_equal_attentions_choose_the_first_context_token(workshop: Any) -> None:
    """With queries of zero all attentions are equal; last-on-ties would score another token."""
    artifact = workshop.artifact("relevance_matching", "uniform_bert")
    model = workshop.loaded("uniform_bert", "encoder").model
    row, candidate, context = _encode(artifact, _PAIRS[1])
    with torch.no_grad():
        states = model(
            torch.tensor([row]),
            token_type_ids=torch.tensor([[0] * (2 + len(candidate)) + [1] * (1 + len(context))]),
            output_hidden_states=True,
        ).hidden_states[1:]
    first = [
        torch.cosine_similarity(h[0, 1 : 1 + len(candidate)], h[0, 2 + len(candidate)], dim=-1)
        for h in states
    ]
    expected = [[cosine.mean().item() for cosine in first]]
    np.testing.assert_allclose(_run(workshop, artifact, [_PAIRS[1]]), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_neither_padding_nor_batch_mates_change_a_row(workshop: Any, kind: str) -> None:
    """A padding leak makes a score depend on the rows that happen to stand beside it."""
    artifact = workshop.artifact("relevance_matching", kind)
    alone = np.concatenate([_run(workshop, artifact, [pair]) for pair in _PAIRS])
    np.testing.assert_allclose(_run(workshop, artifact, _PAIRS), alone, atol=1e-5)
    np.testing.assert_allclose(_run(workshop, artifact, _PAIRS, n_extra=37), alone, atol=1e-5)


def test_a_row_may_use_every_position(workshop: Any) -> None:
    """RoBERTa's 514 positions hold 512 tokens: two more would read past its position table."""
    artifact = workshop.artifact("relevance_matching", "roberta")
    assert artifact.record.max_positions == 512
    row, candidate, _ = _encode(artifact, ("Why?", "Bees need water. " * 200))
    row = row[:512]
    start = 3 + len(candidate)
    inputs = [[row], [512], [len(candidate)], [start], [512 - start]]
    names = ["input_ids", "n_tokens", "n_candidate", "context_start", "n_context"]
    feed = {name: np.array(value) for name, value in zip(names, inputs, strict=True)}
    feed["candidate_positions"] = np.arange(1, 1 + len(candidate))
    assert np.isfinite(workshop.session(artifact).run(None, feed)[0]).all()
