"""Artifacts in bfloat16: the files of those in fp32, and a gate of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adopted_folders import folder_of, request_of
from bf16 import stand_in
from qaeval_core.errors import DeviceError, ExportError
from qaeval_core.models import open_vino
from qaeval_core.models.artifact import find_artifact, load_artifact
from qaeval_core.models.open_vino import OpenVino, openvino_version
from qaeval_core.models.record import ArtifactRequest
from qaeval_export.build import build_artifact

pytestmark = pytest.mark.slow


@pytest.fixture
def bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


@pytest.mark.parametrize(
    ("graph", "kind"),
    [
        ("pair_score", "bert_pairs"),
        ("token_vectors", "bert"),  # Of all tokens that are asked for, in rows of exact widths.
        ("token_logprobs", "gpt2"),
    ],
)
def test_weights_are_there_once_and_the_record_is_its_own(
    bf16: None, workshop: Any, graph: str, kind: str
) -> None:
    plain = workshop.artifact(graph, kind)
    # Weights of these models are wide, and their roundings as large: the tolerance is of real ones.
    artifact = workshop.artifact(graph, kind, "bf16", allow_lossy=True)
    for name in plain.record.files:
        assert (plain.folder / name).samefile(artifact.folder / name)
    record = artifact.record
    assert (record.precision, record.requested_precision) == ("bf16", "bf16")
    assert record.versions["openvino"] == openvino_version()
    assert record.files == plain.record.files and artifact.hash != plain.hash
    assert record.parity is not None and record.parity.max_abs_diff > 0
    assert record.batch_difference == 0.0
    assert load_artifact(artifact.folder).record == record


def test_what_swaps_tokens_is_for_who_allows_it(bf16: None, workshop: Any) -> None:
    """Where two attentions are nearly equal, LRM takes the other token."""
    with pytest.raises(ExportError, match="differs from fp32.*allow_lossy.*QA0410"):
        workshop.artifact("relevance_matching", "bert", "bf16")
    assert workshop.artifact("relevance_matching", "bert", "bf16", allow_lossy=True).record.lossy


@pytest.mark.parametrize(("by", "said"), [(1e-3, "batches 1"), (9.0, r"max_abs_diff [89]\.")])
def test_numbers_that_are_off_or_depend_on_batches_are_refused(
    bf16: None,
    workshop: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    by: float,
    said: str,
) -> None:
    request = ArtifactRequest("pair_score", workshop.model("bert_pairs"), "bf16")
    run = OpenVino.run

    def off(engine: OpenVino, inputs: Mapping[str, Any]) -> Any:
        """Give what an engine may whose products of many rows are blocked otherwise."""
        return run(engine, inputs) + np.float32(by * (len(inputs["input_ids"]) > 2))

    monkeypatch.setattr(OpenVino, "run", off)
    with pytest.raises(ExportError, match=f"{said}.*QA0410"):
        build_artifact(request, tmp_path)
    assert not (tmp_path / request.folder_name).exists()
    assert find_artifact(tmp_path, ArtifactRequest("pair_score", request.model, "fp32"))


def test_a_file_that_is_taken_as_it_is_is_refused(bf16: None, tmp_path: Path) -> None:
    """It may hold a loop without an end, which OpenVINO cannot stop."""
    folder = folder_of("cross_encoder", tmp_path, weights=False)
    request = ArtifactRequest(request_of("cross_encoder", folder).graph, str(folder), "bf16")
    with pytest.raises(ExportError, match="taken as it is.*QA0410"):
        build_artifact(request, tmp_path / "artifacts")


def test_an_export_needs_the_cpu_too(
    monkeypatch: pytest.MonkeyPatch, workshop: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr(open_vino, "cpu_flags", frozenset)
    with pytest.raises(DeviceError, match="QA0420"):
        build_artifact(ArtifactRequest("pair_score", "sas-minilm", "bf16"), tmp_path)
    assert not list(tmp_path.glob("pair_score*"))
