"""Requests keep the names and keys that finished runs hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from qaeval_core.models.artifact import Artifact
from qaeval_core.models.record import (
    GRAPHS,
    ArtifactRecord,
    ArtifactRequest,
    export_command,
)

_WEIGHTED = {"matching": "weighted"}
_AVERAGE = {"matching": "weighted", "aggregate": "average"}
# Graph, precision and options; then the folder, the role, and the first digits of the hash of an
# artifact that answers, all as they were when these names first went into signatures.
_PINNED = [
    (
        "relevance_matching",
        "fp32",
        {},
        "relevance_matching-minilm-fp32",
        "encoder",
        "cbef4b329f1368f2",
    ),
    (
        "relevance_matching",
        "fp16",
        {},
        "relevance_matching-minilm-fp16",
        "encoder",
        "d60360a96c338c57",
    ),
    ("token_logprobs", "fp32", {}, "token_logprobs-minilm-fp32", "causal_lm", "088fca2c06dd0005"),
    ("token_logprobs", "fp16", {}, "token_logprobs-minilm-fp16", "causal_lm", "eb1529a44af4a7ae"),
    ("pair_score", "fp32", {}, "pair_score-minilm-fp32", "cross_encoder", "34bd5a5a920f786f"),
    ("pair_score", "fp16", {}, "pair_score-minilm-fp16", "cross_encoder", "5fd1f0f45f0e4fd9"),
    ("sentence_vector", "fp32", {}, "sentence_vector-minilm-fp32", "encoder", "660a9d109b894966"),
    ("sentence_vector", "fp16", {}, "sentence_vector-minilm-fp16", "encoder", "f7b208147f4c86a8"),
    ("token_vectors", "fp32", {}, "token_vectors-minilm-fp32", "encoder", "5421127842ee93a6"),
    ("token_vectors", "fp16", {}, "token_vectors-minilm-fp16", "encoder", "deb3642356ed3ecb"),
    (
        "keyphrase_weights",
        "fp32",
        {},
        "keyphrase_weights-minilm-fp32",
        "keyphrase_classifier",
        "2ebc324f12f96c27",
    ),
    (
        "keyphrase_weights",
        "fp16",
        {},
        "keyphrase_weights-minilm-fp16",
        "keyphrase_classifier",
        "ebf6b094f34c0348",
    ),
    (
        "relevance_matches",
        "fp32",
        {},
        "relevance_matches-minilm-fp32",
        "encoder",
        "eae2a9e3e79c3387",
    ),
    (
        "relevance_matches",
        "fp16",
        {},
        "relevance_matches-minilm-fp16",
        "encoder",
        "d71c71c5252e2065",
    ),
    (
        "relevance_matching",
        "fp32",
        _WEIGHTED,
        "relevance_matching_weighted_max-minilm-fp32",
        "encoder",
        "c8188cf8a012d79c",
    ),
    (
        "relevance_matching",
        "fp16",
        _AVERAGE,
        "relevance_matching_weighted_average-minilm-fp16",
        "encoder",
        "39c387ace56d23da",
    ),
    (
        "relevance_matches",
        "fp32",
        _WEIGHTED,
        "relevance_matches_weighted_max-minilm-fp32",
        "encoder",
        "4f20463b51c4b9c5",
    ),
    (
        "relevance_matches",
        "fp16",
        _AVERAGE,
        "relevance_matches_weighted_average-minilm-fp16",
        "encoder",
        "807231be30974888",
    ),
    (
        "token_vectors",
        "fp32",
        {"layer": "0"},
        "token_vectors_0-minilm-fp32",
        "encoder",
        "73f11e8a15083575",
    ),
    (
        "token_vectors",
        "fp16",
        {"layer": "9"},
        "token_vectors_9-minilm-fp16",
        "encoder",
        "121ac642e58b8a29",
    ),
]


@pytest.mark.parametrize(("graph", "precision", "options", "folder", "role", "key"), _PINNED)
def test_a_request_keeps_its_names(
    graph: str, precision: str, options: dict[str, str], folder: str, role: str, key: str
) -> None:
    """Another folder or hash would export every model and score every row again."""
    request = ArtifactRequest(graph, "minilm", precision, options)
    record = ArtifactRecord.model_construct(
        files={"model.onnx": "0", "tokenizer.json": "1"},
        graph=graph,
        graph_version=GRAPHS[graph].version,
        options=dict(request.options),
        precision=precision,
    )
    found = (request.folder_name, request.role, Artifact(Path(), record).hash[:16])
    assert found == (folder, role, key)


def test_a_request_keeps_its_command() -> None:
    """Options of other graphs, or defaults, would make it a command of another request."""
    request = ArtifactRequest("token_vectors", "minilm", "fp16", {"layer": "9"}, allow_lossy=True)
    assert request.folder_name == "token_vectors_9-minilm-fp16-lossy"
    assert export_command(request, Path("R")) == (
        "qaeval export --graph token_vectors --model minilm --precision fp16 --layer 9 "
        "--allow-lossy --root R"
    )
    request = ArtifactRequest("relevance_matches", "minilm", "fp32", _AVERAGE)
    assert export_command(request, Path("R")) == (
        "qaeval export --graph relevance_matches --model minilm --precision fp32 "
        "--matching weighted --aggregate average --root R"
    )
