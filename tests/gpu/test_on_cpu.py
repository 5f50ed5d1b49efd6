"""What tests marked gpu compare, run on a CPU: their code works before there is a device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import gpu_numbers
from gpu_numbers import Subject, alone, assert_near, in_batches, in_torch, open_session
from helpers import REPOSITORY
from qaeval_core.models.session import Session
from workshop import Workshop

pytestmark = pytest.mark.slow


class _Deaf(Session):
    """A device that is told no lengths."""

    def run(self, inputs: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        n_rows, width = inputs["input_ids"].shape
        return super().run({**inputs, "n_tokens": np.full(n_rows, width)})


@pytest.mark.long
def test_they_run_on_a_cpu(artifacts_root: Path) -> None:
    """Their first run on a device may be the only one: an adapter, a small model, and ties."""
    asked = "pair_score-sas-minilm-fp32 or small-gpt2 or equal or memory"
    words = ["-m", "gpu", "-k", asked, "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "tests/gpu/test_on_gpu.py"],
        env={
            **os.environ,
            "QAEVAL_GPU_TESTS_ON": "cpu",
            "QAEVAL_ARTIFACTS": str(artifacts_root),
            "OMP_NUM_THREADS": "1",  # Torch's threads wait for ONNX Runtime's.
        },
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"7 passed, 4 skipped", done.stdout), done.stdout
    assert "told to run on a CPU" in done.stdout


@pytest.mark.parametrize(
    ("graph", "precision"),
    [
        ("token_vectors", "fp32"),
        pytest.param("relevance_matching", "fp16", marks=pytest.mark.long),
    ],
)
def test_a_device_that_attends_to_padding_fails_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph: str, precision: str
) -> None:
    """A comparison that cannot fail would be all that is known of a card."""
    monkeypatch.setattr(gpu_numbers, "WHERE", "cpu")
    workshop = Workshop(tmp_path)
    subject = Subject(graph, workshop.model("bert"))
    artifact = workshop.artifact(graph, "bert", precision, allow_lossy=True)
    assert artifact.record.precision == precision
    rows, expected = in_torch(subject)
    session = open_session(artifact, tmp_path)
    assert_near(in_batches(session, rows), expected, artifact.record)
    assert_near(in_batches(session, rows), alone(session, rows), artifact.record)
    deaf = _Deaf(session.artifact)
    with pytest.raises(AssertionError, match="values beyond"):
        assert_near(in_batches(deaf, rows), expected, artifact.record)
    with pytest.raises(AssertionError, match="values beyond"):
        assert_near(in_batches(deaf, rows), alone(deaf, rows), artifact.record)
