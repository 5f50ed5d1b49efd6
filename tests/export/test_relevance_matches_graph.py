"""The relevance_matches graph: what each candidate token is matched to, against nested loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from qaeval_core.models.artifact import Artifact

_PAIRS = [
    ("Why?", "Nobody knew why the clock had stopped."),
    ("Where do the bees drink in summer?", "Bees need water."),
    ("boats", "Two boats and a lighthouse. " * 6),
]
_SLOW = pytest.mark.slow
_CASES = [
    ("bert", "attended", "max"),
    pytest.param("roberta", "attended", "max", marks=_SLOW),
    pytest.param("bert", "weighted", "max", marks=_SLOW),
    pytest.param("bert", "weighted", "average", marks=_SLOW),
    pytest.param("minilm", "attended", "max", marks=_SLOW),
]


def _encode(artifact: Artifact, pair: tuple[str, str]) -> tuple[list[int], int, int, int]:
    """Return (row, candidate tokens, position of the context, context tokens)."""
    tokenizer = Tokenizer.from_file(str(artifact.tokenizer_path))
    row = tokenizer.encode(*pair)
    sides = row.sequence_ids
    return row.ids, sides.count(0), sides.index(1), sides.count(1)


def _inputs(rows: list[tuple[list[int], int, int, int]]) -> dict[str, NDArray[np.int64]]:
    n_longest = max(len(ids) for ids, *_ in rows)
    return {
        "input_ids": np.array([ids + [0] * (n_longest - len(ids)) for ids, *_ in rows]),
        "n_tokens": np.array([len(ids) for ids, *_ in rows]),
        "n_candidate": np.array([n for _, n, _, _ in rows]),
        "context_start": np.array([start for _, _, start, _ in rows]),
        "n_context": np.array([n for *_, n in rows]),
        "candidate_positions": np.arange(1, 1 + max(n for _, n, _, _ in rows)),
    }


def _run(artifact: Artifact, inputs: dict[str, NDArray[np.int64]]) -> NDArray[np.float64]:
    session = ort.InferenceSession(artifact.model_path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, inputs)[0], dtype=np.float64)


def _reference_matches(
    model: Any, artifact: Artifact, row: tuple[list[int], int, int, int]
) -> list[list[tuple[int, float]]]:
    """(index of the context token, worth) per layer and candidate token, by nested loops."""
    ids, n_candidate, start, n_context = row
    options = artifact.record.options
    types = [int(i >= start and model.config.type_vocab_size > 1) for i in range(len(ids))]
    with torch.no_grad():
        output = model(
            torch.tensor([ids]),
            token_type_ids=torch.tensor([types]),
            output_attentions=True,
            output_hidden_states=True,
        )
    layers = []
    for attention, hidden in zip(output.attentions, output.hidden_states[1:], strict=True):
        found = []
        for m in range(1, 1 + n_candidate):
            seen, cosines = [], []
            for n in range(start, start + n_context):
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
    return layers


@pytest.mark.parametrize(("kind", "matching", "aggregate"), _CASES)
def test_matches_equal_nested_loops(
    workshop: Any, kind: str, matching: str, aggregate: str
) -> None:
    """Protects from an explanation that names another token than the score came from."""
    artifact = workshop.artifact("relevance_matches", kind, matching=matching, aggregate=aggregate)
    model = workshop.loaded(kind, "encoder").model
    rows = [_encode(artifact, pair) for pair in _PAIRS]
    found = _run(artifact, _inputs(rows))
    for own, row in zip(found, rows, strict=True):
        expected = np.array(_reference_matches(model, artifact, row))
        kept = own[:, : row[1]]
        np.testing.assert_array_equal(kept[..., 0], expected[..., 0])
        np.testing.assert_allclose(kept[..., 1], expected[..., 1], atol=1e-4)


def test_matches_average_to_the_scored_precision(workshop: Any) -> None:
    """Protects from two graphs that drift apart: one scores, the other explains."""
    matches = workshop.artifact("relevance_matches", "bert")
    scored = workshop.artifact("relevance_matching", "bert")
    rows = [_encode(scored, pair) for pair in _PAIRS]
    inputs = _inputs(rows)
    precision = _run(scored, inputs)
    for own, layers, row in zip(_run(matches, inputs), precision, rows, strict=True):
        np.testing.assert_allclose(own[:, : row[1], 1].mean(axis=1), layers, atol=1e-6)


def test_the_graph_of_scores_keeps_its_name(workshop: Any) -> None:
    """Protects from a rebuild of every artifact, and of every score: names and hashes are keys."""
    matches = workshop.artifact("relevance_matches", "bert")
    scored = workshop.artifact("relevance_matching", "bert")
    assert scored.folder.name.startswith("relevance_matching-")
    assert matches.folder.name.startswith("relevance_matches-")
    assert set(scored.record.options) == {"matching", "aggregate"}
    assert matches.record.outputs[0].shape == ("n_pairs", 2, "n_cand", 2)
    assert matches.record.tokenizer_hash == scored.record.tokenizer_hash
