"""Corpus: the scores of a finished run beside their input, or a table of scores of another tool.

But: `opening` finds them; rows are read by `ranges`. Whoever works on ranges loads this alone, for
what a run is takes a third of a second to load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from qaeval_core.errors import SchemaError, nearest
from qaeval_core.planning.filesystems import open_filesystem
from qaeval_core.planning.inputs import InputFile, read_footer
from qaeval_core.planning.shards import stretches
from qaeval_core.schema import is_json
from qaeval_core.storage.path import StoragePath
from qaeval_core.store.row_ranges import RowRange

if TYPE_CHECKING:
    from qaeval_core.tables.score_tables import ScoreColumn
# Roles that rules and groups read.
ROLE_NAMES = ("id", "question", "context", "answer")

# Of files that are no larger nothing is put together from parts.
ROWS_PER_RANGE = 1 << 20


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """One file of rows.

    Attributes
    ----------
    source : InputFile
        The input; of a table of scores, the table.
    scores : InputFile, optional
        Scores of its first ``n_rows`` rows; None if they are in ``source``.
    start : int
        Number of its first row over the whole corpus.
    compares_ids : bool
        Whether each row's id shows that it is the row that was scored: the file lies elsewhere now.
    """

    source: InputFile
    scores: InputFile | None
    n_rows: int
    start: int
    compares_ids: bool = False

    @property
    def relative(self) -> str:
        """Name, as in OUT/scores."""
        return self.source.relative


@dataclass(frozen=True, slots=True)
class RangeTask:
    """Neighboring rows of one file that are read at once: whole row groups."""

    number: int
    file: CorpusFile
    rows: RowRange

    @property
    def start(self) -> int:
        """Number of its first row over the whole corpus."""
        return self.file.start + self.rows.start

    @property
    def is_first(self) -> bool:
        """Whether it is the first of its file."""
        return self.rows.start == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Rows and what is known of their columns.

    Attributes
    ----------
    id_column : str, optional
        Of the source; None: a row's id is its file and row number.
    roles : mapping of role to column
        Of question, context and answer, as far as there are any.
    score_names : tuple of str
        Columns of the scores that the source does not have.
    described : mapping of column to ScoreColumn
        What the metadata say of columns; empty for tables without them.
    instances : mapping of instance name to signature
    is_complete : bool
        False if OUT has no ``_SUCCESS``.
    folders : tuple of StoragePath
        Of the input, whatever lies in which is input, too.
    """

    out: StoragePath
    files: tuple[CorpusFile, ...]
    id_column: str | None
    roles: Mapping[str, str]
    score_names: tuple[str, ...]
    described: Mapping[str, ScoreColumn]
    instances: Mapping[str, str] = field(default_factory=dict)
    is_complete: bool = True
    has_run: bool = True
    notes: tuple[str, ...] = ()
    folders: tuple[StoragePath, ...] = ()

    @property
    def n_rows(self) -> int:
        """Rows of all files."""
        return sum(file.n_rows for file in self.files)

    @property
    def names(self) -> list[str]:
        """Columns that conditions and ranks may name: of every file."""
        common = [set(file.source.schema.names) for file in self.files]
        first = self.files[0].source.schema.names
        own = [name for name in first if all(name in names for names in common)]
        return [*own, *self.score_names]

    @property
    def all_roles(self) -> dict[str, str]:
        """Columns of roles, that of the id among them."""
        return {**({"id": self.id_column} if self.id_column is not None else {}), **self.roles}

    def named(self, given: str, option: str) -> str:
        """Return the column of a role, or the one of a name.

        Raises
        ------
        SchemaError
            If there is none; names the nearest.
        """
        roles = self.all_roles
        if given not in roles and given not in self.names:
            known = dict.fromkeys([*roles, *self.names])
            raise SchemaError(f"{option}: no column {given!r}{nearest(given, known)} [QA0305]")
        return roles.get(given, given)

    def field(self, name: str, file: CorpusFile | None = None) -> pa.Field:
        """Return the field of a column, in the first file or in another one."""
        file = file or self.files[0]
        scores = file.scores or file.source
        own = scores if name in self.score_names else file.source
        kind = own.type_of(name)
        if kind is None:
            raise KeyError(name)
        # JSON is the text that it is: nobody reads roles from it here.
        return pa.field(name, kind.storage_type if is_json(kind) else kind)

    def tasks(self) -> list[RangeTask]:
        """Return the rows in ranges of row groups; the same whoever works on them."""
        found: list[RangeTask] = []
        for file in self.files:
            own = [
                RowRange(stretch.rows.start, min(stretch.rows.stop, file.n_rows))
                for stretch in stretches(file.source.row_groups, rows_per_shard=ROWS_PER_RANGE)
            ]
            for rows in [rows for rows in own if rows.n_rows > 0] or [RowRange(0, 0)]:
                found.append(RangeTask(len(found), file, rows))
        return found


def column_bytes(file: InputFile, name: str) -> int:
    """Return the bytes that a column's chunks take unpacked, by the footer."""
    filesystem, path = open_filesystem(file.uri)
    with filesystem.open_input_file(path) as source:
        _, footer, _ = read_footer(source)
    return sum(
        chunk.n_bytes for group in footer.groups for chunk in group.chunks if chunk.column == name
    )
