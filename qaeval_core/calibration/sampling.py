"""Sampling: some rows of the input files, drawn by chance, for calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qaeval_core.families.validate import IntArray, table_rows
from qaeval_core.planning.inputs import InputFile
from qaeval_core.planning.shards import ReadLimits, plan_file
from qaeval_core.running.reader import ShardReader

_ROWS_PER_READ = 4096


def draw_rows(n_total: int, *, n_rows: int, rng: np.random.Generator) -> IntArray:
    """Return numbers of rows drawn without replacement, ascending."""
    return np.sort(rng.choice(n_total, size=min(n_total, n_rows), replace=False))


def read_rows(
    files: Sequence[InputFile],
    chosen: IntArray,
    *,
    n_rows: Mapping[str, int],
    columns: Mapping[str, str],
    limits: ReadLimits,
) -> dict[str, list[object]]:
    """Return the values of chosen rows by role, in order of the input.

    Parameters
    ----------
    chosen : int ndarray
        Numbers of rows over all files, ascending.
    n_rows : mapping of file id to int
        Rows of each file that count.
    columns : mapping of role to column
    limits : ReadLimits
        How much is read at once.
    """
    reader = ShardReader(list(columns.values()))
    values: dict[str, list[object]] = {role: [] for role in columns}
    offset = 0
    for file in files:
        pieces = plan_file(
            file,
            done={"": ()},
            rows_per_shard=_ROWS_PER_READ,
            limits=limits,
            n_rows=n_rows[file.file_id],
        )
        shards = ((piece, rows) for piece in pieces for rows in piece.shards)
        for piece, rows in shards:
            first, stop = np.searchsorted(chosen, [offset + rows.start, offset + rows.stop])
            if first == stop:
                continue
            for part, table in reader.parts(piece, rows):
                first, stop = np.searchsorted(chosen, [offset + part.start, offset + part.stop])
                taken = table.take(chosen[first:stop] - offset - part.start)
                for role, own in table_rows(
                    taken, columns=columns, max_bytes=limits.text_bytes
                ).items():
                    values[role] += own
        offset += n_rows[file.file_id]
    return values
