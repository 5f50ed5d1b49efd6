"""Document frequencies: in how many rows' references each n-gram of a corpus occurs.

Built from what the shards of a corpus list, kept as a file, read by every worker. Only n-grams of
two rows and more are kept where one weighs like none, as in CIDEr.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError
from qaeval_core.text.ngrams import HashArray

_N_DOCUMENTS = b"qaeval.n_documents"
_WORDS = b"qaeval.words"


@dataclass(frozen=True, slots=True)
class DocumentFrequencies:
    """Hashes of n-grams, ascending, with the rows that have them.

    ``words`` says how the texts were split: a table of other words would be a wrong one.
    """

    hashes: HashArray
    counts: NDArray[np.int64]
    n_documents: int
    words: str

    def of(self, hashes: HashArray, *, absent: int = 1) -> NDArray[np.int64]:
        """Return the rows that have each n-gram; ``absent`` where it is not known.

        Examples
        --------
        >>> known = DocumentFrequencies(np.array([3, 8], np.uint64), np.array([5, 2]), 9, "")
        >>> known.of(np.array([8, 4], np.uint64)).tolist()
        [2, 1]
        """
        if len(self.hashes) == 0:
            return np.full(len(hashes), absent, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[at] == hashes, self.counts[at], absent)


def count_documents(
    columns: Iterable[pa.Array], *, words: str, min_rows: int
) -> DocumentFrequencies:
    """Return the document frequencies of shards.

    Parameters
    ----------
    columns : iterable of list arrays of uint64
        The distinct n-grams of each row; a null or empty row is no document.
    words : str
        How texts were split.
    min_rows : int
        N-grams of fewer rows are not kept.

    Notes
    -----
    Holds the distinct n-grams of the corpus, 16 bytes each: some 50 million fit one GB.
    """
    hashes = np.zeros(0, dtype=np.uint64)
    counts = np.zeros(0, dtype=np.int64)
    n_documents = 0
    for column in columns:
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        n_documents += int(np.count_nonzero(np.nan_to_num(lengths)))
        own, own_counts = np.unique(
            column.flatten().to_numpy(zero_copy_only=False), return_counts=True
        )
        merged, places = np.unique(np.concatenate([hashes, own]), return_inverse=True)
        total = np.zeros(len(merged), dtype=np.int64)
        total[places[: len(hashes)]] += counts
        total[places[len(hashes) :]] += own_counts
        hashes, counts = merged, total
    kept = counts >= min_rows
    return DocumentFrequencies(hashes[kept], counts[kept], n_documents, words)


def to_bytes(frequencies: DocumentFrequencies) -> bytes:
    """Return the table as a Parquet file."""
    metadata = {
        _N_DOCUMENTS: str(frequencies.n_documents).encode(),
        _WORDS: frequencies.words.encode(),
    }
    table = pa.table({"hash": frequencies.hashes, "rows": frequencies.counts})
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), buffer, compression="zstd")
    return buffer.getvalue()


def read_frequencies(path: str | Path, *, words: str) -> DocumentFrequencies:
    """Read a table of document frequencies.

    Raises
    ------
    ConfigError
        If the file cannot be read, is no such table, or counts words that were split otherwise.
    """
    if not Path(path).is_file():
        raise ConfigError(f"no such file of document frequencies: {path}")
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"cannot read document frequencies {path}: {error}") from None
    metadata = table.schema.metadata or {}
    if _N_DOCUMENTS not in metadata or table.column_names != ["hash", "rows"]:
        raise ConfigError(f"{path} holds no document frequencies of qaeval")
    found = metadata[_WORDS].decode()
    if found != words:
        raise ConfigError(f"{path} counts words split by {found}, but this run splits by {words}")
    return DocumentFrequencies(
        table.column("hash").to_numpy(),
        table.column("rows").to_numpy(),
        int(metadata[_N_DOCUMENTS]),
        found,
    )
