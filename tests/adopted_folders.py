"""Folders of others with an ONNX file, as optimum writes them, and requests for their graphs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from qaeval_core.models.record import ArtifactRequest

_FOLDERS = Path(__file__).parent / "export" / "optimum_folders"
# Graph and metric of each.
KINDS = {
    "cross_encoder": ("pair_score", "sas"),
    "sentence_encoder": ("sentence_vector", "bi_encoder"),
}


def folder_of(kind: str, place: Path, *, weights: bool) -> Path:
    """Return a copy of a folder, with or without its safetensors."""
    folder = place / f"{kind}-{weights}"
    shutil.copytree(_FOLDERS / kind, folder)
    if not weights:
        (folder / "model.safetensors").unlink()
    return folder


def request_of(kind: str, folder: Path, **given: Any) -> ArtifactRequest:
    """Return a request for the graph that a kind of model can become."""
    return ArtifactRequest(KINDS[kind][0], str(folder), "fp32", **given)
