"""What a user is told of a graph that runs in another precision than was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import short_sample, write_parquet
from pins.pinned_configs import fake_artifact
from qaeval_core.configure import load_config
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.engine import Device
from qaeval_core.models.record import ArtifactRequest, ParityAttempt, ParityRecord
from qaeval_core.planning.job import make_job, read_inputs

_FAILED = ParityAttempt(
    precision="fp16", max_abs_diff=0.0416, spearman=0.9996, tolerance=0.02, passed=False
)
_KEPT = ParityRecord(
    precision="fp32",
    max_abs_diff=2e-7,
    spearman=1.0,
    tolerance=1e-4,
    passed=True,
    n_values=240,
    against="torch fp32",
    attempts=(_FAILED,),
)


def _fell_back(request: ArtifactRequest) -> Artifact:
    """Return an artifact whose fp16 graph failed, if it is LRM's."""
    artifact = fake_artifact(request)
    if request.graph != "relevance_matching":
        return artifact
    record = artifact.record.model_copy(update={"precision": "fp32", "parity": _KEPT})
    return Artifact(artifact.folder, record)


@pytest.mark.parametrize(
    ("device", "ends"), [("cuda", ": on a GPU that takes 5 to 7 times as long"), ("cpu", "")]
)
def test_fp32_in_place_of_fp16_is_said_with_its_cost(
    tmp_path: Path, device: Device, ends: str
) -> None:
    """Protects from a GPU that idles at a seventh of its speed, and nobody knows why."""
    write_parquet(tmp_path / "input.parquet", short_sample(4))
    config = load_config(
        overrides={
            "input.paths": [str(tmp_path / "input.parquet")],
            "output.path": str(tmp_path / "out"),
            "models.encoder.precision": "fp16",
        }
    )
    job = make_job(config, read_inputs(config), device=device, resolve_artifact=_fell_back)
    assert job.notes == (
        "relevance_matching-minilm-fp16: fp16 differs from torch by up to 0.042 (tolerance 0.02), "
        f"so fp32 runs instead of fp16{ends}",
    )
