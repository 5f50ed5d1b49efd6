"""Sheet: a sample of the rows that a filter could keep, for people to label."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError, SchemaError
from qaeval_core.filter.corpus_rows import CorpusRows
from qaeval_core.filter.evidence import weigh
from qaeval_core.filter.filtering import Filtering, decide_early, scan
from qaeval_core.filter.label_page import label_page
from qaeval_core.filter.labels import (
    N_SHOWN,
    PAGE_NAMES,
    SECOND_SHEET_NAME,
    SHEET_NAME,
    LabeledRows,
    SheetOrder,
    check_same_sheet,
    labels_of,
    sheet_text,
)
from qaeval_core.filter.looks import Account
from qaeval_core.filter.result import FilterResult, outlook_of
from qaeval_core.filter.scan import ScanPlan
from qaeval_core.filter.shares import make_shares, smallest_shares
from qaeval_core.stats.label_plan import best_part
from qaeval_core.storage.path import StoragePath
from qaeval_core.tables.corpus import RangeTask
from qaeval_core.tables.range_reader import RangeReader

_STEP = 1 << 20


def write_sheet(run: Filtering) -> FilterResult:
    """Write a simple random sample of the rows that reach the last stage, or of the best of them.

    What duplicates, top-k and quotas leave depends on the rank. Before one is learned the sample is
    therefore of the rows that these stages see: the part of it that they leave, by whatever rank,
    is a random one again.

    Raises
    ------
    ConfigError
        If another sheet lies there: it may hold labels.
    SchemaError
        If an id of the sheet is of several rows: a label of it would say of none of them.
    """
    request = run.plan.request
    with run.working():
        texts, part, n_before, n_left = _drawn(run)
    path = run.folder / (SHEET_NAME if part.share is None else SECOND_SHEET_NAME)
    _put_sheet(run, path, sheet_text(texts))
    page_name, labels_name = PAGE_NAMES[path.name]
    page = run.folder / page_name
    run.store.write(page, label_page(texts, sheet=path.name, labels=labels_name).encode())
    # Of a learned rank two thirds of the labels certify, and of them what reaches the last stage.
    n_certifying = len(texts)
    if request.learn:
        n_certifying = n_certifying * n_left * 2 // (3 * max(n_before, 1))
    return FilterResult(
        {
            "sheet": str(path),
            "page": str(page),
            "n_labels": len(texts),
            "n_eligible": part.n_rows,
            "within": part.share,
            "n_certifying": n_certifying,
            "certified": None,
            "outlook": outlook_of(request, n_certifying, n_rows=part.n_rows),
        }
    )


def _drawn(run: Filtering) -> tuple[list[dict[str, object]], _Part, int, int]:
    """Return rows of the sample, what they are of, and how many rows reach it and the last stage.

    Rows stand in the order of the sheet.
    """
    request = run.plan.request
    assert request.label_sheet is not None
    pilot = None
    if request.labels is not None:
        pilot = labels_of(request)
    rows, labeled = scan(run, pilot)
    if not request.learn:
        decide_early(run, rows)
    n_before = rows.counts()[""]
    part = _Part(rows.is_eligible, n_before)
    if request.within_best is not None and n_before:
        part = _best_part(run, rows, labeled)
    order = SheetOrder(rows, part.is_member, is_second=part.share is not None)
    chosen = order.first(request.label_sheet)
    if request.learn:  # For the number that is left, much the same whatever the rank.
        decide_early(run, rows)
    n_left = rows.counts()[""]
    ascending = np.sort(chosen)
    own = [_rows_of(task, ascending) for task in run.tasks]
    wanted = [pair for pair in zip(run.tasks, own, strict=True) if pair[1]]
    read = partial(_read_texts, plan=run.scan_plan(), roles=dict(run.plan.corpus.roles))
    n_rows = [task.rows.n_rows for task, _ in wanted]
    found = run.executor.map(read, wanted, label="sheet", n_rows=n_rows)
    texts = [row for part_of_rows in found for row in part_of_rows]
    _check_ids(rows, ascending, [str(row["id"]) for row in texts])
    places = np.searchsorted(ascending, chosen)
    return [texts[place] for place in places], part, n_before, n_left


def _put_sheet(run: Filtering, path: StoragePath, content: str) -> None:
    """Write a sheet, and never over one that somebody may have labeled meanwhile."""
    run.store.check_inside(path)
    # With a mark: without it, spreadsheets take UTF-8 for something else.
    put = partial(path.put_new, content.encode("utf-8-sig"))
    if run.store.call(put, f"cannot write {path}") is None:
        check = partial(check_same_sheet, path, content)
        run.store.call(check, f"cannot read {path}")


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows that a sheet is drawn from; ``share`` is None where that is all of them."""

    is_member: Callable[[slice], NDArray[np.bool_]]
    n_rows: int
    share: float | None = None


