"""Page: a study as one HTML page: its tables, each beside what it looks like, and boxes by rating.

What has no room is left out, and that is said: the tables of Parquet have all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qaeval_core.made import HowMade
from qaeval_core.pages import chart_grids as svg_grid
from qaeval_core.pages import charts as svg
from qaeval_core.pages.chart_grids import Box
from qaeval_core.pages.heading import Tile, heading
from qaeval_core.pages.html import (
    Fields,
    PageSection,
    Passage,
    Table,
    block_html,
    details,
    escaped,
    figure,
    fitting,
    left_out,
    page,
    shown,
    within,
)
from qaeval_core.study.records import ALL_ROWS, SEGMENT, Statistic, Study
from qaeval_core.study.sections import Shown, number, reason_shown, rows_shown, sections

MAX_LEVELS = 10  # of a rating, before it is cut into bins
N_BINS = 5
_N_OPEN_BOXES = 12
# Lines of charts that are open, so that a page stays low on a phone; a table is as high as 24.
_N_OPEN_LINES, _TABLE_LINES = 600, 24
_N_OPEN_REMARKS = 3
_TITLE_CHARS = 120
_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)

MAX_BYTES = 300_000
_Boxes: TypeAlias = Mapping[str, Mapping[str, Sequence[svg_grid.Box]]]  # by human column and metric
_SURE = 0.05
_TITLES = {
    "correlations": "Correlations",
    "comparisons": "Metric against metric",
    "auc": "Areas under the ROC curve",
    "win_lose": "Agreement on winners",
    "forward_selection": "Forward selection",
}
_NOTHING = {"correlations": 0.0, "auc": 0.5, "win_lose": 0.5}  # values that say nothing

_LEGEND = (
    f"+: the metric of the row agrees with people better, p below {_SURE:g} when corrected for all "
    "pairs; −: that of the column; ?: undefined. Color: by how much. At most "
    f"{svg_grid.MAX_PAIRED} metrics, those that agree best."
)


@dataclass(frozen=True, slots=True)
class _Content:
    """What a page is made of, whatever its size."""

    study: Study
    tables: Mapping[str, Sequence[Shown]]
    boxes: _Boxes
    environment: Mapping[str, Any]
    made: HowMade
    links: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _StudyRoom:
    """How much of each kind a page may show, so that it stays small."""

    n_tables: int  # of a kind
    n_rows: int  # of a table, and of its charts
    n_boxes: int  # metrics whose scores are shown by rating, of each human column
    n_grids: int  # coefficients whose pairs are drawn
    n_chars: int  # of a name or a signature


_ROOMS = (
    _StudyRoom(24, 60, 24, 3, 2000),
    _StudyRoom(12, 40, 12, 1, 400),
    _StudyRoom(6, 20, 6, 1, 100),
    _StudyRoom(3, 10, 3, 1, 60),
    _StudyRoom(1, 5, 0, 1, 30),
)


def study_page(
    study: Study,
    environment: Mapping[str, Any],
    *,
    made: HowMade | None = None,
    links: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the page, of less than 300 kB.

    Parameters
    ----------
    study : Study
    environment : mapping
        Versions, as report.json has them.
    made : HowMade, optional
        Default now.
    links : sequence of (title, address)
        Pages of the runs whose scores these are.
    """
    found = {table: list(sections(study, table)) for table in _TITLES}
    made = made or HowMade.now("")
    content = _Content(study, found, _all_boxes(study), environment, made, links)

    def make(room: _StudyRoom) -> str:
        return page(
            content.made.tab("correlate"), _head(content, room), list(_sections(content, room))
        )

    return fitting(_ROOMS, make, most_bytes=MAX_BYTES)


def _all_boxes(study: Study) -> _Boxes:
    """Return what any page may show: scores are sorted once, not for each size of page."""
    room, metrics = _ROOMS[0], [one.metric for one in _best_first(study, study.request.human[0])]
    # A metric that nothing was found of comes last.
    metrics = list(dict.fromkeys([*metrics, *study.metrics]))[: room.n_boxes]
    return {
        human: {name: rating_boxes(study.scores[name], own) for name in metrics}
        for human, own in list(study.ratings.items())[: room.n_tables]
    }


