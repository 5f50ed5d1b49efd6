"""Texts: what a person reads of the units that differ most, read from the input again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qaeval_core.compare.result import MetricResult
from qaeval_core.compare.sides import Side, Sides
from qaeval_core.compare.units import RowParts
from qaeval_core.pages.example_rows import read_texts
from qaeval_core.planning.shards import ReadLimits
from qaeval_core.storage.retry import Outages
from qaeval_core.tables.executor import RETRY_S

# By the number of a system, and the number of a row in its corpus.
TextsOfRows = Mapping[tuple[int, int], Mapping[str, object]]


def far_texts(
    sides: Sides, parts: RowParts, metrics: Sequence[MetricResult]
) -> dict[tuple[int, int], Mapping[str, object]]:
    """Return the texts of the rows of units that differ most, by system and row."""
    found: dict[tuple[int, int], Mapping[str, object]] = {}
    for i in range(len(parts.systems)):
        side = sides.sides[i if len(sides.sides) > 1 else 0]
        rows = sorted({unit.rows[i] for own in metrics for unit in own.far})
        if side.texts and rows:
            found |= {(i, row): own for row, own in _texts(side, rows).items()}
    return found


def _texts(side: Side, rows: Sequence[int]) -> dict[int, Mapping[str, object]]:
    files = side.corpus.files
    places = {}
    for row in rows:
        file = next(own for own in reversed(files) if own.start <= row and own.n_rows)
        places[file.relative, row - file.start] = row
    texts = read_texts(
        list(places),
        files=[file.source for file in files],
        n_rows={file.source.file_id: file.n_rows for file in files},
        columns=side.texts,
        limits=ReadLimits(),
        outages=Outages(retry_s=RETRY_S),
    )
    return {places[place]: own for place, own in texts.items()}
