"""Document frequencies: in how many rows' references each n-gram of a corpus occurs.

Built from what the shards of a corpus list, kept as a file, read by every worker. Only n-grams of
two rows and more are kept where one weighs like none, as in CIDEr.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError
from qaeval_core.families.contract import DocumentFrequencies
from qaeval_core.families.words.rows import (
    Compute,
    Pairs,
    WordStatistics,
    WordTables,
    lists,
    numbers,
)
from qaeval_core.metrics.cider import idf, similarity
from qaeval_core.storage.arrow import table_at
from qaeval_core.storage.path import AnyPath, as_path
from qaeval_core.storage.retry import Outages
from qaeval_core.store.hash_runs import HashCounts, added_up
from qaeval_core.text.ngrams import GramCounts, HashArray, gram_hashes, word_hashes

_N_DOCUMENTS = b"qaeval.n_documents"
_WORDS = b"qaeval.words"


@dataclass(frozen=True, slots=True)
class FrequencyTable:
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
        >>> known = FrequencyTable(np.array([3, 8], np.uint64), np.array([5, 2]), 9, "")
        >>> known.of(np.array([8, 4], np.uint64)).tolist()
        [2, 1]
        """
        if len(self.hashes) == 0:
            return np.full(len(hashes), absent, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[at] == hashes, self.counts[at], absent)


def count_documents(columns: Iterable[pa.Array], *, words: str, min_rows: int) -> FrequencyTable:
    """Return the document frequencies of shards.

    Parameters
    ----------
    columns : iterable of list arrays of uint64
        The distinct n-grams of each row; a null or empty row is no document.
    words : str
        How texts were split.
    min_rows : int
        N-grams of fewer rows are not kept.
    """
    counted, n_documents = count_grams(columns)
    kept = counted.of_at_least(min_rows)
    return FrequencyTable(kept.hashes, kept.counts, n_documents, words)


def count_grams(columns: Iterable[pa.Array]) -> tuple[HashCounts, int]:
    """Return in how many rows of shards each n-gram is, and how many rows have any.

    Notes
    -----
    Holds the distinct n-grams of all shards, 16 bytes each, twice at most: 30 million fit one GB.
    """
    n_documents = 0

    def counted() -> Iterator[HashCounts]:
        nonlocal n_documents
        for column in columns:
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            n_documents += int(np.count_nonzero(np.nan_to_num(lengths)))
            yield HashCounts.of([column.flatten().to_numpy(zero_copy_only=False)])

    return added_up(counted()), n_documents


def table_of_counts(counted: HashCounts, *, n_documents: int, words: str) -> pa.Table:
    """Return counts as the table that `read_frequencies` reads, or as some rows of it."""
    metadata = {_N_DOCUMENTS: str(n_documents).encode(), _WORDS: words.encode()}
    table = pa.table({"hash": counted.hashes, "rows": counted.counts})
    return table.replace_schema_metadata(metadata)


def read_frequencies(
    path: AnyPath, *, words: str, outages: Outages | None = None
) -> FrequencyTable:
    """Read a table of document frequencies.

    Parameters
    ----------
    path : path or URI
    words : str
        How texts are split.
    outages : Outages, optional
        How long an object store is tried; default once.

    Raises
    ------
    ConfigError
        If the file cannot be read, is no such table, or counts words that were split otherwise.
    StorageError
        If an object store does not give it for as long as it is tried.
    """
    path = as_path(path)

    def read() -> pa.Table | None:
        return table_at(path) if path.is_file() else None

    what = f"cannot read document frequencies {path}"
    try:
        if path.local is not None:
            table = read()
        else:
            table = (outages or Outages()).call(read, store=path.place, what=what)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{what}: {error} [QA0219]") from None
    if table is None:
        raise ConfigError(f"no such file of document frequencies: {path} [QA0219]")
    metadata = table.schema.metadata or {}
    if _N_DOCUMENTS not in metadata or table.column_names != ["hash", "rows"]:
        raise ConfigError(f"{path} is not a file of document frequencies [QA0219]")
    found = metadata[_WORDS].decode()
    if found != words:
        raise ConfigError(
            f"{path} was counted with the tokenizer {found}, and this run uses {words} [QA0219]"
        )
    return FrequencyTable(
        table.column("hash").to_numpy(),
        table.column("rows").to_numpy(),
        int(metadata[_N_DOCUMENTS]),
        found,
    )


Values = Mapping[str, Sequence[Any]]


