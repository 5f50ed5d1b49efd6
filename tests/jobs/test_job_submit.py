"""`ray job submit` to a running cluster: the way a job reaches one in production."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from helpers import assert_same_scores, qaeval, read_scores, short_sample, write_parquet
from ray_head import running_head

pytestmark = [pytest.mark.ray, pytest.mark.timeout(420)]

N_ROWS = 8


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small input file."""
    return write_parquet(tmp_path_factory.mktemp("rows") / "input.parquet", short_sample(N_ROWS))


@pytest.fixture(scope="module")
def metrics(tiny_settings: dict[str, object]) -> list[str]:
    return ["--metrics", "qrelscore", *(f"--set={key}={own}" for key, own in tiny_settings.items())]


@pytest.fixture(scope="module")
def local_scores(
    rows: Path, metrics: list[str], tmp_path_factory: pytest.TempPathFactory
) -> pl.DataFrame:
    """Scores of the same rows without Ray."""
    out = tmp_path_factory.mktemp("local")
    qaeval("score", rows, "--out", out, "--local", *metrics)
    return read_scores(out)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["token"])
def test_submitted_jobs_score_or_say_what_is_wrong(
    mode: str, rows: Path, local_scores: pl.DataFrame, metrics: list[str], tmp_path: Path
) -> None:
    """A job on a cluster does what one process does; a bad request fails it.

    A typo would otherwise be a job that "succeeded" and scored nothing. Jobs that filter are in
    tests/storage/test_cluster.py.
    """
    score = ("python", "-m", "qaeval.cli", "score", rows, *metrics)
    with running_head(mode) as head:
        code, log = head.submit(*score, "--out", tmp_path / "out")
        assert code == 0, log
        wrong_code, wrong_log = head.submit(
            *score, "--out", tmp_path / "wrong", "--column", "context=contxt"
        )

    scores = read_scores(tmp_path / "out")
    assert scores.height == N_ROWS
    assert scores["qrelscore"].null_count() == 0
    assert_same_scores(scores, local_scores)

    assert wrong_code != 0, wrong_log
    assert "no column contxt; did you mean 'context'?" in wrong_log
    assert not (tmp_path / "wrong" / "scores").exists()
