"""Output: what a comparison found, as tables for a terminal or a paper, as JSON and as a page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from qaeval_core.compare.counts import FarUnit
from qaeval_core.compare.page import MOST_COLUMNS, compare_page
from qaeval_core.compare.result import MetricResult, SystemMean
from qaeval_core.compare.run import SystemComparison
from qaeval_core.errors import ConfigError
from qaeval_core.pages.printed import Estimate, ResultCell, ResultTable
from qaeval_core.signature import environment
from qaeval_core.storage.path import StoragePath

PAGE, REPORT = "compare.html", "compare.json"
_MAX_ID_CHARS = 40


def tables(found: SystemComparison, form: str = "text") -> list[ResultTable]:
    """Return what a format prints.

    Text and JSON have a table of systems for each metric, those by column, and the rows that differ
    most. Markdown and LaTeX lack the last ones, and CSV is one table of all systems and metrics.
    """
    if form == "csv":
        return [_flat(found)]
    shown = []
    for own in found.metrics:
        shown += [_systems(found, own), *_groups(own)]
        if form in ("text", "json"):
            shown.append(_far(found, own))
    return [table for table in shown if table.rows]


def _flat(found: SystemComparison) -> ResultTable:
    head = ("metric", "rank", "system", "mean", "difference", "p", "wins", "ties", "losses", "n")
    rows: list[list[ResultCell]] = []
    for result in found.metrics:
        for own in result.systems:
            rows.append(
                [
                    result.metric, own.rank, own.system,
                    estimate(own, is_share=is_share(result)), _difference(result, own),
                    _number(own.p), own.wins, own.ties, own.losses, result.n,
                ]
            )  # fmt: skip
    return ResultTable("systems", head, rows)


def _difference(result: MetricResult, own: SystemMean) -> Estimate:
    return Estimate(
        _number(own.difference),
        _number(own.difference_low),
        _number(own.difference_high),
        is_share=is_share(result),
        mark="*" if own.holds else "",
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def estimate(own: SystemMean, *, is_share: bool) -> Estimate:
    """Return the mean of a system, as tables show it."""
    return Estimate(_number(own.mean), _number(own.low), _number(own.high), is_share=is_share)


def is_share(result: MetricResult) -> bool:
    """Return whether scores lie on a scale up to 1."""
    return result.column.high == 1


def _systems(found: SystemComparison, result: MetricResult) -> ResultTable:
    rows: list[list[ResultCell]] = []
    for own in result.systems:
        is_reference = own.system == result.reference
        counts = "" if is_reference else f"{own.wins:,} / {own.ties:,} / {own.losses:,}"
        rows.append(
            [
                own.rank, own.system, estimate(own, is_share=is_share(result)),
                _difference(result, own),
                _number(own.p), counts, own.n_undefined,
            ]
        )  # fmt: skip
    what = "the baseline" if found.request.baseline is not None else "the best"
    remarks = [f"Differences are from {result.reference}, {what}. {found.sentence}"]
    if result.signature:
        remarks.append(result.signature)
    return ResultTable(
        result.metric,
        ("rank", "system", result.metric, "difference", "p", "win / tie / loss", "undefined"),
        rows,
        title=f"{result.metric}, {result.n:,} {found.unit} with a value of every system",
        remarks=remarks,
    )


def _groups(result: MetricResult) -> Iterator[ResultTable]:
    names = [own.system for own in result.systems]
    for by, groups in result.groups.items():
        rows: list[list[ResultCell]] = []
        for value, means in (groups or {}).items():
            known = {own.system: own for own in means}
            cells = [estimate(known[name], is_share=is_share(result)) for name in names]
            rows.append(["(none)" if value is None else value, *cells])
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
        cells = [Estimate(value, is_share=is_share(result)) for value in known.values()]
        named = [] if are_few else list(known)
        rows.append([unit.key[:_MAX_ID_CHARS], *cells, *named])
    systems = found.systems if are_few else ("lowest", "highest", "lowest is", "highest is")
    head = (found.request.on or "id", *systems)
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


def content(found: SystemComparison) -> dict[str, Any]:
    """Return all that was found, as plain data."""
    return {
        "request": asdict(found.request),
        "systems": list(found.systems),
        "unit": found.unit,
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
                "systems": [_plain(each) for each in own.systems],
                "by": {
                    by: None
                    if groups is None
                    else [
                        {"value": value, "systems": [_plain_mean(each) for each in means]}
                        for value, means in groups.items()
                    ]
                    for by, groups in own.groups.items()
                },
                "differ_most": [_far_content(found, unit) for unit in own.far],
            }
            for own in found.metrics
        },
        "environment": environment(),
    }


def _far_content(found: SystemComparison, unit: FarUnit) -> dict[str, Any]:
    texts = [dict(found.texts.get((i, row), {})) for i, row in enumerate(unit.rows)]
    return {"key": unit.key, "values": list(unit.values), "texts": texts}


def _plain(own: SystemMean) -> dict[str, Any]:
    plain = {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in asdict(own).items()
    }
    return plain | {"holds": own.holds}


def _plain_mean(own: SystemMean) -> dict[str, Any]:
    return {name: _plain(own)[name] for name in ("system", "mean", "low", "high", "rank")}


def check_out(out: StoragePath) -> None:
    """Raise ConfigError if a run's files lie where a comparison would be written."""
    if (out / "run.json").is_file():
        raise ConfigError(f"--out {out} holds the scores of a run; choose another folder [QA0110]")


def write(found: SystemComparison, out: StoragePath) -> list[StoragePath]:
    """Write the page and, last, the numbers; return their paths."""
    paths = [out / PAGE, out / REPORT]
    paths[0].put(compare_page(found, tables(found)).encode())
    paths[1].put_json(content(found))
    return paths