def document_frequencies(values: Values, options: Mapping[str, Any], texts: WordTables) -> Compute:
    """List the distinct n-grams of each row's references, as hashes."""
    table = texts.table(options)
    pairs = texts.pairs(table, [""] * len(values["references"]), values["references"])

    def compute() -> WordStatistics:
        counts = texts.counts(table)
        words, ids = word_hashes(table.words), table.ids
        rows, hashes = [], []
        for order in counts:
            own = gram_hashes(order, ids=ids, words=words)
            owner, entries = order.entries_of(pairs.other)
            rows.append(pairs.row[owner])
            hashes.append(own[order.grams[entries]])
        return {"grams": _distinct_lists(rows, hashes, n_rows=len(pairs.candidate))}

    return compute


def _distinct_lists(
    rows: Sequence[np.ndarray[Any, Any]], hashes: Sequence[HashArray], *, n_rows: int
) -> pa.Array:
    """Return each row's distinct hashes as a list column."""
    row, found = np.concatenate(rows), np.concatenate(hashes)
    order = np.lexsort((found, row))
    row, found = row[order], found[order]
    is_new = np.ones(len(row), dtype=bool)
    is_new[1:] = (row[1:] != row[:-1]) | (found[1:] != found[:-1])
    return lists(found[is_new], np.bincount(row[is_new], minlength=n_rows))


def tf_idf(
    values: Values,
    options: Mapping[str, Any],
    texts: WordTables,
    frequencies: DocumentFrequencies,
) -> Compute:
    """Measure the cosine of weighted n-grams with each reference."""
    pairs = texts.pairs(texts.table(options), values["candidate"], values["references"])

    def compute() -> WordStatistics:
        counts = texts.counts(pairs.table)
        lengths = pairs.table.lengths
        words, ids = word_hashes(pairs.table.words), pairs.table.ids
        cosines = []
        has_weight = np.zeros(len(lengths), dtype=bool)
        for order in counts:
            hashes = gram_hashes(order, ids=ids, words=words)
            # In the order of hashes, sums round alike in every shard: equal rows tie.
            by_hash = np.argsort(hashes, kind="stable")
            weight = idf(frequencies.of(hashes), n_documents=frequencies.n_documents)
            ranked = order.renumbered(np.argsort(by_hash, kind="stable"))
            weighted = _weighted(ranked, weight[by_hash])
            has_weight |= weighted.squares > 0
            cosines.append(_cosine(pairs, ranked, weighted))
        mean = np.mean(cosines, axis=0)
        # Of words all of which weigh nothing, in all references of a row, nothing can be said.
        both = (lengths[pairs.own_candidate] > 0) & (lengths[pairs.other] > 0)
        says = ~(both & ~has_weight[pairs.other])
        row = pairs.row
        row_says = np.bincount(row, says, minlength=len(pairs.n_others)) > 0
        mean = np.where(row_says[row], mean, np.nan)
        return {
            "n_candidate": numbers(lengths[pairs.candidate]),
            "n_reference": lists(lengths[pairs.other], pairs.n_others),
            "similarity": lists(mean, pairs.n_others),
            "no_words": lists(pairs.no_words(options), pairs.n_others),
        }

    return compute


class _Weighted(NamedTuple):
    """Weights of n-grams, and the squared norm |g|^2 of each text."""

    weight: np.ndarray[Any, Any]
    squares: np.ndarray[Any, Any]


def _weighted(order: GramCounts, weight: np.ndarray[Any, Any]) -> _Weighted:
    text = np.repeat(np.arange(len(order.offsets) - 1), np.diff(order.offsets))
    weighted = order.counts * weight[order.grams]  # g_k
    squares = np.bincount(text, weights=weighted**2, minlength=len(order.offsets) - 1)
    return _Weighted(weight, squares)


def _cosine(pairs: Pairs, order: GramCounts, weighted: _Weighted) -> Any:
    """Return sim_i of every candidate with every reference of its row."""
    weight, squares = weighted
    candidate, other, places = pairs.distinct()
    found = order.pair_counts(candidate, other)
    gram_weight = weight[order.grams[found.entry]]
    common = np.minimum(found.candidate, found.other) * found.other * gram_weight**2
    totals = np.bincount(found.owner, weights=common, minlength=len(candidate))
    products = totals.astype(np.float64)
    norms = np.sqrt(squares)
    return similarity(
        products=products, candidate_norms=norms[candidate], reference_norms=norms[other]
    )[places]
