"""Page: a comparison as one HTML page: its tables, and the texts of the rows that differ most."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from qaeval_core.compare.result import MetricResult
from qaeval_core.compare.run import SystemComparison
from qaeval_core.pages.html import (
    Passage,
    Section,
    Table,
    block_html,
    cut,
    details,
    escaped,
    left_out,
    page,
    within,
)
from qaeval_core.pages.printed import ResultTable, shown

# Of more systems, a row shows those of lowest and highest score.
MOST_COLUMNS = 4
# Rows of a table, so that the page stays small.
_MAX_ROWS = 60
_MAX_CHARS = 300
_MAX_TEXT_CHARS = 400_000


def compare_page(found: SystemComparison, tables: Mapping[str, Sequence[ResultTable]]) -> str:
    """Return the page.

    Parameters
    ----------
    tables : mapping of metric to sequence of ResultTable
        Those that are printed.
    """
    names = within(", ".join(found.systems), _MAX_CHARS)
    head = f"<h1>{len(found.systems)} systems, {found.n_units:,} {escaped(found.unit)}</h1>"
    left = [
        f"{system}: {n:,} of {found.n_rows[system]:,} rows are left out"
        for system, n in found.n_left_out.items()
        if n
    ]
    remarks = [names, found.sentence, *left, *found.notes]
    said = [block_html(Passage(within(own, _MAX_CHARS), tone="soft")) for own in remarks]
    sections = []
    n_chars = 0
    for own in found.metrics:
        parts, units = [_table(table) for table in tables[own.metric]], list(_texts(found, own))
        sizes = itertools.accumulate(map(len, units), initial=n_chars)
        kept = [unit for unit, size in zip(units, sizes, strict=False) if size < _MAX_TEXT_CHARS]
        n_chars += sum(map(len, kept))
        parts += [*kept, left_out(len(units) - len(kept), "rows that differ")]
        sections.append(Section(own.metric, parts))
    return page("qaeval compare", [head, *said], sections)


def _table(table: ResultTable) -> str:
    rows = [[shown(cell) for cell in row] for row in table.rows[:_MAX_ROWS]]
    numbers = [i for i in range(1, len(table.head)) if not isinstance(table.rows[0][i], str)]
    parts = [block_html(Table(table.title, table.head, rows, numbers=numbers))]
    parts += [block_html(Passage(within(line, _MAX_CHARS), tone="soft")) for line in table.remarks]
    return "\n".join([*parts, left_out(len(table.rows) - _MAX_ROWS, "rows")])


def _texts(found: SystemComparison, result: MetricResult) -> Iterator[str]:
    """Yield a table of texts for each row that differs most."""
    for unit in result.far:
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
                found.systems[i],
                f"{unit.values[i]:.4g}",
                *(cut(texts[i].get(role)) for role in roles),
            ]
            for i in order
        ]
        table = Table(unit.key, ("system", "score", *roles), rows, numbers=(1,))
        yield details(f"{result.metric}: {within(unit.key, _MAX_CHARS)}", block_html(table))
