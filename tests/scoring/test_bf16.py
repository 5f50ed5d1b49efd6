"""A run in bfloat16, as a user has it; without the CPU for it, its engine in fp32."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bf16 import needs_bf16, stand_in
from helpers import qaeval, read_scores, short_sample, write_parquet
from qaeval_core.models.artifact import ensure_artifact
from qaeval_core.models.record import ArtifactRequest
from qaeval_export.build import build_artifact

N_ROWS = 12
MODELS = {"cross_encoder": ("pair_score", "sas-minilm"), "encoder": ("token_vectors", "minilm")}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scored(
    tmp_path_factory: pytest.TempPathFactory, artifacts_root: Path
) -> Iterator[tuple[Path, Path]]:
    """Folders of the same rows scored in fp32 and in bfloat16; their artifacts lie beside them."""
    folder = tmp_path_factory.mktemp("bf16")
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch)
        yield _scored(folder, artifacts_root)


def _scored(folder: Path, artifacts_root: Path) -> tuple[Path, Path]:
    root = folder / "artifacts"
    for graph, model in MODELS.values():
        plain = ensure_artifact(artifacts_root, ArtifactRequest(graph, model, "fp32"))
        shutil.copytree(plain.folder, root / plain.folder.name)
        build_artifact(ArtifactRequest(graph, model, "bf16"), root)
    source = write_parquet(folder / "input.parquet", short_sample(N_ROWS))
    words = ["--metrics", "sas,bertscore", "--local", f"--set=models.artifacts_path={root}"]
    plain, exact = folder / "fp32", folder / "bf16"
    qaeval("score", source, "--out", plain, *words)
    precisions = [f"--set=models.{role}.precision=bf16" for role in MODELS]
    qaeval("score", source, "--out", exact, *words, *precisions)
    return plain, exact


@needs_bf16
def test_bfloat16_rounds(scored: tuple[Path, Path]) -> None:
    """A run that is told apart from fp32 by its speed alone would be one in fp32."""
    plain, found = (read_scores(out)["sas"].to_numpy() for out in scored)
    assert 0 < np.nanmax(np.abs(plain - found)) < 0.05


def test_scores_are_near_and_signatures_tell_them_apart(scored: tuple[Path, Path]) -> None:
    plain, exact = scored
    for name in ("sas", "bertscore_f1"):
        left, right = (read_scores(out)[name].to_numpy() for out in scored)
        np.testing.assert_allclose(left, right, atol=0.05)
    assert "precision:bf16" in (exact / "run.json").read_text()
    assert "precision:bf16" not in (plain / "run.json").read_text()


def test_a_row_is_explained_as_it_was_scored(scored: tuple[Path, Path]) -> None:
    """Alone in other batches it would have other bits, and the stored ones would look changed."""
    said = qaeval(
        "explain", scored[1], "--lowest", "sas", "--artifacts", scored[1].parent / "artifacts"
    )
    assert "QA0518" not in said
