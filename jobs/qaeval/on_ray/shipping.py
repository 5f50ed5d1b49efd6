"""Shipping: artifacts for workers whose node does not see the folder that the driver found them in.

A worker looks for itself, whenever its node joined. Only where the folder is not there, it asks a
small actor on the driver's node, which reads the files into Ray's object store once for all.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from qaeval_core.errors import ArtifactHashError, ArtifactMissingError
from qaeval_core.families.contract import FamilyPlan
from qaeval_core.models.artifact import Artifact, default_root, load_artifact


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class ArtifactSource:
    """Reads artifacts where the driver is.

    Parameters
    ----------
    folders : mapping of hash to str
        Of the artifacts that it gives.
    """

    def __init__(self, folders: dict[str, str]) -> None:
        self._folders = folders
        self._files: dict[str, dict[str, Any]] = {}

    def files(self, artifact_hash: str) -> dict[str, Any]:
        """Return references to the files of an artifact, by name."""
        if artifact_hash not in self._files:
            folder = Path(self._folders[artifact_hash])
            self._files[artifact_hash] = {
                path.name: ray.put(path.read_bytes()) for path in folder.iterdir() if path.is_file()
            }
        return self._files[artifact_hash]

    def n_read(self) -> int:
        """Return how many artifacts somebody has asked for."""
        return len(self._files)


@dataclass(frozen=True, slots=True)
class Shipping:
    """A worker's way to the artifacts of its pass.

    Attributes
    ----------
    source : actor handle
        An `ArtifactSource`.
    """

    source: Any

    def find(self, artifact: Artifact) -> Artifact:
        """Return an artifact that this node can read, writing it here if need be."""
        try:
            own = load_artifact(artifact.folder)
            if own.hash == artifact.hash:
                return own
        except (ArtifactMissingError, ArtifactHashError):
            pass  # Not there, half there, or of another version: what the driver has counts.
        folder = default_root() / "shipped" / f"{artifact.folder.name}-{artifact.hash[:12]}"
        if not folder.exists():
            self._write(artifact.hash, folder)
        return load_artifact(folder)

    def _write(self, artifact_hash: str, folder: Path) -> None:
        temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.tmp")
        temporary.mkdir(mode=0o700, parents=True)
        for name, ref in ray.get(self.source.files.remote(artifact_hash)).items():
            (temporary / name).write_bytes(ray.get(ref))
        try:
            temporary.rename(folder)
        except OSError:  # Another worker of this node was first; the hashes decide.
            if not folder.exists():
                raise


def open_shipping(families: Sequence[FamilyPlan], *, is_cluster: bool) -> Shipping | None:
    """Return the way to the artifacts of a pass; None where it has none, or one node for good.

    Parameters
    ----------
    is_cluster : bool
        Whether nodes may join later.
    """
    artifacts = [artifact for family in families for artifact in family.artifacts]
    is_alone = not is_cluster and sum(node["Alive"] for node in ray.nodes()) < 2
    if not artifacts or is_alone:
        return None
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    source = ArtifactSource.options(scheduling_strategy=here).remote(  # type: ignore[attr-defined]
        {artifact.hash: str(artifact.folder) for artifact in artifacts}
    )
    return Shipping(source)
