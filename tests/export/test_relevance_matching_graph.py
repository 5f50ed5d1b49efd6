"""The graphs relevance_matching and relevance_matches against nested loops over transformers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from qaeval_core.models.artifact import Artifact

pytestmark = pytest.mark.slow

_PAIRS = [
    ("Why?", "Nobody knew why the clock had stopped."),
    ("water", "Bees need water in summer."),
    ("boats", "灯台"),
    ("Où est l'école, s'il vous plaît ?", "La bibliothèque de l'école est ouverte le mardi. " * 5),
    ("boats", "Two boats and a lighthouse. " * 6),
    ("Where do the bees drink in summer?", "Bees need water."),
]
_CASES = [
    pytest.param("minilm", "attended", "max", marks=pytest.mark.long),
    pytest.param("minilm", "weighted", "max", marks=pytest.mark.long),
    pytest.param("minilm", "weighted", "average", marks=pytest.mark.long),
    ("bert", "attended", "max"),
    pytest.param("roberta", "attended", "max", marks=pytest.mark.long),
    ("electra", "weighted", "average"),
]
_MATCHES_CASES = [
    ("bert", "attended", "max"),
    pytest.param("roberta", "attended", "max", marks=pytest.mark.long),
    pytest.param("bert", "weighted", "max", marks=pytest.mark.long),
    pytest.param("bert", "weighted", "average", marks=pytest.mark.long),
    pytest.param("minilm", "attended", "max", marks=pytest.mark.long),
]


class _Row(NamedTuple):
    ids: list[int]
    n_candidate: int
    start: int  # of the context
    n_context: int


def _encode(artifact: Artifact, pair: tuple[str, str]) -> _Row:
    """Return the row that a record's template frames; the tokenizer frames it alike."""
    tokenizer = Tokenizer.from_file(str(artifact.tokenizer_path))
    candidate, context = (tokenizer.encode(t, add_special_tokens=False).ids for t in pair)
    frame = artifact.record.template
    assert frame is not None
    head = [*frame.prefix_ids, *candidate, *frame.middle_ids]
    ids = [*head, *context, *frame.suffix_ids]
    assert ids == tokenizer.encode(*pair).ids
    return _Row(ids, len(candidate), len(head), len(context))


def _run(
    workshop: Any, artifact: Artifact, rows: list[_Row], *, n_extra: int = 0
) -> NDArray[np.float64]:
    n_longest = max(len(row.ids) for row in rows) + n_extra
    inputs = {
        "input_ids": np.array([row.ids + [0] * (n_longest - len(row.ids)) for row in rows]),
        "n_tokens": np.array([len(row.ids) for row in rows]),
        "n_candidate": np.array([row.n_candidate for row in rows]),
        "context_start": np.array([row.start for row in rows]),
        "n_context": np.array([row.n_context for row in rows]),
        "candidate_positions": np.arange(1, 1 + max(row.n_candidate for row in rows)),
    }
    return np.asarray(workshop.session(artifact).run(None, inputs)[0], dtype=np.float64)


def _reference_matches(model: Any, artifact: Artifact, row: _Row) -> NDArray[np.float64]:
    """Equation 4 of QRelScore with nested loops, one pair, no padding.

    Returns (index of the context token, worth) by layer and candidate token.
    """
    options = artifact.record.options
    has_segments = model.config.type_vocab_size > 1
    types = [int(i >= row.start and has_segments) for i in range(len(row.ids))]
    with torch.no_grad():
        output = model(
            torch.tensor([row.ids]),
            token_type_ids=torch.tensor([types]),
            output_attentions=True,
            output_hidden_states=True,
        )
    layers = []
    for attention, hidden in zip(output.attentions, output.hidden_states[1:], strict=True):
        found = []
        for m in range(1, 1 + row.n_candidate):
            seen, cosines = [], []
            for n in range(row.start, row.start + row.n_context):
                seen.append(max(attention[0, h, m, n].item() for h in range(attention.shape[1])))
                x, c = hidden[0, m].double(), hidden[0, n].double()
                cosines.append((x @ c / (x.norm() * c.norm())).item())
            if options["matching"] == "attended":
                best = seen.index(max(seen))
                found.append((best, cosines[best]))
                continue
            worth = [a * cosine for a, cosine in zip(seen, cosines, strict=True)]
            best = worth.index(max(worth))
            average = sum(worth) / len(worth)
            found.append((best, worth[best] if options["aggregate"] == "max" else average))
        layers.append(found)
    return np.array(layers)


