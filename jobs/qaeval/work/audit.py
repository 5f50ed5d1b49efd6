"""Audit: a run compared with its reference, and the report of it."""

from __future__ import annotations

import contextlib
import sys

from qaeval import command as options
from qaeval.on_ray.address import announce, job_metadata
from qaeval_core.audit.outcome import AuditOutcome
from qaeval_core.audit.output import dry_run_lines, outcome_lines, write_report
from qaeval_core.audit.request import AuditRequest
from qaeval_core.audit.run import prepare_audit, run_audit
from qaeval_core.configure import ClusterSection
from qaeval_core.errors import ConfigError, QAEvalError
from qaeval_core.models.cpu import available_cpus
from qaeval_core.running.progress import LabelProgress
from qaeval_core.running.range_executor import RETRY_S, LocalRangeExecutor
from qaeval_core.scoring.rewrite_page import run_examples
from qaeval_core.storage.path import StoragePath, open_out
from qaeval_core.storage.probe import probe
from qaeval_core.storage.retry import Outages
from qaeval_core.store.store import Store

EXIT_ALERT = 3
_PROGRESS_S = 5.0


def audit_out(
    out: str,
    request: AuditRequest,
    *,
    history: str,
    to: str | None,
    n_texts: int | None,
    warn_only: bool,
    dry_run: bool,
    address: str | None,
) -> None:
    """Carry out an audit, or show its plan; ends the process with the code of what it found."""
    try:
        folder = open_out(history, "--history")
        if dry_run:
            for line in dry_run_lines(prepare_audit(out, request, history=folder)):
                options.show(line)
            return
        if to is None:
            raise ConfigError("no folder for the report; give --to REPORT [QA0107]")
        report = Store(open_out(to, "--to"), outages=Outages(retry_s=RETRY_S))
        probe(report.out, report.outages, is_locked=False, option="--to")
        outcome = _run(out, request, folder, address=address)
        examples = None
        if outcome.profile is not None:
            examples = run_examples(outcome.out, n_texts=n_texts, inputs=request.inputs)
        write_report(outcome, report, name=folder.name, examples=examples)
        for line in outcome_lines(outcome, report.out):
            options.show(line)
    except QAEvalError as error:
        options.fail(error)
    sys.exit(_exit_code(outcome, warn_only=warn_only))


def _exit_code(outcome: AuditOutcome, *, warn_only: bool) -> int:
    if outcome.status == "alert":
        return 0 if warn_only else EXIT_ALERT
    is_done = outcome.status == "ok" or (outcome.status == "first_run" and outcome.request.pin)
    return 0 if is_done else options.EXIT_INCOMPLETE


def _run(
    out: str, request: AuditRequest, history: StoragePath, *, address: str | None
) -> AuditOutcome:
    if address is None:
        with LabelProgress(_PROGRESS_S) as tell:
            executor = LocalRangeExecutor(tell, n_processes=available_cpus())
            with contextlib.closing(executor):
                return run_audit(out, request, executor, history=history, tell=tell)
    cluster = ClusterSection(address=address)
    announce(cluster)
    # Imported here: Ray takes half a second that others need not pay.
    from qaeval.on_ray.cluster import connected
    from qaeval.on_ray.nodes import Nodes
    from qaeval.on_ray.tasks import RayTasks

    with connected(cluster, job_metadata("audit", out)), LabelProgress(_PROGRESS_S) as tell:
        tasks = RayTasks(tell, Nodes(options.say))
        return run_audit(out, request, tasks, history=history, tell=tell)
