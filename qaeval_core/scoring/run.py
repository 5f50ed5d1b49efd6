"""Run: a job to its end, or resumed, whoever executes the pieces.

What is committed is never computed again; the success marker is written last, after every row is
accounted for.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.errors import (
    ReconcileError,
    RunStoppedError,
    StorageError,
)
from qaeval_core.llm.journal import JournalTotals, journal_totals
from qaeval_core.metrics.words import WordSettings
from qaeval_core.pages.example_rows import N_EXAMPLES, example_places, read_texts
from qaeval_core.planning.inputs import InputFile
from qaeval_core.planning.job import Job
from qaeval_core.profile.run_profile import PAGE, PROFILE
from qaeval_core.running.passes import PieceExecutor, RunCosts, check_quarantined, run_passes
from qaeval_core.running.reader import first_texts
from qaeval_core.running.run_files import changes, write_run_files
from qaeval_core.running.stop_sign import StopSign
from qaeval_core.running.visibility import marked
from qaeval_core.schema import is_text, is_texts
from qaeval_core.scoring.answerability import answerability
from qaeval_core.scoring.joined import Joined
from qaeval_core.scoring.joining import clear, join_scores
from qaeval_core.scoring.page import report_page
from qaeval_core.scoring.report import (
    make_report,
    report_columns,
    sample_content,
)
from qaeval_core.scoring.run_signatures import readable_lines
from qaeval_core.scoring.summary import Overview
from qaeval_core.signature import hash_content
from qaeval_core.storage.path import StoragePath, read_json
from qaeval_core.storage.probe import probe
from qaeval_core.storage.retry import STORAGE_SETTING, Outages
from qaeval_core.store.leftovers import remove_leftovers
from qaeval_core.store.lock import RunLock
from qaeval_core.store.pass_stats import PassStats
from qaeval_core.store.row_ranges import RowRange, tiles
from qaeval_core.store.store import Store
from qaeval_core.text.text_notes import is_unspaced, printed_note


@dataclass(slots=True)
class RunOutcome:
    """What a run did; ``report`` is None only where nothing was left to do and none is kept.

    ``stopped`` has, by family key, why a family ended before all its rows were asked.
    """

    report: dict[str, Any] | None
    n_shards_run: int
    is_new: bool
    stopped: Mapping[str, str] = field(default_factory=dict)


def run_job(job: Job, executor: PieceExecutor, *, say: Callable[[str], None]) -> RunOutcome:
    """Run a job to its end, or resume it.

    Parameters
    ----------
    say : callable
        Gets one line per fact that a user should know.

    Returns
    -------
    RunOutcome

    Raises
    ------
    RunStoppedError, TooManyQuarantinedError, StoreLockedError, ReconcileError, StorageError, \
