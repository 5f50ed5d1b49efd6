"""Requests keep the names and keys that finished runs hold."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from qaeval_core.errors import DeviceError
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.engine import Device
from qaeval_core.models.onnx_runtime import load_onnxruntime
from qaeval_core.models.record import (
    GRAPHS,
    ArtifactRecord,
    ArtifactRequest,
    export_command,
)
from qaeval_core.models.session import Session

_WEIGHTED = {"matching": "weighted"}
_AVERAGE = {"matching": "weighted", "aggregate": "average"}
# Graph, precision and options; then the folder, the role, and the first digits of the hash of an
# artifact that answers, all as version 2 of the graphs put them into signatures.
_PINNED = [
    (
        "relevance_matching",
        "fp32",
        {},
        "relevance_matching-minilm-fp32",
        "encoder",
        "eb5c4e87c73d5ad1",
    ),
    (
        "relevance_matching",
        "fp16",
        {},
        "relevance_matching-minilm-fp16",
        "encoder",
        "b80e88a9678bfa9b",
    ),
    ("token_logprobs", "fp32", {}, "token_logprobs-minilm-fp32", "causal_lm", "7fe584576f1d4fe1"),
    ("token_logprobs", "fp16", {}, "token_logprobs-minilm-fp16", "causal_lm", "067e85902a175703"),
    ("pair_score", "fp32", {}, "pair_score-minilm-fp32", "cross_encoder", "159c00f7d4ca8107"),
    ("pair_score", "fp16", {}, "pair_score-minilm-fp16", "cross_encoder", "09ce0004a73c9651"),
    ("sentence_vector", "fp32", {}, "sentence_vector-minilm-fp32", "encoder", "f2ef333d7e08900d"),
    ("sentence_vector", "fp16", {}, "sentence_vector-minilm-fp16", "encoder", "3d1fbb0fa2cf1e36"),
    ("token_vectors", "fp32", {}, "token_vectors-minilm-fp32", "encoder", "c7fbe862d74c2931"),
    ("token_vectors", "fp16", {}, "token_vectors-minilm-fp16", "encoder", "1915ca40f2468355"),
    (
        "keyphrase_weights",
        "fp32",
        {},
        "keyphrase_weights-minilm-fp32",
        "keyphrase_classifier",
        "26c9a93cbf46bfe8",
    ),
    (
        "keyphrase_weights",
        "fp16",
        {},
        "keyphrase_weights-minilm-fp16",
        "keyphrase_classifier",
        "0f7ffa84632d751c",
    ),
    (
        "relevance_matches",
        "fp32",
        {},
        "relevance_matches-minilm-fp32",
        "encoder",
        "e5daf7e43a81fc62",
    ),
    (
        "relevance_matches",
        "fp16",
        {},
        "relevance_matches-minilm-fp16",
        "encoder",
        "72cd388fd35bb309",
    ),
    (
        "relevance_matching",
        "fp32",
        _WEIGHTED,
        "relevance_matching_weighted_max-minilm-fp32",
        "encoder",
        "3ffbc3341838f561",
    ),
    (
        "relevance_matching",
        "fp16",
        _AVERAGE,
        "relevance_matching_weighted_average-minilm-fp16",
        "encoder",
        "be46b1e17b5c5386",
    ),
    (
        "relevance_matches",
        "fp32",
        _WEIGHTED,
        "relevance_matches_weighted_max-minilm-fp32",
        "encoder",
        "5cddd70020f9a282",
    ),
    (
        "relevance_matches",
        "fp16",
        _AVERAGE,
        "relevance_matches_weighted_average-minilm-fp16",
        "encoder",
        "d61c54261d2dacaf",
    ),
    (
        "token_vectors",
        "fp32",
        {"layer": "0"},
        "token_vectors_0-minilm-fp32",
        "encoder",
        "d35646356093cbee",
    ),
    (
        "token_vectors",
        "fp16",
        {"layer": "9"},
        "token_vectors_9-minilm-fp16",
        "encoder",
        "846ac991c4b84b4b",
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


@pytest.mark.parametrize(
    ("version", "device", "refusal"),
    [
        ("1.24.4", "cpu", "1.24.4.*1.25.*QA0412"),
        ("1.25.0", "cpu", None),
        ("1.24.4", "cuda", "1.24.4.*1.31.*QA0412"),
        ("1.30.0", "cuda", "1.30.0.*GPU.*1.31.*QA0412"),
        ("1.31.0", "cuda", None),
    ],
)
def test_an_engine_of_other_kernels_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: str, device: Device, refusal: str | None
) -> None:
    """1.24 runs graphs that tell it how long rows are, ignores that, and says nothing."""
    monkeypatch.setattr("onnxruntime.__version__", version)
    with pytest.raises(DeviceError, match=refusal) if refusal else nullcontext():
        load_onnxruntime(device)


def test_a_session_asks_for_what_its_device_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The floor of a CPU, on a GPU, lets kernels through that nobody has looked at."""
    monkeypatch.setattr("onnxruntime.__version__", "1.30.0")
    with pytest.raises(DeviceError, match="QA0412"):
        Session(Artifact(Path(), ArtifactRecord.model_construct(precision="fp32")), device="cuda")
