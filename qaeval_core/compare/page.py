"""Page: a comparison as one HTML page: its tables, and the texts of the rows that differ most.

What has no room is left out, and that is said: compare.json has all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from qaeval_core.compare.result import MetricResult
from qaeval_core.compare.run import SystemComparison
from qaeval_core.made import HowMade
from qaeval_core.pages.heading import Tile, heading
from qaeval_core.pages.html import (
    PageSection,
    Passage,
    Table,
    block_html,
    cut,
    details,
    fitting,
    folded_parts,
    left_out,
    page,
    within,
)
from qaeval_core.pages.printed import Estimate, ResultCell, ResultTable, decimals_of, shown

# Of more systems, a row shows those of lowest and highest score.
MOST_COLUMNS = 4
MAX_BYTES = 1_000_000
# Metrics with a section of their own, and remarks that are not folded, so that the page stays low.
_N_SECTIONS, _N_REMARKS = 6, 4
_N_TILES, _N_GROUPED = 6, 12
_TITLE_CHARS, _REMARK_CHARS = 80, 300


@dataclass(frozen=True, slots=True)
class _CompareRoom:
    """How much of each kind a page may show, so that it stays small."""

    n_metrics: int
    n_rows: int  # of a table
    n_columns: int  # of a table: systems
    n_texts: int  # rows that differ most, of a metric
    n_chars: int  # of a name or a remark


_ROOMS = (
    _CompareRoom(60, 60, 40, 20, 600),
    _CompareRoom(60, 40, 20, 4, 300),
    _CompareRoom(30, 20, 8, 1, 200),
    _CompareRoom(10, 10, 6, 0, 60),
)


def compare_page(
    found: SystemComparison,
    tables: Mapping[str, Sequence[ResultTable]],
    *,
    made: HowMade | None = None,
    links: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the page, of less than 1 MB.

    Parameters
    ----------
    tables : mapping of metric to sequence of ResultTable
        Those that are printed: systems first, the rows that differ most last.
    made : HowMade, optional
        Default now.
    links : sequence of (title, address)
        Reports of the systems.
    """
    made = made or HowMade.now("")

    def make(room: _CompareRoom) -> str:
        head = [*_head(found, made, links), *_remarks(found, room)]
        return page(made.tab("compare"), head, list(_sections(found, tables, room)))

    return fitting(_ROOMS, make, most_bytes=MAX_BYTES)


def _head(found: SystemComparison, made: HowMade, links: Sequence[tuple[str, str]]) -> list[str]:
    tiles = [
        Tile("Systems", f"{len(found.systems):,}"),
        Tile("Compared", f"{found.n_units:,}", f"{found.unit} that all of them have"),
        *map(_best, found.metrics[:_N_TILES]),
    ]
    title = f"{len(found.systems):,} systems, {found.n_units:,} {found.unit}"
    data = [path for _, path in found.request.scores]
    return heading("compare", title, made, tiles=tiles, data=data, links=links)


def _best(result: MetricResult) -> Tile:
    name, best = within(result.metric, _TITLE_CHARS), result.systems[0]
    if math.isnan(best.mean):
        return Tile(f"Best by {name}", "none", "no value of every system")
    lower = "" if result.column.higher_is_better else ", lower is better"
    mean = shown(Estimate(best.mean, best.low, best.high))
    return Tile(f"Best by {name}", within(best.system, _TITLE_CHARS), f"{mean}{lower}")


def _remarks(found: SystemComparison, room: _CompareRoom) -> list[str]:
    left = [
        f"{system}: {n:,} of {found.n_rows[system]:,} rows are left out"
        for system, n in found.n_left_out.items()
        if n
    ]
    remarks = [", ".join(found.systems), found.sentence, *left, *found.notes]
    said = [
        block_html(Passage(within(own, room.n_chars), tone="soft"))
        for own in remarks[: room.n_rows]
    ]
    more = [*said[_N_REMARKS:], left_out(len(remarks) - len(said), "remarks")]
    return [*said[:_N_REMARKS], folded_parts(f"{len(remarks) - _N_REMARKS:,} more remarks", more)]


