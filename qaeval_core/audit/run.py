"""Run: one audit from its request to what it found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from qaeval_core.audit.cause import find_cause
from qaeval_core.audit.compare import AuditResult, compare
from qaeval_core.audit.count_profile import profile_source
from qaeval_core.audit.outcome import AuditOutcome, AuditStatus
from qaeval_core.audit.paired import with_pairs
from qaeval_core.audit.profile_folder import Runs, read_profile, run_id, shown_run
from qaeval_core.audit.request import REFERENCES, AuditRequest
from qaeval_core.audit.shared_rows import Side, pair_runs
from qaeval_core.audit.source import Source, open_source
from qaeval_core.audit.unusual_runs import EarlierRun, run_means
from qaeval_core.errors import ConfigError, RunError, UnreadableFileError, nearest
from qaeval_core.made import HowMade
from qaeval_core.profile.run_profile import RunProfile
from qaeval_core.running.progress import Tell, no_progress
from qaeval_core.running.range_executor import RETRY_S, RangeExecutor
from qaeval_core.storage.base import Tag
from qaeval_core.storage.path import AnyPath, StoragePath, as_path, read_json
from qaeval_core.storage.probe import probe
from qaeval_core.storage.retry import Outages
from qaeval_core.store.store import Store
from qaeval_core.tables.finished_run import FinishedRun, read_run
from qaeval_core.terminal import SHOWN_NAME

# What comes before says little of the next run, and each is read.
_MAX_EARLIER = 100


@dataclass(frozen=True, slots=True)
class _Reference:
    """What a run is compared with, and whose cells and slices it is counted in."""

    name: str = ""
    profile: RunProfile | None = None
    out: StoragePath | None = None
    cells_of: RunProfile | None = None

    @property
    def shown(self) -> str:
        """What people call it."""
        return shown_run(self.name, self.profile.name if self.profile is not None else "")


@dataclass(frozen=True, slots=True)
class Audit:
    """An audit of one run, checked: nothing is counted yet.

    Attributes
    ----------
    run : str
        Its id.
    pinned : Tag, optional
        Which version said what is pinned when the audit began.
    """

    out: StoragePath
    request: AuditRequest
    runs: Runs
    run: str
    reference: _Reference
    source: Source
    retry_s: float
    pinned: Tag | None = None

    @property
    def name(self) -> str:
        """What people call the run."""
        about = read_json(self.out / "run.json") or {}
        return SHOWN_NAME.get() or HowMade.of(about.get("made"), self.out.name).name

    def finish(self, executor: RangeExecutor, *, tell: Tell = no_progress) -> AuditOutcome:
        """Count the rows, keep the profile, compare.

        Parameters
        ----------
        executor : RangeExecutor
        tell : callable, optional
            Gets a label, the rows done and all rows, of what is done here.

        Raises
        ------
        RunError, InputError
            If rows cannot be read, or the profile not be written.
        """
        like = self._reference_source()
        before = self._reference_profile(like, executor)
        executor.begin(None, self.source.looked_at)
        profile = profile_source(
            self.source,
            executor,
            reference=before if before is not None else self.reference.cells_of,
            retry_s=self.retry_s,
        )
        profile.name = self.name
        first = AuditOutcome(
            status="first_run",
            out=self.out,
            request=self.request,
            run=self.run,
            profile=profile,
            notes=(*self.source.notes, *profile.slice_notes(), *self._keep(profile)),
        )
        if before is None:
            return first
        found = self._compared(first, before, profile)
        if like is not None:
            found = self._in_pairs(found, like, executor, tell)
        self._mark(is_alarmed=found.status == "alert")
        return self._with_cause(found)

    @property
    def _is_named(self) -> bool:
        """Whether the user named a reference: that is what is asked about, and no history."""
        return self.request.reference not in (None, *REFERENCES)

    def _mark(self, *, is_alarmed: bool) -> None:
        """Keep whether the run is unlike those before it.

        A look beside a named reference says nothing of that; a look at some columns that finds
        nothing says nothing of the others.
        """
        if self.request.pin:
            self.runs.mark(self.run, is_alarmed=False)
        elif not self._is_named and (is_alarmed or not self.request.watch):
            self.runs.mark(self.run, is_alarmed=is_alarmed)

    def _compared(
        self, first: AuditOutcome, before: RunProfile, profile: RunProfile
    ) -> AuditOutcome:
        earlier, n_rows, unread = self._earlier()
        if self.reference.name != self.run and before.to_table().equals(profile.to_table()):
            unread.append(
                f"the reference {self.reference.shown} has the same counts as this run. A copy?"
            )
        if self.request.watch:  # What is not asked for has not vanished.
            before = before.only(self.request.watch)
        result = compare(
            before,
            profile,
            self.request.settings,
            history=[one.means for one in earlier],
            n_rows_before=None if self._is_named else n_rows,
        )
        return replace(
            first,
            status=_status(result),
            reference=self.reference.name,
            reference_profile=before,
            result=result,
            earlier=earlier,
            notes=(*first.notes, *unread),
        )

    def _with_cause(self, found: AuditOutcome) -> AuditOutcome:
        if found.reference_profile is None or found.profile is None:
            return found
        cause = find_cause(
            found.result,
            (found.reference_profile, found.profile),
            self.request.settings,
            earlier=found.earlier,
            read=self.runs.read,
            is_beside_last=not self._is_named,
        )
        return replace(found, cause=cause)

    def _in_pairs(
        self, found: AuditOutcome, like: Source, executor: RangeExecutor, tell: Tell
    ) -> AuditOutcome:
        sides = (
            Side(_complete(like.corpus.out), like),
            Side(_complete(self.out), self.source, self.request.inputs),
        )
        settings = self.request.settings
        shared = pair_runs(*sides, settings, executor, tell=tell, retry_s=self.retry_s)
        alerts = with_pairs(found.result.alerts, shared.columns, settings)
        result = replace(found.result, alerts=alerts)
        return replace(
            found,
            status=_status(result),
            result=result,
            notes=(*found.notes, *shared.notes),
            paired=shared.columns,
            share_matched=shared.share,
        )

    def _reference_source(self) -> Source | None:
        """Return the rows of the reference; None where it is a profile alone."""
        if self.reference.out is None:
            return None
        asked = replace(self.request, cluster=self.source.cluster, inputs=())
        return open_source(_complete(self.reference.out), asked, by=self.source.rows.by)

    def _reference_profile(self, like: Source | None, executor: RangeExecutor) -> RunProfile | None:
        if like is None:
            return self.reference.profile
        executor.begin(None, like.looked_at)
        return profile_source(
            like, executor, reference=self.reference.cells_of, retry_s=self.retry_s
        )

    def _keep(self, profile: RunProfile) -> Iterator[str]:
        """Put the profile into the history; yield what is to be said of that."""
        if not self.runs.add(self.run, profile) and self._differs(profile):
            yield (
                f"{self.runs.path(self.run)} was made with other columns, slices or clusters, and "
                "stays as it is"
            )
        if self.request.pin and (stays := self.runs.pin(self.run, seen=self.pinned)):
            yield f"{stays} was pinned meanwhile: it is newer, and stays the reference"

    def _differs(self, profile: RunProfile) -> bool:
        try:
            kept = self.runs.read(self.run)
        except UnreadableFileError as error:
            raise RunError(str(error)) from None
        pairs = [
            (own.slices, own.cluster, own.columns.keys(), own.rates.keys())
            for own in (kept, profile)
        ]
        return pairs[0] != pairs[1]

    def _earlier(self) -> tuple[list[EarlierRun], int | None, list[str]]:
        """Return the runs before this one, rows of the last one, and notes of what is left out.

        A run that alarmed says nothing of what is usual, until it is pinned: one bad week would
        make the next one look fine.
        """
        found: list[EarlierRun] = []
        n_rows, notes, alarmed = None, [], self.runs.alarmed()
        before = [own for own in self.runs.ids() if own < self.run][-_MAX_EARLIER:]
        for run in before:
            if run in alarmed:
                continue
            try:
                profile = self.runs.read(run)
            except UnreadableFileError as error:
                notes.append(f"skipped in the history: {error}")
                continue
            found.append(EarlierRun(run, run_means(profile), profile.name))
            n_rows = profile.n_rows
        if n_alarmed := len(alarmed & set(before)):
            notes.append(f"left out of the history: {n_alarmed} alarmed runs; --pin accepts one")
        return found, n_rows, notes


def _status(result: AuditResult) -> AuditStatus:
    if result.alerts:
        return "alert"
    return "too_few" if result.is_too_few else "ok"


def prepare_audit(
    out: AnyPath, request: AuditRequest, *, history: AnyPath, retry_s: float = RETRY_S
) -> Audit:
    """Return an audit that can begin; only footers and profiles are read.

    Parameters
    ----------
    out : StoragePath, Path or str
        OUT of ``qaeval score``.
    history : StoragePath, Path or str
        Folder of profiles.
    retry_s : float
        How long stores are tried.

    Raises
    ------
    RunError
        If a run is not complete, or the reference cannot be had.
    ConfigError
        If the request does not fit the run.
    InputError
        If files are not there or cannot be read.
    """
    out = as_path(out)
    run = _complete(out)
    runs = Runs(Store(history, outages=Outages(retry_s=retry_s)))
    pinned = runs.pinned_version()
    own = runs.known(run_id(out))
    reference, notes = _reference_or_none(request, runs, own)
    like = reference.profile or reference.cells_of
    source = open_source(
        run,
        request,
        by=tuple(like.slices.values) if like is not None else (),
        cluster=like.cluster if like is not None else "",
    )
    _check_same_clusters(source, reference)
    _check_tolerances(request, source, reference.profile)
    source = replace(source, notes=(*notes, *source.notes))
    return Audit(out, request, runs, own, reference, source, retry_s, pinned)


def _complete(out: StoragePath) -> FinishedRun:
    if (out / "run.json").is_file() and not (out / "_SUCCESS").is_file():
        raise RunError(
            f"{out} has no _SUCCESS, so the run has not finished. Run the same qaeval score again "
            "to complete it [QA0512]"
        )
    return read_run(out)


def _reference_or_none(
    request: AuditRequest, runs: Runs, run: str
) -> tuple[_Reference, tuple[str, ...]]:
    """Return the reference, and notes; none where it cannot be had and this run is to replace it.

    Else a reference that is damaged, or of another version, could not be replaced by ``--pin``.
    """
    try:
        return _find_reference(request, runs, run), ()
    except UnreadableFileError as error:
        why = RunError(f"no reference: {error}")
    except RunError as error:
        why = error
    if request.reference is not None:
        raise why
    if not request.pin:
        raise RunError(f"{why.text}; --pin makes this run the reference [{why.code}]")
    return _Reference(), (why.text,)


def _find_reference(request: AuditRequest, runs: Runs, run: str) -> _Reference:
    choice = request.reference
    if choice is None or choice in REFERENCES:
        found = runs.reference(choice, run)
        if found is None and choice == "pinned" and set(runs.ids()) - {run}:
            raise RunError(
                f"no reference: nothing is pinned in {runs.folder}; pin a run with --pin [QA0802]"
            )
        return _Reference() if found is None else _Reference(found, runs.read(found))
    path = as_path(choice)
    if path.is_dir():
        base = runs.reference(None, run)
        cells_of = runs.read(base) if base is not None else None
        return _Reference(choice, None, path, cells_of)
    if path.is_file():
        return _Reference(choice, read_profile(path, Store(path.parent)))
    if choice in runs.ids():
        return _Reference(choice, runs.read(choice))
    raise ConfigError(
        f"--reference {choice}: not an OUT, a profile or a run of "
        f"{runs.folder}{nearest(choice, [*REFERENCES, *runs.ids()])} [QA0802]"
    )


def _check_same_clusters(source: Source, reference: _Reference) -> None:
    like = reference.profile
    if like is not None and like.cluster != source.cluster:
        raise ConfigError(
            f"--cluster {source.cluster}: the reference {reference.name} has the clusters "
            f"{like.cluster}; name those, or another reference [QA0804]"
        )


def _check_tolerances(request: AuditRequest, source: Source, before: RunProfile | None) -> None:
    known = {*source.rows.watch, *([source.rows.kept] if source.rows.kept else [])}
    if before is not None:
        known |= before.columns.keys()
    for name in request.settings.columns:
        if name not in known:
            raise ConfigError(
                f"tolerances of {name!r}: no such column is audited{nearest(name, sorted(known))} "
                "[QA0105]"
            )


def run_audit(
    out: AnyPath,
    request: AuditRequest,
    executor: RangeExecutor,
    *,
    history: AnyPath,
    tell: Tell = no_progress,
    retry_s: float = RETRY_S,
) -> AuditOutcome:
    """Return what an audit finds; ``incomplete`` where the run or its reference is not there.

    Raises
    ------
    ConfigError, InputError
        As `prepare_audit` does.
    """
    try:
        probe(as_path(history), Outages(retry_s=retry_s), option="--history")
        return prepare_audit(out, request, history=history, retry_s=retry_s).finish(
            executor, tell=tell
        )
    except RunError as error:
        return AuditOutcome(status="incomplete", out=as_path(out), request=request, why=str(error))
