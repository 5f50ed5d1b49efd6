"""Row parts: rows put into parts by a hash of what says that they belong together, such as ids.

A part has all rows of some ids, so it is matched alone. Where rows are many their parts are files,
so memory does not grow with them.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.errors import RunError
from qaeval_core.storage import files
from qaeval_core.text.column_hashes import text_column

ROWS_PER_PART = 1 << 20
# Each is an open file while rows are put into parts, of 1,024 that a process may often have.
MAX_PARTS = 512


class RowParts:
    """Tables of rows, each cut into the same number of parts.

    Parameters
    ----------
    n_rows : int
        Of all tables whose parts are in hand at once.
    stack : ExitStack
        Closed when the parts are needed no more.
    rows_per_part : int, default 2^20
        More where there would be more than 512 parts.

    Attributes
    ----------
    n_parts : int

    Examples
    --------
    >>> with ExitStack() as stack:
    ...     parts = RowParts(4, stack)
    ...     with parts.writing("scores") as put:
    ...         for ids in (["a", "b"], ["b", "a"]):
    ...             put(pa.table({"id": ids}), "id")
    ...     found = [parts.take("scores", number) for number in range(parts.n_parts)]
    >>> [table["id"].to_pylist() for table in found if table is not None]
    [['a', 'b', 'b', 'a']]
    """

    def __init__(self, n_rows: int, stack: ExitStack, *, rows_per_part: int = ROWS_PER_PART):
        self.n_parts = min(max(-(-n_rows // rows_per_part), 1), MAX_PARTS)
        self._held: dict[str, list[pa.RecordBatch]] = {}
        self._folder: Path | None = None
        if self.n_parts > 1:
            folder = tempfile.TemporaryDirectory(prefix="qaeval-parts-")
            self._folder = Path(stack.enter_context(folder))

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Callable[[pa.Table, str], None]]:
        """Yield what puts rows of a table into parts, by the column that says who belongs together.

        Rows of a part stay in order. Hashes are of texts, whatever type holds them.

        Raises
        ------
        RunError
            If the disk is full.
        """
        writers: dict[int, pa.RecordBatchStreamWriter] = {}
        stack = ExitStack()

        def put(table: pa.Table, key: str) -> None:
            if self._folder is None:
                self._held.setdefault(name, []).extend(table.to_batches())
                return
            for number, own in self._cut(table, key):
                with self._disk():
                    if number not in writers:
                        path = str(self._path(name, number))
                        sink = stack.enter_context(pa.OSFile(path, "wb"))
                        writer = pa.ipc.new_stream(sink, table.schema)
                        writers[number] = stack.enter_context(writer)
                    writers[number].write_table(own)

        try:
            yield put
        except BaseException:
            # A full disk fails at the end again, and the first error says more.
            with contextlib.suppress(OSError):
                stack.close()
            raise
        with self._disk():
            stack.close()

    def _cut(self, table: pa.Table, key: str) -> Iterator[tuple[int, pa.Table]]:
        # Not those that are kept anywhere: polars has others in its next version, and is fast.
        texts = pl.Series(pl.from_arrow(text_column(table[key])), dtype=pl.String)
        numbers = (texts.hash().to_numpy() % np.uint64(self.n_parts)).astype(np.uint16)
        order = np.argsort(numbers, kind="stable")
        table, starts = table.take(pa.array(order)), self._starts(numbers[order])
        for number in np.flatnonzero(np.diff(starts)).tolist():
            yield number, table.slice(starts[number], starts[number + 1] - starts[number])

    def _starts(self, numbers: NDArray[np.uint16]) -> list[int]:
        found: list[int] = np.searchsorted(numbers, np.arange(self.n_parts + 1)).tolist()
        return found

    def take(self, name: str, number: int) -> pa.Table | None:
        """Return the rows of a part of a table, which is kept no longer; None where it has none."""
        if self._folder is None:
            held = self._held.pop(name, None)
            return pa.Table.from_batches(held) if held else None
        path = self._path(name, number)
        if not path.is_file():
            return None
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
            files.delete(path)  # Its room is free again with the last column that somebody holds.
            return reader.read_all()

    def _path(self, name: str, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}-{number}.arrow"

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(
                f"rows to be matched do not fit in {self._folder}: {error}; TMPDIR names a folder "
                "on a larger disk [QA0705]"
            ) from None
