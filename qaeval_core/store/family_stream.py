"""Family stream: a file's committed statistics of one family in row order, read ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pyarrow as pa

from qaeval_core.errors import ReconcileError
from qaeval_core.schema import POSITION, QUARANTINE_MESSAGE, QUARANTINE_REASON
from qaeval_core.store.row_ranges import RowRange
from qaeval_core.store.store import Store

_QUARANTINE_COLUMNS = (QUARANTINE_REASON, QUARANTINE_MESSAGE)
# Commits that are read while others are worked on: a bucket takes tens of milliseconds for each.
_AHEAD = 4


class FamilyStream:
    """Reads statistics of one family in row order, whatever its shards are.

    Parameters
    ----------
    store : Store
    family, file_id : str
    ranges : iterable of RowRange
        Committed ranges, disjoint and in order; of those before ``start`` none.
    schema : pyarrow.Schema, optional
        Of the family's statistics: rows that are not committed come as nulls. Without one, the
        ranges must tile the rows that are read.
    start : int, default 0
        First row that is read.
    pool : ThreadPoolExecutor, optional
        Reads commits ahead.
    """

    def __init__(
        self,
        store: Store,
        family: str,
        file_id: str,
        ranges: Iterable[RowRange],
        *,
        schema: pa.Schema | None = None,
        start: int = 0,
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        self._ranges = iter(ranges)
        self._file_id = file_id
        self._read = partial(store.read, family, file_id)
        self._schema = schema
        self._position = start
        self._pool = pool
        self._ahead: deque[tuple[RowRange, Future[pa.Table] | None]] = deque()
        self._left: pa.Table | None = None

    def take(self, n_rows: int) -> pa.Table:
        """Return the next rows."""
        parts = []
        while n_rows > 0:
            table = self._left if self._left is not None else self._open(n_rows)
            taken = min(n_rows, table.num_rows)
            parts.append(table.slice(0, taken))
            self._left = table.slice(taken) if taken < table.num_rows else None
            self._position += taken
            n_rows -= taken
        return pa.concat_tables(parts)

    def _open(self, n_rows: int) -> pa.Table:
        """Return the rest of the next commit, or at most so many rows of nulls before it."""
        self._look_ahead()
        rows = self._ahead[0][0] if self._ahead else None
        if rows is not None and rows.start <= self._position:
            _, reading = self._ahead.popleft()
            self._look_ahead()
            table = self._read(rows) if reading is None else reading.result()
            return table.slice(self._position - rows.start)
        if self._schema is None:
            raise ReconcileError(
                f"row {self._position} of {self._file_id} is not committed [QA0509]"
            )
        n_missing = n_rows if rows is None else min(rows.start - self._position, n_rows)
        columns: dict[str, pa.Array] = {
            POSITION: pa.array(range(self._position, self._position + n_missing), pa.int64()),
            **{name: pa.nulls(n_missing, pa.string()) for name in _QUARANTINE_COLUMNS},
            **{field.name: pa.nulls(n_missing, field.type) for field in self._schema},
        }
        return pa.table(columns)

    def _look_ahead(self) -> None:
        """Begin to read what comes next."""
        while len(self._ahead) < (1 if self._pool is None else _AHEAD):
            rows = next(self._ranges, None)
            if rows is None:
                return
            reading = None if self._pool is None else self._pool.submit(self._read, rows)
            self._ahead.append((rows, reading))