def _sections(
    found: SystemComparison, tables: Mapping[str, Sequence[ResultTable]], room: _CompareRoom
) -> Iterator[PageSection]:
    parts = [
        (within(own.metric, _TITLE_CHARS), list(_parts(found, own, tables[own.metric], room)))
        for own in found.metrics[: room.n_metrics]
    ]
    yield from (PageSection(name, own) for name, own in parts[:_N_SECTIONS])
    more = [folded_parts(name, own) for name, own in parts[_N_SECTIONS:]]
    if more:
        more.append(left_out(len(found.metrics) - len(parts), "metrics"))
        yield PageSection("More metrics", more)


def _parts(
    found: SystemComparison,
    result: MetricResult,
    tables: Sequence[ResultTable],
    room: _CompareRoom,
) -> Iterator[str]:
    """Yield the systems by one metric, what is folded, and the rows that differ most."""
    by = {f"{result.metric} by {name}" for name in result.groups}
    yield from (_table(own, room) for own in tables if own.name not in by)
    grouped = [own for own in tables if own.name in by]
    title = f"Means by {', '.join(result.groups)}"
    more = left_out(len(grouped) - _N_GROUPED, "columns of values")
    parts = [_table(own, room) for own in grouped[:_N_GROUPED]]
    yield folded_parts(within(title, _TITLE_CHARS), [*parts, more])
    texts = list(_texts(found, result, room))
    n_left = len(result.far) - room.n_texts if found.texts else 0
    yield folded_parts("Texts of what differs most", [*texts, left_out(n_left, "texts")])


def _table(table: ResultTable, room: _CompareRoom) -> str:
    head = [within(name, room.n_chars) for name in table.head[: room.n_columns + 1]]
    columns = list(zip(*table.rows, strict=True))[: len(head)]
    rows = list(zip(*(_aligned(own[: room.n_rows], room) for own in columns), strict=True))
    numbers = [i for i, own in enumerate(columns) if i and not _are_words(own)]
    title = within(table.title, room.n_chars)
    parts = [block_html(Table(title, head, rows, numbers=numbers))]
    parts += [
        block_html(Passage(within(line, min(room.n_chars, _REMARK_CHARS)), tone="soft"))
        for line in table.remarks
    ]
    parts.append(left_out(len(table.head) - len(head), "columns"))
    return "\n".join([*parts, left_out(len(table.rows) - len(rows), "rows")])


def _are_words(cells: Sequence[ResultCell]) -> bool:
    return all(isinstance(own, str) for own in cells)


def _aligned(cells: Sequence[ResultCell], room: _CompareRoom) -> list[str]:
    """Return a column as text; its estimates have the same decimals."""
    known = [decimals_of(own.low, own.high) for own in cells if isinstance(own, Estimate)]
    decimals = max(known, default=None)
    return [within(shown(own, width=decimals), room.n_chars) for own in cells]


def _texts(found: SystemComparison, result: MetricResult, room: _CompareRoom) -> Iterator[str]:
    """Yield a table of texts for each row that differs most."""
    for unit in result.far[: room.n_texts]:
        order: Sequence[int] = range(len(found.systems))
        if len(order) > MOST_COLUMNS:
            by_value = sorted(order, key=lambda i: unit.values[i])
            order = [by_value[0], by_value[-1]]
        texts = {i: found.texts.get((i, unit.rows[i]), {}) for i in order}
        roles = list(dict.fromkeys(role for own in texts.values() for role in own))
        if not roles:
            continue
        rows = [
            [
                within(found.systems[i], _TITLE_CHARS),
                f"{unit.values[i]:.4g}",
                *(cut(texts[i].get(role)) for role in roles),
            ]
            for i in order
        ]
        table = Table(within(unit.key, room.n_chars), ("system", "score", *roles), rows, (1,))
        yield details(within(unit.key, _TITLE_CHARS), block_html(table))