def _best_part(run: Filtering, rows: CorpusRows, labeled: LabeledRows | None) -> _Part:
    """Return the best share of the rows that is asked for, or that labels of all rows choose."""
    request = run.plan.request
    assert request.label_sheet is not None
    shares = make_shares(rows)
    share = smallest_shares(rows, shares)
    if labeled is None:
        assert request.within is not None
        last = shares.nearest(request.within)
    else:
        whole = replace(
            run.plan, request=replace(request, within_best=None, looks=(), label_sheet=None)
        )
        account = Account(run.plan.corpus_hash())
        pilot = weigh(whole, rows, labeled, shares=shares, share=share, account=account).found
        if not pilot.n_labels:
            raise ConfigError(
                f"{request.labels_name}: no label is of a row that could be kept [QA0315]"
            )
        last = best_part(pilot, request.label_sheet)

    def is_member(own: slice) -> NDArray[np.bool_]:
        return share[own] <= last

    n_rows = shares.counts[last]
    return _Part(is_member, n_rows, n_rows / shares.n_eligible)


def _check_ids(rows: CorpusRows, chosen: NDArray[np.intp], ids: Sequence[str]) -> None:
    """Raise SchemaError if ids of chosen rows are none, or of other rows too: before labels."""
    n_empty = sum(not name for name in ids)
    if n_empty:
        raise SchemaError(
            f"--label-sheet: {n_empty:,} of {len(ids):,} ids are empty, so their labels would "
            "belong to no row. Give each row an id; another --seed draws other rows [QA0313]"
        )
    wanted, numbers = np.unique(rows.tie[chosen], return_inverse=True)  # Hashes of ids.
    times = np.zeros(len(wanted), np.int64)
    for start in range(0, len(rows) if len(wanted) else 0, _STEP):
        own = rows.tie[start : start + _STEP]
        places = np.minimum(np.searchsorted(wanted, own), len(wanted) - 1)
        times += np.bincount(places[wanted[places] == own], minlength=len(wanted))
    twice = [name for name, n in zip(ids, times[numbers], strict=True) if n > 1]
    if twice:
        raise SchemaError(
            f"--label-sheet: {len(twice):,} of {len(ids):,} ids belong to several rows, such as "
            f"{', '.join(map(repr, twice[:N_SHOWN]))}. Give each row an id of its own; another "
            "--seed draws other rows [QA0313]"
        )


def _rows_of(task: RangeTask, chosen: NDArray[np.intp]) -> list[int]:
    first, stop = np.searchsorted(chosen, [task.start, task.start + task.rows.n_rows])
    return [int(row) - task.start for row in chosen[first:stop]]


def _read_texts(
    wanted: tuple[RangeTask, list[int]], plan: ScanPlan, roles: dict[str, str]
) -> list[dict[str, Any]]:
    """Return the ids and texts of some rows of a range."""
    task, places = wanted
    reader = RangeReader(
        task,
        names=list(dict.fromkeys(roles.values())),
        score_names=plan.score_names,
        id_column=plan.id_column,
        outages=plan.outages,
    )
    found = []
    for rows, table, ids in reader:
        first = rows.start - task.rows.start
        for place in places:
            if first <= place < first + rows.n_rows:
                i = place - first
                texts = {role: table[name][i].as_py() for role, name in roles.items()}
                found.append({"id": ids[i].as_py(), **texts})
    reader.close()
    return found
