"""Output: what a study found, as lines for a terminal, and as Parquet, JSON and a page."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any

from qaeval_core.made import HowMade
from qaeval_core.pages.heading import report_links
from qaeval_core.storage.path import StoragePath
from qaeval_core.study.page import study_page
from qaeval_core.study.records import TABLES, Study
from qaeval_core.study.sections import sections
from qaeval_core.tables.finished_run import check_results_out

# Beside those of every report, what a correlation may depend on.
_PACKAGES = ("scipy", "polars", "scikit-learn")
PAGE = "correlate.html"


def heading_lines(study: Study) -> list[str]:
    """Return what was read, and the notes."""
    first = f"{study.n_rows:,} rows, metrics: {', '.join(study.metrics)}"
    return [first, *(f"note: {note}" for note in study.notes)]


def study_lines(study: Study, *, percent: bool = False, width: int | None = None) -> list[str]:
    """Return everything found, as text; by default with three decimals."""
    lines = heading_lines(study)
    for table in TABLES:
        for shown in sections(study, table):
            words = shown.words(percent=percent, width=width)
            rows = table_lines(shown.head, words, n_left=shown.n_left)
            lines += ["", shown.title, *rows, *shown.remarks]
    return lines


def table_lines(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, n_left: int = 1
) -> list[str]:
    """Return a table whose first columns are words and the others numbers.

    Examples
    --------
    >>> table_lines(["metric", "n"], [["f1", "942"]])
    ['  metric    n', '  f1      942']
    """
    table = [head, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = []
    for row in table:
        words = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append(("  " + "  ".join(words[:n_left] + numbers[n_left:])).rstrip())
    return lines


def write_study(study: Study, out: StoragePath) -> list[StoragePath]:
    """Write tables, the page and, last, report.json; return their paths.

    ``correlations.parquet`` and ``comparisons.parquet`` are always there; the other tables where
    they were asked for.
    """
    check_results_out(out)
    for old in _earlier(out):
        old.delete()
    paths = []
    for name in TABLES:
        table = study.frame(name)
        if table.height or name in ("correlations", "comparisons"):
            paths.append(out / f"{name}.parquet")
            buffer = io.BytesIO()
            table.write_parquet(buffer)
            paths[-1].put(buffer.getvalue())
    made = HowMade.now(out.name)
    content = study_content(study) | {"made": made.content()}
    paths += [out / PAGE, out / "report.json"]
    links = report_links(paths[-2], {f"Report of {own}": own for own in study.request.scores})
    page = study_page(study, content["environment"], made=made, links=links)
    paths[-2].put(page.encode())
    paths[-1].put_json(content)
    return paths


def _earlier(out: StoragePath) -> list[StoragePath]:
    """Return what an earlier study wrote: beside a new report it would seem to be its own."""
    names = [*(f"{name}.parquet" for name in TABLES), PAGE, "report.json"]
    return [path for path in (out / name for name in names) if path.is_file()]


def study_content(study: Study) -> dict[str, Any]:
    """Return a study as plain data: request, notes, all records, environment."""
    # Imported here: it brings all of scoring along, which nothing else in a study needs.
    from qaeval_core.signature import environment

    content = environment()
    for package in _PACKAGES:
        try:
            content["packages"][package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        # The bytes of files are read by their encoding; the texts say the rest.
        "request": {k: v for k, v in asdict(study.request).items() if k != "encoding"},
        "rows": study.n_rows,
        "metrics": study.metrics,
        "notes": study.notes,
        **{name: study.frame(name).to_dicts() for name in TABLES},
        "environment": content,
    }