def _best_first(study: Study, human: str) -> list[Statistic]:
    """Return the first coefficient of each metric over all rows, that which agrees best first."""
    found: dict[str, Statistic] = {}
    for one in study.of("correlations"):
        if (one.human, one.subset, one.level) == (human, ALL_ROWS, SEGMENT):
            found.setdefault(one.metric, one)
    return sorted(found.values(), key=lambda one: -one.agreement)


def _sections(content: _Content, room: _StudyRoom) -> Iterator[PageSection]:
    opened = _opened(content, room)
    for table, title in _TITLES.items():
        if content.tables[table]:
            yield PageSection(
                title, list(_tables(table, content.tables[table], room, opened[table]))
            )
    yield PageSection("Scores by rating", list(_ratings(content, room)))
    yield PageSection("How it was made", list(_origin(content, room)))


def _head(content: _Content, room: _StudyRoom) -> list[str]:
    study = content.study
    human = within(", ".join(study.request.human), min(room.n_chars, _TITLE_CHARS))
    shown = heading(
        "correlate",
        f"Which metrics agree with {human}",
        content.made,
        tiles=list(_tiles(study, min(room.n_chars, _TITLE_CHARS))),
        data=[*study.request.scores, *filter(None, [study.request.ratings])],
        links=content.links,
    )
    metrics = within(f"Metrics: {', '.join(study.metrics)}", min(room.n_chars, 400))
    return [
        *shown,
        block_html(Passage(metrics, tone="soft")),
        *_remarks(study.notes, room, "notes"),
    ]


def _tiles(study: Study, n_chars: int) -> Iterator[Tile]:
    yield Tile("Rows", shown(study.n_rows))
    yield Tile("Metrics", shown(len(study.metrics)))
    for human in study.request.human[:4]:
        name = within(human, n_chars)
        best = next(iter(_best_first(study, human)), None)
        if best is None or np.isnan(best.value):
            yield Tile(f"Best for {name}", "none", "no correlation is defined")
            continue
        lower = "" if best.higher_is_better else ", lower is better"
        said = f"r {_plain(number(best.value, best.low, best.high, reason=None))}{lower}"
        yield Tile(f"Best for {name}", within(best.metric, n_chars), said)


def _remarks(remarks: Sequence[str], room: _StudyRoom, what: str) -> list[str]:
    """Return the first remarks, and the others folded."""
    shown = [
        block_html(Passage(within(own, min(room.n_chars, 400)), tone="soft"))
        for own in remarks[: room.n_rows]
    ]
    more = [*shown[_N_OPEN_REMARKS:], left_out(len(remarks) - room.n_rows, what)]
    folded = details(f"{len(remarks) - _N_OPEN_REMARKS:,} more {what}", "\n".join(more))
    return [*shown[:_N_OPEN_REMARKS], *([folded] if len(remarks) > _N_OPEN_REMARKS else [])]


def _opened(content: _Content, room: _StudyRoom) -> dict[str, int]:
    """Return how many tables of each kind are open: of all rows, and as many as are not too high.

    The first of each kind is.
    """
    tables = {name: own for name, own in content.tables.items() if own}
    opened = dict.fromkeys(tables, 1)
    n_left = _N_OPEN_LINES - sum(_n_lines(own[0], room) for own in tables.values())
    for name, found in tables.items():
        for own in found[1 : room.n_tables]:
            n_left -= _n_lines(own, room)
            if n_left < 0 or own.first.subset != ALL_ROWS:
                break
            opened[name] += 1
    return opened


def _n_lines(own: Shown, room: _StudyRoom) -> int:
    return _TABLE_LINES + min(len(own.groups), room.n_rows) * len(own.groups[0])


