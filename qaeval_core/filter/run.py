"""Run: a filter from its request to ``_SUCCESS``, whoever works on the ranges.

Two passes over the rows; between them everything is decided on one machine, for which ids are read
where equal values lie at a cut. Nothing in KEPT looks finished before it is: ``_SUCCESS`` leaves
first and comes last, and what is not whole lies in a folder of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError, OutRefusedError
from qaeval_core.filter.corpus_rows import CorpusRows
from qaeval_core.filter.decide import keep_best
from qaeval_core.filter.evidence import Evidence, NoEvidenceError, weigh
from qaeval_core.filter.examples import ExampleRows
from qaeval_core.filter.filtering import COMBINE_NAME, OUTPUTS, Filtering, decide_early, learn, scan
from qaeval_core.filter.groups import count_groups
from qaeval_core.filter.labels import SHEET_FILES, LabeledRows, differ_lines, labels_of
from qaeval_core.filter.learn import Learned
from qaeval_core.filter.looks import Account
from qaeval_core.filter.order import Cut
from qaeval_core.filter.output import write_rows, write_yields
from qaeval_core.filter.page import filter_page
from qaeval_core.filter.plan import FilterPlan, make_plan
from qaeval_core.filter.quotas import CountedValues, n_of
from qaeval_core.filter.request import FilterRequest
from qaeval_core.filter.result import FilterOutcome, FilterResult, labels_line, result_content
from qaeval_core.filter.row_arrays import are_mapped, check_room
from qaeval_core.filter.shares import Shares, make_shares, smallest_shares
from qaeval_core.filter.sheet import write_sheet
from qaeval_core.filter.write import MetricSums, WantedRows
from qaeval_core.filter.yields import yield_table
from qaeval_core.made import HowMade
from qaeval_core.pages.heading import link_to
from qaeval_core.running.range_executor import RETRY_S, LocalRangeExecutor, RangeExecutor
from qaeval_core.stats.certificate import Certificate
from qaeval_core.storage.checksums import hash_of
from qaeval_core.storage.path import AnyPath, StoragePath, as_json, as_path, read_json
from qaeval_core.storage.probe import PROBES, probe
from qaeval_core.storage.retry import Outages
from qaeval_core.store.lock import RunLock
from qaeval_core.tables.corpus import Corpus

N_EXAMPLES = 20


def run_filter(
    plan: FilterPlan,
    folder: AnyPath,
    executor: RangeExecutor,
    *,
    say: Callable[[str], None],
    retry_s: float = RETRY_S,
) -> FilterResult:
    """Filter a corpus into a folder, or find that it was done.

    Parameters
    ----------
    folder : StoragePath, Path or str
        KEPT; made, or one that a filter made; in a bucket by its URI.
    say : callable
        Gets one line per fact that a user should know.

    Returns
    -------
    FilterResult

    Raises
    ------
    ConfigError, InputError
        If labels, groups or values do not fit the request.
    StorageError, InputChangedError, StoreLockedError
        What is whole then is of the run before, or nothing.
    """
    folder = as_path(folder)
    if is_mapped := are_mapped(plan.n_bytes):
        check_room(plan.corpus.n_rows, plan.n_mapped_bytes, folder)
    for note in plan.notes:
        say(f"note: {note}")
    outages = Outages(retry_s=retry_s)
    outages.call(
        lambda: _check_folder(folder, plan.corpus), store=str(folder), what=f"cannot list {folder}"
    )
    probe(folder, outages, option="--to")
    with RunLock(folder) as lock:
        fingerprint = plan.fingerprint()
        run = Filtering(plan, folder, executor, say, lock.tenure, fingerprint, retry_s, is_mapped)
        run.remove_leftovers()
        if plan.request.label_sheet is not None:
            return write_sheet(run)
        done = _finished(folder, fingerprint)
        if done is not None:
            say(f"nothing to do: {folder} is complete")
            return FilterResult(done, is_new=False)
        run.check_declared()
        run.store.delete(folder / "_SUCCESS")
        account = Account.read(read_json(folder / "filter.json"), plan.corpus_hash())
        with run.working():
            content = _filter(run, account)
            lock.check()
            _finish(run, content)
        return FilterResult(content)


def _check_folder(folder: StoragePath, corpus: Corpus) -> None:
    """Raise ConfigError unless a folder is a filter's own, or nobody's."""
    if folder.is_below(corpus.out) or corpus.out.is_below(folder):
        raise ConfigError(
            f"--to {folder} lies inside {corpus.out}; choose a folder outside of it [QA0109]"
        )
    for inside in corpus.folders:
        if folder.is_below(inside):
            raise ConfigError(f"--to {folder} lies inside the input folder {inside} [QA0109]")
    for file in corpus.files:
        if _is_in(file.source.uri, folder):
            raise ConfigError(f"--to {folder} holds the input {file.source.uri} [QA0109]")
    try:
        there = {found.name for found in folder.list()} | set(folder.folders())
    except (FileNotFoundError, PermissionError) as error:
        if folder.local is not None:
            raise
        raise OutRefusedError(f"--to {folder}: {error.strerror} [QA0111]") from None
    # What begins with a dot is a lock, work, or what a killed writer left.
    names = {name for name in there if name[0] != "."} - {*SHEET_FILES, PROBES}
    if not names:
        return
    is_own = (folder / "filter.json").is_file()
    # Killed before the first one was finished.
    if not is_own and not names <= {*OUTPUTS, COMBINE_NAME, "yield.parquet", "filter.html"}:
        raise ConfigError(
            f"--to {folder} holds other files, such as {min(names)}; choose a new folder [QA0110]"
        )


def _is_in(uri: str, folder: StoragePath) -> bool:
    """Whether a file lies in a folder, by the place that its path or URI names."""
    if "://" in uri:
        return uri.partition("?")[0].startswith(f"{folder.place.rstrip('/')}/")
    return folder.local is not None and as_path(uri).is_below(folder)


def _finished(folder: StoragePath, fingerprint: str) -> dict[str, Any] | None:
    """Return what filter.json says, if it is of the same filter and whole."""
    marker = read_json(folder / "_SUCCESS") or {}
    content = read_json(folder / "filter.json")
    if marker.get("fingerprint") != fingerprint or content is None:
        return None
    if marker.get("filter") != hash_of(folder / "filter.json"):
        return None
    is_whole = all(
        found is not None and found.size == size
        for name, sizes in content["files"].items()
        for what, size in sizes["bytes"].items()
        for found in [(folder / what / name).head()]
    )
    return content if is_whole else None


def _filter(run: Filtering, account: Account) -> dict[str, Any]:
    """Return what filter.json says; kept rows and decisions are written."""
    request = run.plan.request
    labels = None
    if request.labels is not None:
        labels = labels_of(request)
        for line in differ_lines(labels):
            run.say(line)
        if request.precision is not None:
            run.say(labels_line(labels, run.plan))
    learned = learn(run, labels) if request.learn and labels is not None else None
    rows, labeled = scan(run, labels)
    counted = decide_early(run, rows)
    return _choose_and_write(run, rows, counted, labeled, learned, account=account)


@dataclass(frozen=True, slots=True)
class Choice:
    """What the last stage keeps.

    Attributes
    ----------
    n_kept : int
    certificate : Certificate, optional
        Where there are labels.
    is_certified : bool
        False only if a precision was asked for and no share has it.
    """

    n_kept: int
    certificate: Certificate | None = None
    is_certified: bool = True


def _choose(request: FilterRequest, shares: Shares, found: Certificate | None) -> Choice:
    if request.precision is None:
        size = None if request.is_divided else request.n_or_share
        n = shares.n_eligible
        return Choice(n_of(size, n) if size is not None else n, found)
    chosen = found.chosen if found is not None else None
    if chosen is None or found is None:
        return Choice(0, found, is_certified=False)
    return Choice(chosen.n_rows, found)


def _weigh(
    run: Filtering,
    rows: CorpusRows,
    labeled: LabeledRows,
    *,
    shares: Shares,
    share: NDArray[np.uint8],
    account: Account,
) -> Evidence | None:
    """Return what labels say of the rows that are left; None if nothing, and nobody needs it.

    Raises
    ------
    ConfigError
        If they say nothing, and are to certify a precision.
    """
    request = run.plan.request
    try:
        found = weigh(run.plan, rows, labeled, shares=shares, share=share, account=account)
    except NoEvidenceError as error:
        if request.precision is not None:
            raise
        run.say(f"note: {error}")
        return None
    if found.n_dropped:
        run.say(
            f"{request.labels_name}: {found.n_dropped:,} of {len(labeled.rows):,} labels are of "
            "rows that an earlier stage drops, and say nothing of those that are left"
        )
    return found


def _choose_and_write(
    run: Filtering,
    rows: CorpusRows,
    counted: Mapping[str, CountedValues],
    labeled: LabeledRows | None,
    learned: Learned | None,
    *,
    account: Account,
) -> dict[str, Any]:
    plan, request = run.plan, run.plan.request
    shares = make_shares(rows)
    share = smallest_shares(rows, shares)
    evidence = None
    if labeled is not None and shares.n_eligible:
        evidence = _weigh(run, rows, labeled, shares=shares, share=share, account=account)
    found = evidence.found if evidence is not None else None
    choice = _choose(request, shares, found)
    cut, margin = _margin(rows, choice.n_kept, shares, share)
    keep_best(rows, cut)
    groups = count_groups(rows)
    examples = ExampleRows.of(rows, margin, labeled if choice.is_certified else None)
    told = [(row, own.column) for own in counted.values() for row in own.told]
    shown = WantedRows(examples.rows, told)
    written, sizes = write_rows(run, rows, share, groups, shown, keeps=choice.is_certified)
    sums = MetricSums.of_all(written, len(plan.metrics))
    n_groups = groups.n_by_share if groups is not None else None
    table = _write_yields(run, shares, sums, n_groups, found)
    outcome = FilterOutcome(
        shares=shares,
        cut=cut,
        evidence=evidence,
        account=account if evidence is None else evidence.account,
        is_certified=choice.is_certified,
        counted=counted,
        names={place: text for own in written for place, text in own.names.items()},
        learned=learned.rank if learned is not None else None,
        sums=sums,
        rank_range=rows.rank_range(),
        n_groups=groups.n_kept if groups is not None else None,
        examples=examples.content({k: v for own in written for k, v in own.examples.items()}),
    )
    return result_content(plan, rows, outcome, table=table, files=sizes)


def _write_yields(
    run: Filtering,
    shares: Shares,
    sums: MetricSums,
    n_groups: Sequence[int] | None,
    found: Certificate | None,
) -> pl.DataFrame:
    plan = run.plan
    table = yield_table(
        shares,
        sums,
        plan.metrics,
        n_groups=n_groups,
        higher_is_better=plan.stages.rank.higher_is_better,
        certificate=found,
        has_target=plan.request.precision is not None,
    )
    write_yields(run, table)
    return table


def _margin(
    rows: CorpusRows, n_kept: int, shares: Shares, share: NDArray[np.uint8]
) -> tuple[Cut | None, list[int]]:
    """Return the last row that is kept, and the rows on both sides of the cut."""
    first = max(n_kept - N_EXAMPLES // 2, 0)
    last = min(n_kept + N_EXAMPLES // 2, shares.n_eligible)
    if first >= last:
        return None, []
    # They are among the rows that the shares around them add.
    lowest, highest = np.searchsorted(shares.counts, [first + 1, last])
    n_before = shares.counts[lowest - 1] if lowest else 0
    ranking = rows.ranking(shares=(share, int(lowest), int(highest)))
    cuts = ranking.cuts(range(first + 1 - n_before, last + 1 - n_before))
    return (cuts[n_kept - first - 1] if n_kept else None), sorted(cut.row for cut in cuts)


def _finish(run: Filtering, content: dict[str, Any]) -> None:
    if content["learned"] is not None:
        run.write(COMBINE_NAME, as_json(content["learned"]))
    else:
        run.delete([run.folder / COMBINE_NAME])
    page, corpus = run.folder / "filter.html", run.plan.corpus
    beside = {"Scores": corpus.out / "report.html", "Labels": run.folder / "label.html"}
    links = [
        (name, link)
        for name, path in beside.items()
        if (link := link_to(page, path)) is not None and path.is_file()
    ]
    made = HowMade.now(corpus.out.name)
    run.write(page.name, filter_page(content, made, data=str(corpus.out), links=links).encode())
    run.write("filter.json", as_json(content))
    if content["certified"] is False:
        return
    path = run.folder / "filter.json"
    own = run.store.call(lambda: hash_of(path), f"cannot read {path}")
    marker = {"fingerprint": run.fingerprint, "filter": own}
    run.write("_SUCCESS", json.dumps(marker).encode())


def filter_corpus(
    request: FilterRequest,
    corpus: Corpus,
    folder: AnyPath,
    *,
    executor: RangeExecutor | None = None,
    say: Callable[[str], None] = lambda _: None,
    retry_s: float = RETRY_S,
) -> FilterResult:
    """Plan and run a filter; see `make_plan` and `run_filter` for what can be wrong."""
    plan = make_plan(request, corpus)
    return run_filter(plan, folder, executor or LocalRangeExecutor(), say=say, retry_s=retry_s)
