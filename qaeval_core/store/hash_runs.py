"""Hash runs: hashes that occur in many parts of a corpus, counted part by part and then cut by cut.

A run is a file of the distinct hashes of a part, ascending, each with its number. All runs are cut
at the same hashes, a row group a cut, so that one worker can add up one cut of all runs: no worker
holds more than a part's hashes or a cut's.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from qaeval_core.errors import ReconcileError
from qaeval_core.storage.path import StoragePath

UInt64 = NDArray[np.uint64]

_SCHEMA = pa.schema(
    [pa.field("hash", pa.uint64(), nullable=False), pa.field("rows", pa.int64(), nullable=False)]
)
MOST_CUTS = 256


class HashCounts(NamedTuple):
    """Distinct hashes, ascending, and how often each occurs; arrays of shape (n_hashes,)."""

    hashes: UInt64
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, parts: Iterable[UInt64]) -> HashCounts:
        """Return the counts of all hashes of some arrays.

        Examples
        --------
        >>> own = HashCounts.of([np.array([7, 3], np.uint64), np.array([7], np.uint64)])
        >>> own.hashes.tolist(), own.counts.tolist(), own.n_repeats
        ([3, 7], [1, 2], 1)
        """
        hashes = np.sort(np.concatenate([np.empty(0, np.uint64), *parts]))
        first = np.flatnonzero(
            np.concatenate([hashes[:1] == hashes[:1], hashes[1:] != hashes[:-1]])
        )
        return cls(hashes[first], np.diff(np.append(first, len(hashes))))

    @property
    def n_repeats(self) -> int:
        """How many occur again."""
        return int(self.counts.sum()) - len(self.hashes)

    def of_at_least(self, least: int) -> HashCounts:
        """Return those that occur so often."""
        kept = self.counts >= least
        return HashCounts(self.hashes[kept], self.counts[kept])

    def merged(self, other: HashCounts) -> HashCounts:
        """Return the counts of both."""
        if not len(self.hashes):
            return other
        hashes = np.concatenate([self.hashes, other.hashes])
        # Two ascending runs: a stable sort finds and merges them.
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        counts = np.concatenate([self.counts, other.counts])[order]
        first = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]]))
        return HashCounts(hashes[first], np.add.reduceat(counts, first))


NONE = HashCounts(np.empty(0, np.uint64), np.empty(0, np.int64))


def added_up(parts: Iterable[HashCounts]) -> HashCounts:
    """Return the counts of all parts; a hash is merged log n times, no more."""
    # Each run at least twice as long as the next.
    runs = [NONE]
    for own in parts:
        runs.append(own)
        while len(runs) > 1 and len(runs[-2].hashes) < 2 * len(runs[-1].hashes):
            runs.append(runs.pop(-2).merged(runs.pop()))
    while len(runs) > 1:
        runs.append(runs.pop(-2).merged(runs.pop()))
    return runs[0]


def write_run(
    counted: HashCounts, *, n_cuts: int, metadata: Mapping[str, str] | None = None
) -> bytes:
    """Return a run as a Parquet file.

    Parameters
    ----------
    n_cuts : int
        Row groups: a power of two, 256 at most, the same for all runs.
    metadata : mapping of str to str, optional
        What else is known of the part.
    """
    table = pa.table(list(counted), schema=_SCHEMA).replace_schema_metadata(dict(metadata or {}))
    ends = _cut_ends(counted.hashes, n_cuts)
    buffer = io.BytesIO()
    # Hashes do not get shorter; that most of them occur once, its encoding says in a few bytes.
    with pq.ParquetWriter(
        buffer,
        table.schema,
        compression="none",
        use_dictionary=["rows"],
        write_statistics=False,
        write_page_checksum=True,
    ) as writer:
        for start, stop in pairwise(ends):
            writer.write_table(
                table.slice(start, stop - start), row_group_size=max(stop - start, 1)
            )
    return buffer.getvalue()


def read_cut(paths: Sequence[StoragePath], cut: int) -> HashCounts:
    """Return the counts of one cut of several runs."""
    return added_up(_read_group(path, cut) for path in paths)


def _read_group(path: StoragePath, cut: int) -> HashCounts:
    try:
        with pq.ParquetFile(path.source(), page_checksum_verification=True) as file:
            table = file.read_row_group(cut)
    except (OSError, pa.ArrowException) as error:
        if getattr(error, "errno", None) is not None:
            raise  # The disk's: it is asked again.
        raise ReconcileError(
            f"{path} is damaged ({error}); delete it and run again [QA0510]"
        ) from None
    return HashCounts(table.column("hash").to_numpy(), table.column("rows").to_numpy())


def read_metadata(path: StoragePath) -> dict[str, str]:
    """Return what else is known of a run's part."""
    with pq.ParquetFile(path.source()) as file:
        metadata = file.schema_arrow.metadata or {}
    return {name.decode(): own.decode() for name, own in metadata.items()}


def _cut_ends(hashes: UInt64, n_cuts: int) -> list[int]:
    """Return where each cut begins, and the end."""
    bits = n_cuts.bit_length() - 1
    edges = np.arange(1, n_cuts, dtype=np.uint64) << np.uint64(64 - bits if bits else 0)
    return [0, *np.searchsorted(hashes, edges).tolist(), len(hashes)]


def n_cuts_for(n_hashes: int, *, per_cut: int) -> int:
    """Return the least power of two of cuts with so many hashes each, 256 at most.

    Examples
    --------
    >>> n_cuts_for(9, per_cut=4), n_cuts_for(0, per_cut=4)
    (4, 1)
    """
    least = max(-(-n_hashes // per_cut), 1)
    return min(1 << (least - 1).bit_length(), MOST_CUTS)