def _tables(table: str, found: Sequence[Shown], room: _StudyRoom, n_open: int) -> Iterator[str]:
    """Yield the tables of one kind: the first ones open, the others folded."""
    x_range = _x_range(table, found[: room.n_tables])
    folded = []
    for i, own in enumerate(found[: room.n_tables]):
        parts = [_figures(table, own, room, x_range), _table(own, room)]
        parts += _remarks(own.remarks, room, "remarks")
        title = within(_place(own.first), min(room.n_chars, _TITLE_CHARS))
        inner = "\n".join(parts)
        if i < n_open:
            yield f"<h3>{escaped(title)}</h3>\n{inner}"
        else:
            folded.append(details(title, inner))
    more = left_out(len(found) - room.n_tables, "tables of subsets")
    if len(folded) > _N_OPEN_BOXES:
        yield details(f"{len(folded):,} more tables", "\n".join([*folded, more]))
    else:
        yield from filter(None, [*folded, more])


def _place(one: Statistic) -> str:
    level = f", {one.level} level" if one.level else ""
    return f"{one.human}, {rows_shown(one)}{level}"


def _table(own: Shown, room: _StudyRoom) -> str:
    rows = [
        [within(_plain(cell), room.n_chars) for cell in cells] for cells in own.rows[: room.n_rows]
    ]
    title = within(own.title, 2 * room.n_chars)
    numbers = range(own.n_left, len(own.head))
    table = block_html(Table(title, own.head, rows, numbers=numbers))
    return table + left_out(len(own.rows) - room.n_rows, "rows of this table")


def _plain(cell: str) -> str:
    """Return a number that was aligned for a terminal.

    Examples
    --------
    >>> _plain(" 0.500 [ 0.400,  0.600] p 0.001")
    '0.500 [0.400, 0.600] p 0.001'
    """
    return " ".join(cell.split()).replace("[ ", "[")


def _x_range(table: str, found: Sequence[Shown]) -> tuple[float, float] | None:
    """Return the range of all charts of one kind, which are to be compared with each other."""
    if table not in _NOTHING:
        return None
    known = [
        edge
        for own in found
        for group in own.groups
        for one in group
        for edge in (one.value, one.low, one.high)
        if np.isfinite(edge)
    ]
    known.append(_NOTHING[table])
    return min(known), max(known)


def _figures(table: str, own: Shown, room: _StudyRoom, x_range: tuple[float, float] | None) -> str:
    """Return the charts of one table; its rows are theirs, in the same order."""
    draw = _CHARTS.get(table)
    if draw is None or (draw is _pairs and len(own.groups) < 2):
        return ""
    figures = []
    n_all = len(own.groups[0])
    n = min(n_all, room.n_grids) if draw is _pairs else n_all
    for i in range(n):
        # A grid needs all pairs of its metrics.
        groups = own.groups if draw is _pairs else own.groups[: room.n_rows]
        column = [group[i] for group in groups]
        name = column[0].coefficient or own.head[-1]
        figures.append(figure(name, draw(column, room, x_range)))
    legend = block_html(Passage(_LEGEND, tone="soft")) if draw is _pairs else ""
    return f'<div class="charts">{"".join(figures)}</div>{legend}{left_out(n_all - n, "grids")}'


def _dots(found: Sequence[Statistic], room: _StudyRoom, x_range: tuple[float, float] | None) -> str:
    dots = [_dot(one, room) for one in found]
    first = found[0]
    title = within(f"{first.coefficient or first.table}: {_place(first)}", room.n_chars)
    level = _NOTHING[first.table]
    return svg.interval_dots(dots, title=title, x_range=x_range, level=level)


def _dot(one: Statistic, room: _StudyRoom) -> svg.Dot:
    name = within(one.metric, room.n_chars)
    if np.isnan(one.value):
        return svg.Dot(name, None, reason=reason_shown(one.reason))
    edges = (None, None) if np.isnan(one.low) else (one.low, one.high)
    return svg.Dot(name, one.value, *edges)


