"""Artifact folders: found, verified, refused."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qaeval_core.errors import ArtifactHashError, ArtifactMissingError, ConfigError
from qaeval_core.models import artifact as artifacts
from qaeval_core.models.artifact import (
    ArtifactRequest,
    default_root,
    ensure_artifact,
    find_artifact,
    load_artifact,
)
from qaeval_core.models.record import GRAPHS
from tiny_artifacts import PARITY, make_artifact

_REQUEST = ArtifactRequest("pair_score", "gpt2", "fp32")


def _write(root: Path, **changes: Any) -> Path:
    return make_artifact(root / _REQUEST.folder_name, **changes)


def test_a_whole_artifact_is_found(tmp_path: Path) -> None:
    """The hub is not asked: an artifact must be enough on a machine without a network."""
    folder = _write(tmp_path)
    artifact = find_artifact(tmp_path, _REQUEST)
    assert artifact.folder == folder
    assert artifact.model_path.is_file() and artifact.tokenizer_path.is_file()
    assert artifact.hash == load_artifact(folder).hash


def test_the_hash_depends_on_what_decides_the_numbers_only(tmp_path: Path) -> None:
    """A hash of the whole record would change with the exporter's version alone."""
    first = load_artifact(_write(tmp_path / "a")).hash
    other_versions = _write(tmp_path / "b", versions={"torch": "9"})
    parity = {**PARITY, "precision": "fp16"}
    other_precision = _write(tmp_path / "c", precision="fp16", parity=parity)
    assert load_artifact(other_versions).hash == first
    assert load_artifact(other_precision).hash != first


@pytest.mark.parametrize("file", ["model.onnx", "tokenizer.json"])
def test_a_changed_file_is_named_with_both_hashes(tmp_path: Path, file: str) -> None:
    """A half-copied artifact loads and runs."""
    folder = _write(tmp_path)
    (folder / file).write_text("changed")
    found = hashlib.sha256(b"changed").hexdigest()
    with pytest.raises(ArtifactHashError, match=f"{file}.*SHA-256.*{found}.*QA0406"):
        load_artifact(folder)
    assert load_artifact(folder, verify=False).folder == folder
    (folder / file).unlink()
    with pytest.raises(ArtifactHashError, match=f"{file}.*QA0406"):
        load_artifact(folder)


def test_an_artifact_of_an_older_graph_is_refused(tmp_path: Path) -> None:
    """Its numbers mean something else now, under the same names."""
    folder = _write(tmp_path, graph_version=0)
    with pytest.raises(ArtifactMissingError, match="0.*2.*QA0405"):
        load_artifact(folder)


def test_files_that_are_taken_as_they_are_have_a_version_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from scores that are computed anew because graphs of another making have changed."""
    later = replace(GRAPHS["pair_score"], version=3)
    monkeypatch.setattr(artifacts, "GRAPHS", {"pair_score": later})
    folder = _write(tmp_path, graph_version=2, source="onnx", batch_difference=1e-6)
    assert load_artifact(folder).record.graph_version == 2
    traced = _write(tmp_path / "traced", graph_version=2)
    with pytest.raises(ArtifactMissingError, match="2.*3.*QA0405"):
        load_artifact(traced)
    unmeasured = _write(tmp_path / "unmeasured", graph_version=2, source="onnx", parity=None)
    with pytest.raises(ArtifactHashError, match="batch_difference.*QA0406"):
        load_artifact(unmeasured)


@pytest.mark.parametrize("text", ["{", "[]", '{"format_version": 1}', '{"format_version": 99}'])
def test_a_damaged_record_is_one_message(tmp_path: Path, text: str) -> None:
    """A validation report of forty lines hides which file it is about."""
    folder = _write(tmp_path)
    (folder / "artifact.json").write_text(text)
    with pytest.raises((ArtifactHashError, ArtifactMissingError), match=r"artifact\.json.*QA0406"):
        load_artifact(folder)


def test_a_missing_artifact_names_the_command(tmp_path: Path) -> None:
    """The user should paste, not search."""
    request = ArtifactRequest("relevance_matching", "minilm", "fp16", {"matching": "weighted"})
    command = (
        "qaeval export --graph relevance_matching --model minilm --precision fp16 "
        f"--matching weighted --root {tmp_path}"
    )
    with pytest.raises(ArtifactMissingError, match=command):
        find_artifact(tmp_path, request)
    with pytest.raises(ArtifactMissingError, match=command):
        ensure_artifact(tmp_path, request, build=False)


def test_without_torch_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker without torch cannot build; a failed import of torch does not say that."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ArtifactMissingError, match=r"'qaeval-bulk\[models\]'.*QA0405"):
        ensure_artifact(tmp_path, _REQUEST)


def test_lossy_artifacts_need_permission(tmp_path: Path) -> None:
    """Scores of a failed gate would enter a report unseen."""
    _write(tmp_path, lossy=True, parity={**PARITY, "passed": False})
    with pytest.raises(ArtifactMissingError, match="allow_lossy.*QA0405"):
        find_artifact(tmp_path, _REQUEST)


def test_a_folder_that_holds_another_request_is_refused(tmp_path: Path) -> None:
    """Folders get renamed by hand."""
    _write(tmp_path, requested_precision="fp16")
    with pytest.raises(ArtifactMissingError, match="fp16.*fp32.*QA0405"):
        find_artifact(tmp_path, _REQUEST)


@pytest.mark.parametrize(
    ("graph", "precision", "options"),
    [
        ("nothing", "fp32", {}),
        ("token_logprobs", "int3", {}),
        ("token_logprobs", "fp32", {"matching": "attended"}),
        ("relevance_matching", "fp32", {"matching": "best"}),
        ("relevance_matching", "fp32", {"aggregate": "average"}),
    ],
)
def test_impossible_requests_are_refused(
    graph: str, precision: str, options: dict[str, str]
) -> None:
    """A misspelled option that falls back to its default computes another metric."""
    with pytest.raises(ConfigError):
        ArtifactRequest(graph, "minilm", precision, options)


def test_folder_names_tell_requests_apart() -> None:
    """One folder for two requests would be rebuilt in turns by two jobs."""
    requests = [
        ArtifactRequest(graph, "minilm", precision, options, allow_lossy=lossy)
        for graph, options in (
            ("relevance_matching", {}),
            ("relevance_matching", {"matching": "weighted"}),
            ("relevance_matching", {"matching": "weighted", "aggregate": "average"}),
            ("token_logprobs", {}),
        )
        for precision, lossy in (("fp32", False), ("fp16", False), ("fp16", True))
    ]
    assert len({request.folder_name for request in requests}) == len(requests)


def test_the_root_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Artifacts shared by a cluster lie on its file system, not in a home."""
    monkeypatch.setenv("QAEVAL_ARTIFACTS", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.delenv("QAEVAL_ARTIFACTS")
    assert default_root().parts[-3:] == (".cache", "qaeval", "artifacts")
