"""Read as: how the columns of a file are read beyond what the file says of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.configure import InputSection
from qaeval_core.schema import UNREADABLE_LINE, is_json
from qaeval_core.text.plain_columns import plain_schema, with_inner

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class ReadAs:
    """How a file's columns are read beyond what the file says of them.

    Attributes
    ----------
    keys : tuple of (str, str or None)
        Columns that the names of its folders hold, as Hive writes them: ``lang=de``.
    binary_as_text : bool
        Whether bytes are texts.
    has_no_answers : bool
        Whether an empty list of references is the answer "": that there is none, as in SQuAD 2.0.
    """

    keys: tuple[tuple[str, str | None], ...] = ()
    binary_as_text: bool = False
    has_no_answers: bool = False

    @classmethod
    def of(cls, config: InputSection) -> ReadAs:
        """Return how a run reads its input."""
        has_no_answers = config.unanswerable == "empty"
        return cls(binary_as_text=config.binary_as_text, has_no_answers=has_no_answers)

    def schema(self, parquet: pq.ParquetSchema) -> pa.Schema:
        """Return the columns of a file as they are read: plain types, and its keys behind them."""
        plain = plain_schema(said_schema(parquet), binary_as_text=self.binary_as_text)
        # A file's own column goes before: its rows know better.
        own = [pa.field(name, pa.string()) for name, _ in self.keys if name not in plain.names]
        shown = [field for field in plain if field.name != UNREADABLE_LINE]
        return pa.schema([*shown, *own], metadata=plain.metadata)


def said_schema(parquet: pq.ParquetSchema) -> pa.Schema:
    """Return the columns as a file has them, JSON among them at any depth.

    Many writers say in Parquet's own words alone what is JSON.
    """
    are_json = (parquet.column(i).logical_type.type == "JSON" for i in range(len(parquet)))
    given = parquet.to_arrow_schema()
    fields = [field.with_type(_with_json(field.type, are_json)) for field in given]
    return pa.schema(fields, metadata=given.metadata)


def _with_json(kind: pa.DataType, are_json: Iterator[bool]) -> pa.DataType:
    """Return a type whose leaves, which are Parquet's columns in their order, say what is JSON."""
    if pa.types.is_nested(kind):
        return with_inner(kind, lambda inner: _with_json(inner, are_json))
    if isinstance(kind, pa.BaseExtensionType) and not is_json(kind):
        _with_json(kind.storage_type, are_json)  # It may have several leaves.
        return kind
    return pa.json_() if next(are_json) and not is_json(kind) else kind


def folder_keys(relative: str) -> tuple[tuple[str, str | None], ...]:
    """Return the columns that folders name.

    Examples
    --------
    >>> folder_keys("lang=de/day=2026%2D01/part-0.parquet")
    (('lang', 'de'), ('day', '2026-01'))
    """
    parts = (part.partition("=") for part in PurePosixPath(relative).parts[:-1])
    return tuple(
        (unquote(name), None if value == _HIVE_NULL else unquote(value))
        for name, sign, value in parts
        if sign and name
    )