def _pairs(found: Sequence[Statistic], room: _StudyRoom, _: tuple[float, float] | None) -> str:
    """Return the grid of pairs; metrics that win most pairs stand first."""
    won: dict[str, float] = {}
    for one in found:
        value = 0.0 if np.isnan(one.value) else one.value
        won[one.metric] = won.get(one.metric, 0.0) + value
        won[one.metric_b] = won.get(one.metric_b, 0.0) - value
    n_paired = min(svg_grid.MAX_PAIRED, room.n_rows)
    names = sorted(won, key=lambda name: -won[name])[:n_paired]
    places = {name: i for i, name in enumerate(names)}
    cells = {}
    for one in found:
        if one.metric in places and one.metric_b in places:
            i, j = places[one.metric], places[one.metric_b]
            cells[i, j], cells[j, i] = _cell(one, room), _cell(one, room, is_turned=True)
    first = found[0]
    title = within(f"{first.coefficient}, pairs of metrics: {_place(first)}", room.n_chars)
    named = [within(name, room.n_chars) for name in names]
    return svg_grid.pair_grid(named, cells, title=title)


def _cell(one: Statistic, room: _StudyRoom, *, is_turned: bool = False) -> svg_grid.Cell:
    a, b = (within(name, room.n_chars) for name in (one.metric, one.metric_b))
    if np.isnan(one.value):
        said = f"{a} - {b}: undefined ({reason_shown(one.reason)})"
        return svg_grid.Cell(None, is_sure=False, said=said)
    chance = "" if np.isnan(one.p_value) else f", p {one.p_value:.3f} ({one.p_corrected:.3f})"
    said = f"{a} - {b}: {one.value:.3f}{chance}"
    value = -one.value if is_turned else one.value
    return svg_grid.Cell(value, is_sure=one.p_corrected < _SURE, said=said)


_Draw = Callable[[Sequence[Statistic], _StudyRoom, tuple[float, float] | None], str]
_CHARTS: dict[str, _Draw] = {
    "correlations": _dots,
    "comparisons": _pairs,
    "auc": _dots,
    "win_lose": _dots,
}


def _ratings(content: _Content, room: _StudyRoom) -> Iterator[str]:
    """Yield, for each human column, a chart of each metric and one table of all of them."""
    said = (
        "Rows with a score and a rating. Line: 90 % of them; box: half; upright line: median; "
        "dot: mean."
    )
    yield block_html(Passage(said, tone="soft"))
    for i, (human, own) in enumerate(list(content.boxes.items())[: room.n_tables]):
        inner = _boxes_of(content, human, dict(list(own.items())[: room.n_boxes]), room)
        name = within(human, min(room.n_chars, _TITLE_CHARS))
        yield details(name, inner) if i else f"<h3>{escaped(name)}</h3>\n{inner}"
    yield left_out(len(content.study.ratings) - room.n_tables, "human columns")


def _boxes_of(
    content: _Content, human: str, boxes: Mapping[str, Sequence[Box]], room: _StudyRoom
) -> str:
    """Return a chart of each metric, the first ones open, and a table of all."""
    drawn = [_boxes(human, name, own, room) for name, own in boxes.items()]
    first, more = (
        f'<div class="charts">{"".join(own)}</div>' if own else ""
        for own in (drawn[:_N_OPEN_BOXES], drawn[_N_OPEN_BOXES:])
    )
    title = within(f"Scores by {human} as a table", min(room.n_chars, _TITLE_CHARS))
    parts = [
        first,
        details(f"{len(drawn) - _N_OPEN_BOXES} more metrics", more) if more else "",
        left_out(len(content.study.metrics) - len(boxes), "metrics"),
        details(title, _box_table(human, boxes, room)),
    ]
    return "\n".join(filter(None, parts))


def _boxes(human: str, name: str, boxes: Sequence[svg_grid.Box], room: _StudyRoom) -> str:
    title = within(f"{name} by {human}", room.n_chars)
    if not boxes:
        return figure(title, block_html(Passage("No row has a rating.", tone="soft")))
    named = within(name, min(room.n_chars, _TITLE_CHARS))
    return figure(named, svg_grid.boxes(boxes, title=title))


