"""audit: alert if scores changed between two runs by more than chance explains.

Exit codes: 0 no alert; 3 alert; 1 too few clusters for a verdict, OUT is not complete, there is no
reference, or the run broke; 2 bad request.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from qaeval import arguments
from qaeval import command as options
from qaeval.arguments import (
    ConfigOption,
    DryRunOption,
    MovedInputOption,
    NoTextsOption,
    RunArgument,
    TextsOption,
    flag,
    option,
)
from qaeval.on_ray.address import announce, job_metadata
from qaeval_core.audit.output import dry_run_lines, outcome_lines, write_report
from qaeval_core.audit.request import AuditRequest, load_settings
from qaeval_core.audit.run import AuditOutcome, prepare_audit, run_audit
from qaeval_core.configure import ClusterSection
from qaeval_core.errors import ConfigError, QAEvalError
from qaeval_core.models.session import available_cpus
from qaeval_core.pages.example_rows import RunExamples
from qaeval_core.running.progress import LabelProgress
from qaeval_core.scoring.rewrite_page import run_examples
from qaeval_core.storage.path import StoragePath, open_out
from qaeval_core.storage.probe import probe
from qaeval_core.storage.retry import Outages
from qaeval_core.store.store import Store
from qaeval_core.tables.executor import RETRY_S, LocalRangeExecutor

EPILOG = """Examples:

  qaeval audit out --history audits --to report --pin

  qaeval audit out --history audits --to report

  qaeval audit out --history audits --to report --by system \\
    --cluster topic --kept 'f1 >= 0.5' --config audit.yaml

  qaeval audit out --history audits --to report --reference last --warn-only

  qaeval audit s3://bucket/out --history s3://bucket/audits --to report

An alert needs two things: an effect of at least its tolerance, and a small
adjusted p-value.

With --reference OUT, rows whose ids are in both runs are also compared pair
by pair, if they are at least half of the rows. This detects small changes,
and values that differ although their input does not. The input of both runs
is read again, if it is still there. A reference from the history has no rows.

Exit codes: 0 no alert; 3 alert; 1 no verdict; 2 bad request. There is no
verdict of fewer than 30 contexts, of an OUT that is not complete, and of a
first run without --pin.
"""

EXIT_ALERT = 3
_PROGRESS_S = 5.0


def audit_run(
    out: RunArgument,
    history: Annotated[
        str,
        option(
            group=arguments.INPUT,
            metavar="DIR",
            text="Folder with one profile per run. The profile of this run is added.",
        ),
    ],
    reference: Annotated[
        str | None,
        option(
            group=arguments.INPUT,
            metavar="RUN",
            text="Run to compare with: an OUT folder, a profile, last or pinned.",
            show_default="pinned, else the oldest",
        ),
    ] = None,
    inputs: MovedInputOption = None,
    to: Annotated[
        str | None,
        option(
            group=arguments.OUTPUT,
            metavar="REPORT",
            text="Folder for the report. Required without --dry-run.",
        ),
    ] = None,
    pin: Annotated[
        bool,
        flag(
            "--pin",
            group=arguments.OUTPUT,
            text="Use this run as the reference for future audits.",
        ),
    ] = False,
    texts: TextsOption = None,
    no_texts: NoTextsOption = False,
    watch: Annotated[
        str | None,
        option(
            group=arguments.METRICS,
            metavar="COLUMNS",
            text="Comma-separated score columns to compare.",
            show_default="all",
        ),
    ] = None,
    kept: Annotated[
        str | None,
        option(
            group=arguments.METRICS,
            metavar="CONDITION",
            text="Also compare the share of rows that meet a condition, e.g. 'f1 >= 0.5'.",
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        option(
            group=arguments.COMPARISON,
            metavar="COLUMN",
            text="Also compare the rows of each value of this carried column. Repeatable.",
            show_default="as in the reference",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        option(
            group=arguments.STATISTICS,
            metavar="COLUMN",
            text="Resample rows with equal values of this role or carried column together.",
            show_default="as in the reference, else context",
        ),
    ] = None,
    config: ConfigOption = None,
    warn_only: Annotated[
        bool,
        flag("--warn-only", group=arguments.RUN, text="Exit with 0 even if an alert is raised."),
    ] = False,
    dry_run: DryRunOption = False,
    address: Annotated[str | None, arguments.address("processes on this machine")] = None,
) -> None:
    """Compare a run with an earlier one, and alert if scores changed.

    It alerts only if scores changed by more than chance explains.
    """
    try:
        request = AuditRequest(
            reference=reference,
            pin=pin,
            by=tuple(by or ()),
            cluster=cluster,
            watch=tuple(name.strip() for name in (watch or "").split(",") if name.strip()),
            kept=kept,
            inputs=tuple(inputs or ()),
            settings=load_settings(config),
        )
        if no_texts and texts is not None:
            raise ConfigError("--texts and --no-texts: one of them")
        folder = open_out(history, "--history")
        if dry_run:
            for line in dry_run_lines(prepare_audit(out, request, history=folder)):
                options.show(line)
            return
        if to is None:
            raise ConfigError("no folder for the report: give --to REPORT")
        report = Store(open_out(to, "--to"), outages=Outages(retry_s=RETRY_S))
        probe(report.out, report.outages, is_locked=False, option="--to")
        outcome = _run(out, request, folder, address=address)
        write_report(
            outcome, report, name=folder.name, examples=_examples(outcome, texts, no_texts=no_texts)
        )
        for line in outcome_lines(outcome, report.out):
            options.show(line)
    except QAEvalError as error:
        options.fail(error)
    sys.exit(_exit_code(outcome, warn_only=warn_only))


def _examples(outcome: AuditOutcome, n: int | None, *, no_texts: bool) -> RunExamples | None:
    if outcome.profile is None:
        return None
    n_texts = 0 if no_texts else n
    return run_examples(outcome.out, n_texts=n_texts, inputs=outcome.request.inputs)


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
                return run_audit(out, request, executor, history=history)
    cluster = ClusterSection(address=address)
    announce(cluster)
    # Imported here: Ray takes half a second that others need not pay.
    from qaeval.on_ray.cluster import connected
    from qaeval.on_ray.tasks import RayTasks

    with connected(cluster, job_metadata("audit", out)), LabelProgress(_PROGRESS_S) as tell:
        return run_audit(out, request, RayTasks(tell, options.say), history=history)


def main() -> None:
    """Run ``python -m qaeval.audit``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=EPILOG)(audit_run)
    app()


if __name__ == "__main__":
    main()
