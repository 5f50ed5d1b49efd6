"""Graphs of answers judged by models, against what transformers returns for one row alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from qaeval_core.errors import ExportError
from qaeval_core.models.artifact import Artifact

pytestmark = pytest.mark.slow

_PAIRS = [
    ("1874", "in the year 1874"),
    ("Anna painted the sea every day.", "灯台"),
    ("Où est l'école ?", "La bibliothèque de l'école est ouverte le mardi. " * 5),
]
_CASES = [
    ("pair_score", "bert_pairs", {}),
    ("pair_score", "mpnet_pairs", {}),
    pytest.param("pair_score", "roberta_pairs", {}, marks=pytest.mark.long),
    pytest.param("pair_score", "electra_pairs", {}, marks=pytest.mark.long),
    ("sentence_vector", "electra", {}),
    pytest.param("sentence_vector", "roberta", {}, marks=pytest.mark.long),
    pytest.param("token_vectors", "mpnet", {"layer": "1"}, marks=pytest.mark.long),
    ("token_vectors", "bert", {"layer": "0"}),
    pytest.param("keyphrase_weights", "bert_tokens", {}, marks=pytest.mark.long),
    ("keyphrase_weights", "mpnet_tokens", {}),
]


def _rows(artifact: Artifact) -> list[tuple[list[int], list[int], int]]:
    """Return (ids, segments, start of the second text) of pairs, or of each text alone."""
    tokenizer = Tokenizer.from_file(str(artifact.tokenizer_path))
    if artifact.record.graph in ("sentence_vector", "token_vectors"):
        found = [tokenizer.encode(text) for pair in _PAIRS for text in pair]
    else:
        found = [tokenizer.encode(*pair) for pair in _PAIRS]
    return [
        (row.ids, row.type_ids, row.sequence_ids.index(1) if 1 in row.sequence_ids else 0)
        for row in found
    ]


def _run(
    workshop: Any, artifact: Artifact, rows: Any, *, n_extra: int
) -> list[NDArray[np.float64]]:
    """Run the graph on one padded batch; values of each row, of all its tokens where asked."""
    n_longest = max(len(ids) for ids, _, _ in rows) + n_extra
    inputs = {
        "input_ids": np.array([ids + [5] * (n_longest - len(ids)) for ids, _, _ in rows]),
        "n_tokens": np.array([len(ids) for ids, _, _ in rows]),
        "second_start": np.array([start for _, _, start in rows]),
        "token_rows": np.concatenate(
            [np.arange(len(ids)) + i * n_longest for i, (ids, _, _) in enumerate(rows)]
        ),
    }
    known = {record.name for record in artifact.record.inputs}
    session = workshop.session(artifact)
    output = np.asarray(session.run(None, {k: v for k, v in inputs.items() if k in known})[0])
    if "token_rows" not in known:
        return list(output)
    return np.split(output, np.cumsum([len(ids) for ids, _, _ in rows])[:-1])


def _reference(model: Any, artifact: Artifact, ids: list[int], types: list[int]) -> Any:
    """Compute one row without padding, from transformers' own heads and hidden states."""
    inputs: dict[str, Any] = {"input_ids": torch.tensor([ids])}
    if getattr(model.config, "type_vocab_size", 1) > 1:
        inputs["token_type_ids"] = torch.tensor([types])
    with torch.no_grad():
        output = model(**inputs, output_hidden_states=True)
    graph = artifact.record.graph
    if graph == "pair_score":
        return output.logits[0, 0].numpy()
    if graph == "keyphrase_weights":
        return torch.softmax(output.logits[0], dim=-1)[:, 0].numpy()
    if graph == "token_vectors":
        states = output.hidden_states[artifact.record.n_layers][0]
        return (states / states.norm(dim=-1, keepdim=True)).numpy()
    mean = output.last_hidden_state[0].mean(dim=0)
    return (mean / mean.norm()).numpy()


@pytest.mark.parametrize(("graph", "kind", "options"), _CASES)
def test_graph_equals_transformers_row_by_row(
    workshop: Any, graph: str, kind: str, options: dict[str, str]
) -> None:
    """Protects from wrong segments, positions and heads, and from padding that counts."""
    artifact = workshop.artifact(graph, kind, **options)
    model = workshop.loaded(kind, workshop.role(graph)).model
    rows = _rows(artifact)
    expected = [_reference(model, artifact, ids, types) for ids, types, _ in rows]
    for n_extra in (0, 9):
        for own, reference in zip(
            _run(workshop, artifact, rows, n_extra=n_extra), expected, strict=True
        ):
            np.testing.assert_allclose(own, reference, atol=1e-5)


def test_activation_is_that_of_the_configuration(workshop: Any) -> None:
    """Protects from deciding on a sigmoid by the scores of a list: a row would have neighbors."""
    record = workshop.artifact("pair_score", "bert_pairs").record
    assert record.activation == "sigmoid"  # sentence-transformers' rule where nothing is named


def test_classifier_of_three_classes_is_refused(workshop: Any, tmp_path: Any) -> None:
    """Protects from scoring pairs with the first of three classes."""
    model = workshop.loaded("bert_pairs", "cross_encoder").model
    config = type(model.config)(**{**model.config.to_dict(), "num_labels": 3})
    type(model)(config).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(
        (workshop.folder / "bert_pairs" / "tokenizer.json").read_bytes()
    )
    with pytest.raises(ExportError, match="3.*QA0408"):
        workshop.build("pair_score", str(tmp_path))