def _box_table(human: str, boxes: Mapping[str, Sequence[svg_grid.Box]], room: _StudyRoom) -> str:
    rows = [
        [within(name, room.n_chars), box.name, shown(box.n), shown(box.mean), *points]
        for name, own in boxes.items()
        for box in own
        for points in [map(shown, box.quantiles or [None] * 5)]
    ]
    head = ("metric", "rating", "rows", "mean", "5 %", "25 %", "median", "75 %", "95 %")
    caption = within(f"Scores by {human}", room.n_chars)
    return block_html(Table(caption, head, rows, numbers=range(2, len(head))))


def _origin(content: _Content, room: _StudyRoom) -> Iterator[str]:
    study = content.study
    given = [
        (key.replace("_", " "), within(_given(value), room.n_chars))
        for key, value in asdict(study.request).items()
        if not (value is None or value is False or value == ())
    ]
    yield block_html(Fields("What was asked for", given))
    signed = {one.metric: one.signature for one in study.of("correlations") if one.signature}
    signatures = [
        (within(name, room.n_chars), within(signature, room.n_chars))
        for name, signature in list(signed.items())[: room.n_rows]
    ]
    if signatures:
        own = block_html(Fields("Signatures: how each score is made", signatures))
        yield details("Signatures", own + left_out(len(signed) - room.n_rows, "signatures"))
    made = []
    for key, value in content.environment.items():
        packages = value.items() if isinstance(value, dict) else [(key, value)]
        made += [(name, str(version)) for name, version in packages]
    yield details("Environment", block_html(Fields("Where it ran", made)))


def _given(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def rating_boxes(scores: NDArray[np.float64], human: NDArray[np.float64]) -> list[Box]:
    """Return how a metric's scores lie at each rating, over rows that have both.

    Parameters
    ----------
    scores, human : float ndarray of shape (n_rows,)
        NaN where undefined. More than ``MAX_LEVELS`` different ratings are cut into ``N_BINS``
        bins of equal width.

    Examples
    --------
    >>> box, _ = rating_boxes(np.array([0.0, 1.0, np.nan]), np.array([3.0, 3.0, 4.0]))
    >>> box.name, box.n, box.quantiles, box.mean
    ('3', 2, (0.05, 0.25, 0.5, 0.75, 0.95), 0.5)
    """
    labels, groups = rating_groups(human)
    return [
        _box(label, scores[rows & ~np.isnan(scores)])
        for label, rows in zip(labels, groups, strict=True)
    ]


def _box(label: str, values: NDArray[np.float64]) -> Box:
    if not len(values):
        return Box(label, 0)
    low, first, median, third, high = np.quantile(values, _LEVELS).tolist()
    return Box(label, len(values), (low, first, median, third, high), float(values.mean()))


def rating_groups(
    human: NDArray[np.float64],
) -> tuple[list[str], list[NDArray[np.bool_]]]:
    """Return a label and the rows of each rating, or of each bin where there are many ratings.

    Examples
    --------
    >>> labels, groups = rating_groups(np.array([0.0, 2.0, np.nan, 0.0]))
    >>> labels, [rows.tolist() for rows in groups]
    (['0', '2'], [[True, False, False, True], [False, True, False, False]])
    >>> labels, groups = rating_groups(np.arange(101.0))
    >>> labels[0], labels[-1], [int(rows.sum()) for rows in groups]
    ('0 to 20', '80 to 100', [20, 20, 20, 20, 21])
    """
    levels = np.unique(human[~np.isnan(human)])
    if len(levels) <= MAX_LEVELS:
        return [f"{level:g}" for level in levels], [human == level for level in levels]
    edges = np.linspace(levels[0], levels[-1], N_BINS + 1)
    bins = np.clip(np.searchsorted(edges, human, side="right") - 1, 0, N_BINS - 1)
    labels = [f"{low:.3g} to {high:.3g}" for low, high in itertools.pairwise(edges)]
    defined = ~np.isnan(human)
    return labels, [defined & (bins == i) for i in range(N_BINS)]
