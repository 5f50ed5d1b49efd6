"""Shipping: carry an artifact to nodes that do not see its folder.

On one node nothing is copied, nor where ``models.artifacts_path`` names a folder: that one is taken
to be shared. Else the files travel through the object store, once per node, and are verified by
their hashes like any other artifact.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from qaeval_core.errors import ArtifactMissingError
from qaeval_core.models.artifact import Artifact, default_root, load_artifact
from qaeval_core.scoring.plans import FamilyPlan


@dataclass(frozen=True, slots=True)
class ShippedArtifact:
    """An artifact's files in the object store."""

    folder_name: str
    files: dict[str, Any]

    def receive(self, artifact: Artifact) -> Artifact:
        """Return an artifact that this node can read, writing it if need be."""
        try:
            return load_artifact(artifact.folder)
        except ArtifactMissingError:
            folder = default_root() / "shipped" / f"{self.folder_name}-{artifact.hash[:12]}"
        if not folder.exists():
            temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.tmp")
            temporary.mkdir(mode=0o700, parents=True)
            for name, ref in self.files.items():
                (temporary / name).write_bytes(ray.get(ref))
            try:
                temporary.rename(folder)
            except OSError:  # Another worker of this node was first; the hashes decide below.
                if not folder.exists():
                    raise
        return load_artifact(folder)


def ship_if_needed(plan: FamilyPlan, *, is_shared: bool) -> ShippedArtifact | None:
    """Put an artifact into the object store if other nodes need it and cannot see its folder."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if not plan.artifacts or is_shared or len(nodes) < 2:
        return None
    (artifact,) = plan.artifacts
    folder = Path(artifact.folder)
    files = {path.name: ray.put(path.read_bytes()) for path in folder.iterdir() if path.is_file()}
    return ShippedArtifact(folder.name, files)