InputChangedError, BlindNodeError, OutRefusedError
        What is committed stays and is used by the next run.
    """
    outages, output = _outages(job, executor, say), job.config.output
    probe(job.store.out, outages, is_locked=output.lock)
    lock = RunLock(
        job.store.out,
        on_loss=executor.stop.set,
        look=outages.look,
        wait_s=output.wait_s,
        is_on=output.lock,
    )
    with lock, closing(executor):
        try:
            return _run_locked(job, executor, outages, lock, say)
        except RunStoppedError:
            lock.check()  # It may be why.
            raise


def _run_locked(
    job: Job, executor: PieceExecutor, outages: Outages, lock: RunLock, say: Callable[[str], None]
) -> RunOutcome:
    remove_leftovers(job.store)
    # It tries as long as this process does, and as long as OUT is this run's.
    store = Store(job.store.out, outages=outages, sample=job.sample, guard=lock.check)
    job = job.with_store(store)
    success = job.store.out / "_SUCCESS"
    if not job.config.scoring.retry_quarantined and _is_finished(job, success):
        say(f"nothing to do: {job.store.out} is complete ({job.n_rows_total:,} rows)")
        report = read_json(job.store.out / "report.json", outages)
        return RunOutcome(report, 0, is_new=False)
    for line in changes(job):
        say(line)
    notes = _notes_on_texts(job, outages)
    for note in notes:
        say(f"note: {note}")
    job = replace(job, notes=(*job.notes, *notes))
    if job.sample is not None:
        say(job.sample.line(job.n_rows_total))
    with marked(job, outages) as (marked_job, sight):
        executor.begin(sight)
        marked_job.store.delete(success)
        write_run_files(marked_job, n_actors=executor.n_actors)
        _journals(job)  # What a killed run left is read here once, and not by each worker.
        try:
            done = run_passes(marked_job, executor, say=say)
        except StorageError:
            raise  # It would not take a manifest either.
        except BaseException:
            marked_job.commits.save()
            raise
        return _finish(marked_job, executor, done, lock)


def _outages(job: Job, executor: PieceExecutor, say: Callable[[str], None]) -> Outages:
    """Return how long this process tries the disk; it says when it waits, and when it is over."""
    is_out = False

    def tell(note: str) -> None:
        nonlocal is_out
        if note and not is_out:
            say(note)
        elif not note:
            say("the disk answers again")
        is_out = bool(note)

    return Outages(
        retry_s=job.config.scoring.retry_storage_s,
        tell=tell,
        look=StopSign(executor.stop).look,
        setting=STORAGE_SETTING,
    )


def _notes_on_texts(job: Job, outages: Outages) -> list[str]:
    """Return notes on texts, as the first rows have them."""
    file = next((file for file in job.files if job.n_rows[file.file_id]), None)
    if file is None:
        return []
    kinds = {role: file.type_of(name) for role, name in job.columns.items() if role != "id"}
    columns = {
        role: job.columns[role]
        for role, kind in kinds.items()
        if kind and (is_text(kind) or is_texts(kind))
    }
    rows = first_texts(
        file,
        columns,
        n_rows=job.n_rows[file.file_id],
        limits=job.read_limits(),
        outages=outages,
    )
    found = {columns[role]: printed_note(columns[role], own) for role, own in rows.items()}
    notes = [note for note in found.values() if note is not None]
    if is_unspaced(rows.get("candidate", ())):
        names = _words_between_spaces(job)
        if names:
            notes.append(
                f"column {columns['candidate']!r} is mostly written without spaces between words, "
                f"and {', '.join(names)} compares words: --set {names[0]}.tokenizer=characters"
            )
    return notes


def _words_between_spaces(job: Job) -> list[str]:
    """Return the instances whose words are what stands between spaces, whatever the language."""
    own = [(plan.name, plan.settings) for plan in job.run.instances]
    words = [(name, settings) for name, settings in own if isinstance(settings, WordSettings)]
    return [
        name
        for name, settings in words
        if settings.tokenizer not in ("characters", "zh") and settings.language != "zh"
    ]


def _finish(job: Job, executor: PieceExecutor, done: RunCosts, lock: RunLock) -> RunOutcome:
    job.store.guard()
    committed = reconcile(job, pending=done.stopped)
    with executor.ranges(interval_s=job.config.scoring.progress_s) as ranges:
        joined, notes = join_scores(
            job,
            ranges,
            tenure=lock.tenure if job.config.output.lock else None,
            stop=StopSign(executor.stop),
        )
    overview = joined.overview
    report = _report(job, done, joined, notes, committed=committed)
    shown = _page(job, report, overview)
    job.store.write(job.store.out / PROFILE, _bytes(overview.profile.to_table()))
    job.store.write_json(job.store.out / "report.json", report)
    job.store.write(job.store.out / PAGE, shown.encode())
    if not done.stopped:
        marker = {
            "fingerprint": job.fingerprint,
            "rows": joined.totals.n_rows,
            "report": _hash(job.store.out / "report.json", job.store),
        }
        job.store.write(job.store.out / "_SUCCESS", json.dumps(marker).encode())
    clear(job.store)
    n_shards = sum(stats.n_batches > 0 or stats.n_rows > 0 for stats in done.this_run.values())
    return RunOutcome(report, n_shards, is_new=True, stopped=done.stopped)


def _report(
    job: Job,
    done: RunCosts,
    joined: Joined,
    notes: Sequence[str],
    *,
    committed: Mapping[str, PassStats],
) -> dict[str, Any]:
    """Return what a run says of itself once its rows are joined."""
    journals, overview = _journals(job), joined.overview
    asked = {note for own in journals.values() for note in own.notes}
    report = make_report(
        job.run,
        joined.totals,
        columns=report_columns(job.run, joined.totals, overview),
        committed=committed,
        this_run=done.this_run,
        wall_s=done.wall_s,
        stopped=done.stopped,
        journals=journals,
        notes=[*job.notes, *notes, *asked],
    )
    if job.sample is not None:
        report["sample"] = sample_content(job.sample)
    if job.config.input.unanswerable == "empty" and "references" in job.columns:
        names = [plan.name for plan in job.run.instances if plan.name in report["columns"]]
        paths = [job.store.out / "scores" / file.relative for file in job.files]
        report["answerability"] = answerability(job, paths, names)
    report |= overview.content()
    for name, line in readable_lines(job, report).items():
        report["instances"][name]["readable"] = line
    check_report(report, n_rows=job.n_rows_total)
    check_quarantined(job, report["quarantined"])
    return report


def _page(job: Job, report: Mapping[str, Any], overview: Overview) -> str:
    """Return the page of a run; its texts are those of a few rows, read again."""
    texts = None
    if job.config.output.texts:
        texts = read_texts(
            example_places(report, n=N_EXAMPLES),
            files=job.files,
            n_rows=job.n_rows,
            columns=job.columns,
            limits=job.read_limits(),
            outages=job.store.outages,
        )
    about = read_json(job.store.out / "run.json", job.store.outages) or {}
    return report_page(report, about, overview.profile, texts)


def _bytes(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _journals(job: Job) -> dict[str, JournalTotals]:
    """Return what the journals of families that ask hold; who opens one next need not read it.

    Of one that cannot be read a note says so: its family does, too, and ends, and no other one.
    """
    folders = {plan.key: plan.journal_folder for plan in job.run.families if plan.journal_folder}
    read = {
        folder: journal_totals(folder, outages=job.store.outages, writes_index=True)
        for folder in set(folders.values())
    }
    return {key: read[folder] for key, folder in folders.items()}


def reconcile(job: Job, *, pending: Collection[str] = ()) -> dict[str, PassStats]:
    """Check that every row of every file is committed once in every family.

    Parameters
    ----------
    pending : collection of str
        Keys of families that may lack rows.

    Returns
    -------
    dict of family key to PassStats
        Counts of all commits.

    Raises
    ------
    ReconcileError
        If a row is missing, or a commit does not hold what its name says.
    """
    counts: dict[str, PassStats] = {}
    for family in job.run.families:
        commits = job.commits.of(family.key)
        missing = _missing(job, job.done_ranges(family))
        if missing is not None:
            # Of a worker that died before it told what it had committed.
            commits.list_again()
            missing = _missing(job, job.done_ranges(family))
        if missing is not None and family.key not in pending:
            raise ReconcileError(
                f"{family.key}: rows of {missing.name} are missing; run the same command again "
                "[QA0509]"
            )
        counts[family.key] = commits.total(job.n_rows)
        commits.compact()
    return counts


def _missing(job: Job, ranges: Mapping[str, Sequence[RowRange]]) -> InputFile | None:
    """Return a file whose rows are not all committed."""
    for file in job.files:
        if not tiles(ranges[file.file_id], n_rows=job.n_rows[file.file_id]):
            return file
    return None


def check_report(report: Mapping[str, Any], *, n_rows: int) -> None:
    """Raise ReconcileError unless every row is scored, undefined, quarantined or not sampled."""
    for name, counts in report["instances"].items():
        kinds = ("scored", "undefined", "quarantined", "not_sampled")
        n_out = sum(counts[kind] for kind in kinds)
        if n_out != n_rows or report["rows"] != n_rows:
            raise ReconcileError(f"{name}: {n_rows:,} rows went in, {n_out:,} came out [QA0509]")


def _is_finished(job: Job, success: StoragePath) -> bool:
    """Whether OUT holds what this job would compute, and the report that was written of it."""
    marker = read_json(success, job.store.outages) or {}
    report = job.store.out / "report.json"
    return (
        marker.get("fingerprint") == job.fingerprint
        and job.store.call(report.is_file, f"cannot look at {report}")
        and marker.get("report") == _hash(report, job.store)
        and _shows_texts_as_asked(job)
    )


def _hash(path: StoragePath, store: Store) -> str:
    return hash_content(store.call(path.read_bytes, f"cannot read {path}"))


def _shows_texts_as_asked(job: Job) -> bool:
    """Whether the page, if there is one, was made with texts or without as it is asked now."""
    page = job.store.out / PAGE
    if not job.store.call(page.is_file, f"cannot look at {page}"):
        return True  # OUT is of a version that wrote none.
    about = read_json(job.store.out / "run.json", job.store.outages) or {}
    output = about.get("config", {}).get("output", {})
    return bool(output.get("texts", True) == job.config.output.texts)