@pytest.mark.parametrize(("kind", "matching", "aggregate"), _CASES)
def test_graph_equals_nested_loops(workshop: Any, kind: str, matching: str, aggregate: str) -> None:
    """A wrong slice, segment or position id gives plausible scores that nobody would question."""
    artifact = workshop.artifact("relevance_matching", kind, matching=matching, aggregate=aggregate)
    model = workshop.loaded(kind, "encoder").model
    rows = [_encode(artifact, pair) for pair in _PAIRS]
    expected = [_reference_matches(model, artifact, row)[..., 1].mean(axis=1) for row in rows]
    np.testing.assert_allclose(_run(workshop, artifact, rows), expected, atol=1e-4)


@pytest.mark.parametrize(("kind", "matching", "aggregate"), _MATCHES_CASES)
def test_matches_equal_nested_loops(
    workshop: Any, kind: str, matching: str, aggregate: str
) -> None:
    """Protects from an explanation that names another token than the score came from."""
    artifact = workshop.artifact("relevance_matches", kind, matching=matching, aggregate=aggregate)
    model = workshop.loaded(kind, "encoder").model
    rows = [_encode(artifact, pair) for pair in _PAIRS]
    for own, row in zip(_run(workshop, artifact, rows), rows, strict=True):
        expected = _reference_matches(model, artifact, row)
        kept = own[:, : row.n_candidate]
        np.testing.assert_array_equal(kept[..., 0], expected[..., 0])
        np.testing.assert_allclose(kept[..., 1], expected[..., 1], atol=1e-4)


def test_matches_average_to_the_scored_precision(workshop: Any) -> None:
    """Protects from two graphs that drift apart: one scores, the other explains."""
    matches = workshop.artifact("relevance_matches", "bert")
    scored = workshop.artifact("relevance_matching", "bert")
    rows = [_encode(scored, pair) for pair in _PAIRS]
    found = zip(_run(workshop, matches, rows), _run(workshop, scored, rows), rows, strict=True)
    for own, layers, row in found:
        np.testing.assert_allclose(own[:, : row.n_candidate, 1].mean(axis=1), layers, atol=1e-6)


def test_the_graph_of_scores_keeps_its_name(workshop: Any) -> None:
    """Protects from a rebuild of every artifact, and of every score: names and hashes are keys."""
    matches = workshop.artifact("relevance_matches", "bert")
    scored = workshop.artifact("relevance_matching", "bert")
    assert scored.folder.name.startswith("relevance_matching-")
    assert matches.folder.name.startswith("relevance_matches-")
    assert set(scored.record.options) == {"matching", "aggregate"}
    assert matches.record.outputs[0].shape == ("n_pairs", 2, "n_cand", 2)
    assert matches.record.tokenizer_hash == scored.record.tokenizer_hash


@pytest.mark.slow
def test_equal_attentions_choose_the_first_context_token(workshop: Any) -> None:
    """With queries of zero all attentions are equal; last-on-ties would score another token."""
    artifact = workshop.artifact("relevance_matching", "uniform_bert")
    model = workshop.loaded("uniform_bert", "encoder").model
    row = _encode(artifact, _PAIRS[1])
    types = [0] * row.start + [1] * (1 + row.n_context)
    with torch.no_grad():
        states = model(
            torch.tensor([row.ids]), token_type_ids=torch.tensor([types]), output_hidden_states=True
        ).hidden_states[1:]
    first = [
        torch.cosine_similarity(h[0, 1 : 1 + row.n_candidate], h[0, row.start], dim=-1)
        for h in states
    ]
    expected = [[cosine.mean().item() for cosine in first]]
    np.testing.assert_allclose(_run(workshop, artifact, [row]), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_neither_padding_nor_batch_mates_change_a_row(workshop: Any, kind: str) -> None:
    """A padding leak makes a score depend on the rows that happen to stand beside it."""
    artifact = workshop.artifact("relevance_matching", kind)
    rows = [_encode(artifact, pair) for pair in _PAIRS]
    alone = np.concatenate([_run(workshop, artifact, [row]) for row in rows])
    np.testing.assert_allclose(_run(workshop, artifact, rows), alone, atol=1e-5)
    np.testing.assert_allclose(_run(workshop, artifact, rows, n_extra=37), alone, atol=1e-5)


def test_a_row_may_use_every_position(workshop: Any) -> None:
    """RoBERTa's 514 positions hold 512 tokens: two more would read past its position table."""
    artifact = workshop.artifact("relevance_matching", "roberta")
    assert artifact.record.max_positions == 512
    row = _encode(artifact, ("Why?", "Bees need water. " * 200))
    cut = row._replace(ids=row.ids[:512], n_context=512 - row.start)
    assert np.isfinite(_run(workshop, artifact, [cut])).all()
