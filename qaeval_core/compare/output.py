"""Output: what a comparison found, as tables for a terminal or a paper, as JSON and as a page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from qaeval_core.compare.counts import FarUnit
from qaeval_core.compare.page import MOST_COLUMNS, compare_page
from qaeval_core.compare.result import MetricResult, SystemMean
from qaeval_core.compare.run import SystemComparison
from qaeval_core.made import HowMade
from qaeval_core.pages.heading import report_links
from qaeval_core.pages.printed import Estimate, ResultCell, ResultTable, printed
from qaeval_core.signature import environment
from qaeval_core.storage.path import StoragePath

PAGE, REPORT = "compare.html", "compare.json"
_MAX_ID_CHARS = 40
_NO_VALUE = "(none)"


def printed_comparison(
    found: SystemComparison, form: str, *, percent: bool = False, width: int | None = None
) -> str:
    """Return what was found in one of `FORMATS`.

    Text has a table of systems for each metric, those by column, and the rows that differ most.
    Markdown and LaTeX lack the last ones. CSV is one table, and JSON is `content`.

    Parameters
    ----------
    percent : bool, default False
        Show shares times 100.
    width : int, optional
        Decimals; default two digits of half the interval.
    """
    if form == "json":
        return json.dumps(content(found, percent=percent), indent=2)
    if form == "csv":
        return printed([_flat(found)], form, percent=percent)
    has_rows = form == "text"
    shown = [table for own in found.metrics for table in tables_of(found, own, has_rows=has_rows)]
    return printed(shown, form, percent=percent, width=width)


def tables_of(
    found: SystemComparison, result: MetricResult, *, has_rows: bool = True
) -> list[ResultTable]:
    """Return the tables of a metric: systems, those by column, and the rows that differ most."""
    every = [_systems(found, result), *_groups(result), *([_far(found, result)] * has_rows)]
    return [table for table in every if table.rows]


def _flat(found: SystemComparison) -> ResultTable:
    """Return a row for each metric and system, then for each value of the columns of ``--by``."""
    head = (
        "metric", "by", "value", "rank", "system", "mean", "difference", "p", "wins", "ties",
        "losses", "n",
    )  # fmt: skip
    rows: list[list[ResultCell]] = []
    for result in found.metrics:
        for own in result.systems:
            rows.append(
                [
                    result.metric, "", "", own.rank, own.system,
                    estimate(own, is_share=result.is_share), _difference(result, own),
                    _number(own.p), own.wins, own.ties, own.losses, result.n,
                ]
            )  # fmt: skip
        for by, groups in result.groups.items():
            for value, means in (groups or {}).items():
                rows += [
                    [
                        result.metric, by, _NO_VALUE if value is None else value, own.rank,
                        own.system, estimate(own, is_share=result.is_share), *[None] * 6,
                    ]
                    for own in means
                ]  # fmt: skip
    return ResultTable("systems", head, rows)


def _difference(result: MetricResult, own: SystemMean) -> Estimate:
    return Estimate(
        _number(own.difference),
        _number(own.difference_low),
        _number(own.difference_high),
        is_share=result.is_share,
        mark="*" if own.holds else "",
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def estimate(own: SystemMean, *, is_share: bool) -> Estimate:
    """Return the mean of a system, as tables show it."""
    return Estimate(_number(own.mean), _number(own.low), _number(own.high), is_share=is_share)


def _systems(found: SystemComparison, result: MetricResult) -> ResultTable:
    rows: list[list[ResultCell]] = []
    for own in result.systems:
        is_reference = own.system == result.reference
        counts = "" if is_reference else f"{own.wins:,} / {own.ties:,} / {own.losses:,}"
        rows.append(
            [
                own.rank, own.system, estimate(own, is_share=result.is_share),
                _difference(result, own),
                _number(own.p), counts, own.n_undefined,
            ]
        )  # fmt: skip
    lower = "" if result.column.higher_is_better else " (lower is better)"
    what = "the baseline" if found.request.baseline is not None else "the best"
    remarks = [f"Differences are from {result.reference}, {what}. {found.sentence}"]
    if result.signature:
        remarks.append(result.signature)
    return ResultTable(
        result.metric,
        ("rank", "system", result.metric, "difference", "p", "win / tie / loss", "undefined"),
        rows,
        title=f"{result.metric}{lower}, {result.n:,} {found.unit} with a value of every system",
        remarks=remarks,
    )


def _groups(result: MetricResult) -> Iterator[ResultTable]:
    names = [own.system for own in result.systems]
    for by, groups in result.groups.items():
        rows: list[list[ResultCell]] = []
        for value, means in (groups or {}).items():
            known = {own.system: own for own in means}
            cells = [estimate(known[name], is_share=result.is_share) for name in names]
            rows.append([_NO_VALUE if value is None else value, *cells])
        yield ResultTable(
            f"{result.metric} by {by}", (by, *names), rows, title=f"{result.metric} by {by}"
        )


def _far(found: SystemComparison, result: MetricResult) -> ResultTable:
    rows: list[list[ResultCell]] = []
    are_few = len(found.systems) <= MOST_COLUMNS
    for unit in result.far:
        known = dict(zip(found.systems, unit.values, strict=True))
        if not are_few:
            order = sorted(known, key=lambda name: known[name])
            known = {name: known[name] for name in (order[0], order[-1])}
        cells = [Estimate(value, is_share=result.is_share) for value in known.values()]
        named = [] if are_few else list(known)
        rows.append([unit.key[:_MAX_ID_CHARS], *cells, *named])
    systems = found.systems if are_few else ("lowest", "highest", "lowest is", "highest is")
    head = (found.on, *systems)
    title = f"{result.metric}: the {len(rows)} {found.unit} that differ most"
    return ResultTable(f"{result.metric} differs", head, rows, title=title)


def lines(found: SystemComparison) -> Iterator[str]:
    """Yield what is said of the rows: how many there are, and how many are left out."""
    yield (
        f"{len(found.systems)} systems, {found.n_units:,} {found.unit} that all of them have, of "
        f"{found.clusters}"
    )
    for system, n in found.n_left_out.items():
        if n:
            yield f"{system}: {n:,} of {found.n_rows[system]:,} rows are left out"
    yield from (f"note: {note}" for note in found.notes)


def content(found: SystemComparison, *, percent: bool = False) -> dict[str, Any]:
    """Return all that was found, as plain data; shares times 100 if so asked."""
    return {
        "request": asdict(found.request),
        "systems": list(found.systems),
        "unit": found.unit,
        "on": found.on,
        "units": found.n_units,
        "clusters": found.clusters,
        "rows": dict(found.n_rows),
        "left_out": dict(found.n_left_out),
        "sentence": found.sentence,
        "notes": list(found.notes),
        "metrics": {
            own.metric: {
                "signature": own.signature,
                "higher_is_better": own.column.higher_is_better,
                "n": own.n,
                "reference": own.reference,
                "systems": [_plain(each, _factor(own, percent)) for each in own.systems],
                "by": {
                    by: None
                    if groups is None
                    else [
                        {
                            "value": value,
                            "systems": [_plain_mean(each, _factor(own, percent)) for each in means],
                        }
                        for value, means in groups.items()
                    ]
                    for by, groups in own.groups.items()
                },
                "differ_most": [
                    _far_content(found, unit, _factor(own, percent)) for unit in own.far
                ],
            }
            for own in found.metrics
        },
        "environment": environment(),
    }


def _factor(result: MetricResult, percent: bool) -> int:
    return 100 if percent and result.is_share else 1


def _far_content(found: SystemComparison, unit: FarUnit, factor: int) -> dict[str, Any]:
    texts = [dict(found.texts.get((i, row), {})) for i, row in enumerate(unit.rows)]
    return {"key": unit.key, "values": [own * factor for own in unit.values], "texts": texts}


_SCALED = ("mean", "low", "high", "difference", "difference_low", "difference_high")


def _plain(own: SystemMean, factor: int) -> dict[str, Any]:
    plain: dict[str, Any] = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(own).items()
    }
    scaled = {name: plain[name] * factor for name in _SCALED if plain[name] is not None}
    return plain | scaled | {"holds": own.holds}


def _plain_mean(own: SystemMean, factor: int) -> dict[str, Any]:
    return {name: _plain(own, factor)[name] for name in ("system", "mean", "low", "high", "rank")}


def write(found: SystemComparison, out: StoragePath) -> list[StoragePath]:
    """Write the page and, last, the numbers; return their paths."""
    paths = [out / PAGE, out / REPORT]
    tables = {own.metric: tables_of(found, own) for own in found.metrics}
    made = HowMade.now(out.name)
    links = report_links(paths[0], {f"Report of {name}": own for name, own in found.request.scores})
    paths[0].put(compare_page(found, tables, made=made, links=links).encode())
    paths[1].put_json(content(found) | {"made": made.content()})
    return paths
