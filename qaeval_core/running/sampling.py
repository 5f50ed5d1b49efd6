"""Sampling: which contexts are the sample, in one pass over their column alone.

Pieces of files are read side by side, and each gives its contexts of smallest hash and how many
rows they have: what is in hand does not grow with the input. A context that is among the smallest
of all is among those of every piece that it is in, so the counts are exact.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from qaeval_core.configure import RunConfig
from qaeval_core.errors import InputError, UnreadableFileError
from qaeval_core.families.validate import IntArray
from qaeval_core.planning.inputs import InputFile
from qaeval_core.planning.job import Inputs, corpus_hash, count_rows
from qaeval_core.planning.sample import context_column
from qaeval_core.planning.shards import Piece, ReadLimits, plan_file
from qaeval_core.running.reader import ShardReader
from qaeval_core.storage.path import read_json
from qaeval_core.storage.retry import STORAGE_SETTING, Outages
from qaeval_core.store.sample import LARGEST_HASH, Sample, read_sample
from qaeval_core.text.column_hashes import UInt64, column_hashes

_ROWS_PER_READ = 1 << 16
_LIMITS = ReadLimits(shard_bytes=1 << 24)
_MAX_THREADS = 8


def with_sample(config: RunConfig, inputs: Inputs) -> Inputs:
    """Return the inputs with the sample that is asked for, if one is.

    That of the last run into the same OUT is taken if it was drawn from the same rows.

    Raises
    ------
    SchemaError
        If a file has no column of contexts.
    InputError
        If no row has a context.
    InputChangedError, StorageError
        If an input changes meanwhile, or does not come.
    """
    n_groups = config.input.sample_groups
    if n_groups is None:
        return inputs
    column = context_column(inputs.files, config.input.columns)
    n_rows = count_rows(inputs.files, config.input.limit)
    corpus = corpus_hash(inputs.files, n_rows)
    if config.output.path is not None:
        known = read_sample((read_json(inputs.store.out / "run.json") or {}).get("sample"))
        if known and (known.corpus, known.column, known.n_groups) == (corpus, column, n_groups):
            return replace(inputs, sample=known)
    pieces = _pieces(inputs.files, n_rows)
    found = _smallest_of_all(
        pieces,
        column,
        n_groups=n_groups,
        are_coded=all(_is_plain_text(file, column) for file in inputs.files),
        outages=Outages(retry_s=config.scoring.retry_storage_s, setting=STORAGE_SETTING),
    )
    if pieces and not len(found.hashes):
        raise InputError(f"input.sample_groups: no row has a context (column {column!r}) [QA0319]")
    sample = Sample(
        column=column,
        cut=LARGEST_HASH if found.is_all else int(found.hashes[-1]),
        n_groups=n_groups,
        n_contexts=len(found.hashes),
        n_rows=int(found.counts.sum()),
        n_without=found.n_without,
        corpus=corpus,
    )
    return replace(inputs, sample=sample)


def rows_of_sample(
    files: Sequence[InputFile], n_rows: Mapping[str, int], sample: Sample | None
) -> IntArray | None:
    """Return the numbers of a sample's rows over all files, ascending; None without a sample.

    Parameters
    ----------
    n_rows : mapping of file id to int
        Rows of each file that count.

    Raises
    ------
    UnreadableFileError, InputChangedError, StorageError
        If contexts cannot be read.
    """
    if sample is None:
        return None
    reader = ShardReader([sample.column])
    found: list[IntArray] = [np.zeros(0, np.int64)]
    start = 0
    for file in files:
        for piece in _pieces([file], n_rows):
            for shard in piece.shards:
                for rows, table in reader.parts(piece, shard):
                    own = np.flatnonzero(sample.chosen(table.column(sample.column)))
                    found.append(start + rows.start + own)
        start += n_rows[file.file_id]
    reader.close()
    return np.concatenate(found)


def _pieces(files: Sequence[InputFile], n_rows: Mapping[str, int]) -> list[Piece]:
    """Return the rows of files as pieces of no family."""
    return [
        piece
        for file in files
        for piece in plan_file(
            file,
            done={"": ()},
            rows_per_shard=_ROWS_PER_READ,
            limits=_LIMITS,
            n_rows=n_rows[file.file_id],
        )
    ]


def _is_plain_text(file: InputFile, column: str) -> bool:
    kind = file.type_of(column)
    return kind is not None and bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


class _Smallest(NamedTuple):
    """Contexts of smallest hash.

    Attributes
    ----------
    hashes, counts : ndarrays of shape (n_contexts,)
        Hashes, and how many rows have them; once merged, ascending and each once.
    is_all : bool
        Whether none was left out.
    n_without : int
        Rows without a context.
    """

    hashes: UInt64 = np.zeros(0, np.uint64)
    counts: IntArray = np.zeros(0, np.int64)
    is_all: bool = True
    n_without: int = 0

    def merged(self, other: _Smallest, *, n_groups: int) -> _Smallest:
        """Return the smallest of both."""
        both = np.concatenate([self.hashes, other.hashes])
        distinct, places = np.unique(both, return_inverse=True)
        counts = np.zeros(len(distinct), np.int64)
        np.add.at(counts, places, np.concatenate([self.counts, other.counts]))
        return _Smallest(
            distinct[:n_groups],
            counts[:n_groups],
            self.is_all and other.is_all and len(distinct) <= n_groups,
            self.n_without + other.n_without,
        )


def _smallest_of_all(
    pieces: Sequence[Piece], column: str, *, n_groups: int, are_coded: bool, outages: Outages
) -> _Smallest:
    """Return the smallest hashes of all pieces."""
    look = partial(
        _smallest_of, column=column, n_groups=n_groups, are_coded=are_coded, outages=outages
    )
    total = _Smallest()
    pool = ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_THREADS))
    try:
        for own in pool.map(look, pieces):
            total = total.merged(own, n_groups=n_groups)
    finally:
        pool.shutdown(cancel_futures=True)
    return total


def _smallest_of(
    piece: Piece, *, column: str, n_groups: int, are_coded: bool, outages: Outages
) -> _Smallest:
    """Return the smallest hashes of a piece."""
    reader = ShardReader([column], outages=outages, max_rows=_ROWS_PER_READ, are_coded=are_coded)
    total = _Smallest()
    try:
        for shard in piece.shards:
            for _, table in reader.parts(piece, shard):
                hashes, is_there = column_hashes(table.column(column))
                own = hashes[is_there]
                n_without = len(hashes) - len(own)
                part = _Smallest(own, np.ones(len(own), np.int64), n_without=n_without)
                total = total.merged(part, n_groups=n_groups)
    except UnreadableFileError:
        pass  # These rows will be quarantined, by the worker that is to score them.
    finally:
        reader.close()
    return total
