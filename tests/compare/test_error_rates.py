"""How often a comparison finds a difference: where there is none, and where one was planted."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy import stats

from helpers import REPOSITORY
from qaeval_core.compare.counts import UnitCounts
from qaeval_core.compare.request import CompareRequest
from qaeval_core.compare.result import MetricResult, metric_results
from qaeval_core.compare.units import SharedUnits
from qaeval_core.tables.score_tables import ScoreColumn

ALPHA = 0.05
PLANTED_SD = 0.3
N_DRAWS, N_FEWER = 1000, 200
PAIR = ("T5-large_finetune", "BART-base_finetune")


def compared(values: NDArray[np.float64], clusters: NDArray[np.uint64]) -> MetricResult:
    """Compare systems by values of shape (n_systems, n_rows)."""
    names = [f"s{i}" for i in range(len(values))]
    n_systems, n = values.shape
    none = np.zeros(n_systems, np.int64)
    units = SharedUnits(
        keys=pa.chunked_array([[str(i) for i in range(n)]]),
        clusters=clusters,
        groups={},
        values=values[None],
        rows=np.tile(np.arange(n), (n_systems, 1)),
        n_rows=none + n,
        n_matched=none + n,
        n_repeated=none,
        n_unnamed=none,
        n_other_clusters=0,
    )
    counts = UnitCounts([(None, None)], n_systems)
    counts.add(units)
    request = CompareRequest(scores=tuple((name, name) for name in names))
    columns = {"x": ScoreColumn()}
    (found,) = metric_results(request, names, columns, counts, signatures={"x": ""})
    return found


def is_any_different(found: MetricResult) -> bool:
    return any(own.holds for own in found.systems)


@pytest.fixture(scope="module")
def judged(shared_data: Path) -> tuple[NDArray[np.float64], NDArray[np.uint64], list[str]]:
    """METEOR of QGEval's systems without the reference, by passage; a hash of each passage."""
    rows = pl.read_parquet(
        shared_data / "qgeval" / "qgeval_squad.parquet", columns=["id", "system"]
    ).with_columns(pl.read_parquet(REPOSITORY / "docs/evidence/scores/qgeval.parquet")["meteor"])
    wide = rows.filter(pl.col("system") != "reference").pivot("system", index="id", values="meteor")
    systems = wide.columns[1:]
    mixed = np.random.default_rng(0).integers(2**63, size=wide.height, dtype=np.uint64)
    return wide.select(systems).to_numpy().T.astype(np.float64), mixed, systems


def page() -> str:
    """The page that says how often, in lines of any length."""
    return " ".join((REPOSITORY / "docs" / "systems.md").read_text().split())


def upper(share: float, n: int) -> float:
    """The share and two standard errors."""
    return share + 2 * math.sqrt(share * (1 - share) / n)


@pytest.mark.slow
@pytest.mark.shared_data
def test_two_systems_swapped_at_random_hardly_ever_differ(judged: tuple) -> None:
    values, clusters, systems = judged
    pair = values[[systems.index(name) for name in PAIR]]
    rng = np.random.default_rng(1)
    n_found = 0
    for _ in range(N_DRAWS):
        swapped = rng.random(pair.shape[1]) < 0.5
        n_found += is_any_different(compared(np.where(swapped, pair[::-1], pair), clusters))
    assert 0 < n_found / N_DRAWS <= upper(ALPHA, N_DRAWS)
    assert f"{n_found / N_DRAWS:.1%} of 1,000 draws" in page()


@pytest.mark.long
@pytest.mark.shared_data
def test_fourteen_systems_permuted_at_random_hardly_ever_differ(judged: tuple) -> None:
    """The best is chosen by the same scores: the correction is for all pairs."""
    values, clusters, _ = judged
    rng = np.random.default_rng(2)
    n_found = sum(
        is_any_different(compared(rng.permuted(values, axis=0), clusters)) for _ in range(N_FEWER)
    )
    assert n_found / N_FEWER <= upper(ALPHA, N_FEWER)


@pytest.mark.slow
def test_rows_that_share_contexts_hardly_ever_differ() -> None:
    """Both systems' errors are those of their contexts, of uneven sizes."""
    rng = np.random.default_rng(3)
    n_found = 0
    for _ in range(N_FEWER):
        contexts = np.repeat(np.arange(60), rng.integers(1, 9, size=60))
        shared = rng.normal(size=60)[contexts]
        values = np.stack(
            [
                shared + rng.normal(size=60)[contexts] + rng.normal(size=len(contexts))
                for _ in range(2)
            ]
        )
        swapped = (rng.random(60) < 0.5)[contexts]
        values = np.where(swapped, values[::-1], values)
        hashes = rng.integers(2**63, size=60, dtype=np.uint64)[contexts]
        n_found += is_any_different(compared(values, hashes))
    assert 0 < n_found / N_FEWER <= upper(ALPHA, N_FEWER)


@pytest.mark.slow
@pytest.mark.shared_data
def test_a_planted_difference_is_found_more_often_than_without_pairs(judged: tuple) -> None:
    """The page says how often."""
    values, _, systems = judged
    pair = values[[systems.index(name) for name in PAIR]]
    planted = PLANTED_SD * pair.std()
    rng = np.random.default_rng(4)
    n = 200
    paired = unpaired = 0
    for _ in range(n):
        chosen = rng.integers(pair.shape[1], size=pair.shape[1])
        swapped = rng.random(len(chosen)) < 0.5
        own = np.where(swapped, pair[::-1, chosen], pair[:, chosen])
        own[1] += planted
        hashes = rng.integers(2**63, size=len(chosen), dtype=np.uint64)
        paired += is_any_different(compared(own, hashes))
        unpaired += stats.ttest_ind(*own, equal_var=False).pvalue <= ALPHA
    assert f"is found in {paired / n:.0%} of samples of 100 passages" in page()
    assert f"by the unpaired t-test in {unpaired / n:.0%}" in page()
