"""audit: whether the scores of a corpus moved between two runs, and not by chance.

Exit codes: 0 no alert; 3 alert; 1 OUT is not complete, there is no reference, or the run broke;
2 bad request.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from qaeval import command as options
from qaeval_core.audit.output import dry_run_lines, outcome_lines, write_report
from qaeval_core.audit.request import AuditRequest, load_settings
from qaeval_core.audit.run import AuditOutcome, prepare_audit, run_audit
from qaeval_core.configure import ClusterSection
from qaeval_core.errors import ConfigError, QAEvalError
from qaeval_core.models.session import available_cpus
from qaeval_core.pages.example_rows import MAX_EXAMPLES, RunExamples
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

  qaeval audit out --history audits --to report --by system --cluster topic \\
    --kept 'f1 >= 0.5' --config audit.yaml

  qaeval audit out --history audits --to report --reference last --warn-only

  qaeval audit s3://bucket/out --history s3://bucket/audits --to s3://bucket/report

Exit codes: 0 no alert; 3 alert; 1 OUT is not complete, or there is nothing to compare it with (0
with --pin); 2 bad request. An alert needs an effect of at least its tolerance, and evidence.

With --reference OUT rows whose ids are in both runs are compared one by one, too, if they are at
least half: small changes are seen, and values that differ though their input does not. The history
knows no rows. What the metrics read is read again, where it is still there.
"""

EXIT_ALERT = 3
_PROGRESS_S = 5.0


def audit_run(
    out: Annotated[str, typer.Argument(help="OUT of qaeval score")],
    history: Annotated[
        str, typer.Option(help="folder of profiles, one a run; this run's is added")
    ],
    to: Annotated[str | None, typer.Option(help="folder for the report")] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="OUT, profile, last or pinned; default pinned, else the oldest run"),
    ] = None,
    pin: Annotated[
        bool, typer.Option("--pin", help="this run is the reference of those to come")
    ] = False,
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="carried column whose values are slices; repeatable; default: the reference's"
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="role or carried column of rows that belong together; default: the reference's, "
            "else context"
        ),
    ] = None,
    watch: Annotated[
        str | None, typer.Option(help="columns of scores: a,b,c; default all of them")
    ] = None,
    kept: Annotated[
        str | None, typer.Option(help="condition whose share of rows is audited: 'f1 >= 0.5'")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML: alpha, draws, tolerances, columns")
    ] = None,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", help="where the input lies now; repeatable")
    ] = None,
    texts: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_EXAMPLES, help="rows at each end of a score in audit.html"),
    ] = None,
    no_texts: Annotated[
        bool, typer.Option("--no-texts", help="show no text of rows in audit.html")
    ] = False,
    warn_only: Annotated[
        bool, typer.Option("--warn-only", help="exit with 0 where there is an alert")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show what would be read and compared; write nothing")
    ] = False,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster; default: this machine's processes, no Ray")
    ] = None,
) -> None:
    """Compare a run with an earlier one: an alert when the data moved, not when chance did."""
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
    tell = LabelProgress(_PROGRESS_S)
    if address is None:
        executor = LocalRangeExecutor(tell, n_processes=available_cpus())
        with contextlib.closing(executor):
            return run_audit(out, request, executor, history=history)
    # Imported here: Ray takes half a second that others need not pay.
    from qaeval.on_ray.cluster import connected
    from qaeval.on_ray.tasks import RayTasks

    with connected(ClusterSection(address=address)):
        return run_audit(out, request, RayTasks(tell, options.say), history=history)


def main() -> None:
    """Run ``python -m qaeval.audit``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=EPILOG)(audit_run)
    app()


if __name__ == "__main__":
    main()
