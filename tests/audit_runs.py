"""Profiles of arrays, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.audit.pair_counts import MatchedCounts, MatchedPairs
from qaeval_core.audit.paired import PairedColumn
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.profile.cells import Cells, choose_cells
from qaeval_core.profile.run_profile import RunProfile
from qaeval_core.profile.slices import Slices

Array = NDArray[np.float64]


def cells_of(values: Mapping[str, Array]) -> dict[str, Cells]:
    """Return cells for columns."""
    return {name: choose_cells(lambda own=own: [own]) for name, own in values.items()}


def hashes_of(codes: NDArray[np.int64], seed: int = 0) -> NDArray[np.uint64]:
    """Return hashes of clusters numbered from 0."""
    n = int(codes.max(initial=-1)) + 1
    return np.random.default_rng(seed).integers(0, 2**64 - 1, n, dtype=np.uint64)[codes]


def run_of(
    values: Mapping[str, Array],
    clusters: NDArray[np.uint64],
    cells: Mapping[str, Cells],
    *,
    systems: Sequence[str | None] | None = None,
    slices: Sequence[str | None] = (),
    signature: str = "",
    **given: object,
) -> RunProfile:
    """Return the profile of rows, sliced by one column if there is one."""
    by = {} if systems is None else {"system": pa.chunked_array([pa.array(systems, pa.string())])}
    run = RunProfile.of(
        cells,
        Slices({"system": tuple(slices)} if by else {}),
        signatures=dict.fromkeys(cells, signature),
    )
    run.add(values, clusters, by=by, **given)
    return run


def clustered(
    n_clusters: int, n_each: int, *, shift: float = 0.0, seed: int = 0
) -> tuple[Array, NDArray[np.uint64]]:
    """Return scores whose clusters differ as much as rows within them do, and cluster hashes."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(n_clusters), n_each)
    scores = rng.normal(size=n_clusters)[codes] + rng.normal(size=len(codes)) + shift
    return scores, hashes_of(codes, seed + 1)


def paired_columns(
    values: Mapping[str, tuple[np.ndarray, np.ndarray]],
    ids: pa.ChunkedArray,
    clusters: np.ndarray,
    settings: AuditSettings,
    *,
    is_same: Mapping[str, np.ndarray] | None = None,
) -> list[PairedColumn]:
    """Compare the values of matched rows, all at once."""
    counts = MatchedCounts(settings)
    rows = np.arange(len(ids))
    counts.add(
        MatchedPairs(ids=ids, rows=rows, clusters=clusters, values=values, is_same=is_same or {})
    )
    return counts.columns()
