"""audit: alert if scores changed between two runs by more than chance explains.

Exit codes: 0 no alert; 3 alert; 1 too few clusters for a verdict, OUT is not complete, there is no
reference, or the run broke; 2 bad request.
"""

from __future__ import annotations

from typing import Annotated

from qaeval import arguments
from qaeval import command as options
from qaeval.arguments import (
    ConfigOption,
    DryRunOption,
    MovedInputOption,
    NameOption,
    NoTextsOption,
    RunArgument,
    TextsOption,
    flag,
    option,
)
from qaeval_core.errors import ConfigError, QAEvalError

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
    name: NameOption = None,
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
            text="Also compare the rows of each value of this carried column or role. Repeatable.",
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
    # Imported here: --help needs none of it.
    from qaeval.work.audit import audit_out
    from qaeval_core.audit.request import AuditRequest, load_settings

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
            raise ConfigError("give --texts or --no-texts, not both [QA0102]")
    except QAEvalError as error:
        options.fail(error)
    audit_out(
        out,
        request,
        history=history,
        to=to,
        n_texts=0 if no_texts else texts,
        warn_only=warn_only,
        dry_run=dry_run,
        address=address,
    )
