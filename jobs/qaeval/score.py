"""score: metrics of every row of Parquet files, on Ray or in this process.

Exit codes: 0 complete, 1 incomplete (run it again to go on) or without one score, 2 bad request.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Annotated, Any

import typer

from qaeval import arguments, packages
from qaeval import command as options
from qaeval.arguments import (
    ColumnOption,
    ConfigOption,
    DryRunOption,
    InputsArgument,
    LocalOrRayOption,
    MetricsOption,
    NoTextsOption,
    SetOption,
    flag,
    option,
)
from qaeval.on_ray.address import announce, check_runs_data, is_named, job_metadata
from qaeval_core.configure import RunConfig
from qaeval_core.errors import (
    ArtifactMissingError,
    ConfigError,
    OutRefusedError,
    PackagesMissingError,
    QAEvalError,
)
from qaeval_core.planning.compile import check_chat, check_key_use
from qaeval_core.planning.default_metrics import with_default_metrics
from qaeval_core.planning.job import Inputs, check_columns, count_rows, find_files, make_job
from qaeval_core.planning.packages import check_packages
from qaeval_core.running.local_executor import LocalPieceExecutor, local_device
from qaeval_core.running.sampling import with_sample
from qaeval_core.scoring.dry_run import dry_run_lines, input_lines
from qaeval_core.scoring.report import no_score_line, summary_lines
from qaeval_core.scoring.run import RunOutcome, run_job

EPILOG = """Examples:

  qaeval score answers.parquet --out out --metrics f1,sas

  qaeval score data/ --out out --column candidate=generated --carry label

  qaeval score s3://bucket/data/ --out s3://bucket/out --metrics qrelscore

  qaeval score q.parquet --out out --set f1.language=de --limit 1000

  qaeval score q.parquet --out out --dry-run --set naco.base_url=$URL \\
    --set naco.model=NAME --set naco.expected_complexity=3

Settings are listed in docs/settings.md.

Exit codes: 0 complete; 1 incomplete, or no row has a score; 2 bad request.
"""


def score(
    inputs: InputsArgument = None,
    column: ColumnOption = None,
    limit: Annotated[
        int | None,
        option(group=arguments.INPUT, metavar="N", text="Score only the first N rows."),
    ] = None,
    unanswerable: Annotated[
        str | None,
        option(
            group=arguments.INPUT,
            metavar="RULE",
            text="Meaning of an empty list of references: undefined (no score), or empty (no "
            "answer is right).",
            show_default="undefined",
        ),
    ] = None,
    out: Annotated[
        str | None,
        option(
            group=arguments.OUTPUT,
            metavar="OUT",
            text="Folder for scores and state: a path, or s3://, gs:// or az://BUCKET/PREFIX. "
            "Required, unless a settings file names it.",
        ),
    ] = None,
    carry: Annotated[
        str | None,
        option(
            group=arguments.OUTPUT,
            metavar="COLUMNS",
            text="Comma-separated input columns to copy beside the scores.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        option(
            group=arguments.OUTPUT,
            metavar="COLUMN",
            text="Column whose values rows share, for intervals of means; none: rows are "
            "independent.",
            show_default="the context, else the question",
        ),
    ] = None,
    no_replies: Annotated[
        bool,
        flag(
            "--no-replies",
            group=arguments.OUTPUT,
            text="Store only the values read from LLM replies, not their texts.",
        ),
    ] = False,
    no_texts: NoTextsOption = False,
    metrics: MetricsOption = None,
    config: ConfigOption = None,
    setting: SetOption = None,
    rows_per_shard: Annotated[
        int | None,
        option(
            group=arguments.RUN,
            metavar="N",
            text="Rows to score and commit at once.",
            show_default="by metric and device",
        ),
    ] = None,
    max_quarantined: Annotated[
        float | None,
        option(
            group=arguments.RUN,
            metavar="SHARE",
            text="Stop with exit code 1 if a larger share of rows is quarantined.",
            show_default="1.0",
        ),
    ] = None,
    retry_quarantined: Annotated[
        bool,
        flag(
            "--retry-quarantined",
            group=arguments.RUN,
            text="Score quarantined rows again, and repeat failed LLM calls.",
        ),
    ] = False,
    wait: Annotated[
        float | None,
        option(
            group=arguments.RUN,
            metavar="SECONDS",
            text="Wait this long for another run that writes to OUT.",
            show_default="0",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    address: Annotated[str | None, arguments.address("none")] = None,
    local: LocalOrRayOption = None,
) -> None:
    """Score every row of Parquet files.

    Without --metrics and --set, the columns decide: f1 and sas where there are
    references, roundtrip where there are contexts and answers. An OUT keeps its
    metrics.

    Interrupted runs resume with the same command. Nothing is computed or paid
    for twice.
    """
    extra: dict[str, object] = {
        "output.path": out,
        "output.carry": carry.split(",") if carry else None,
        "output.cluster": cluster,
        "output.replies": False if no_replies else None,
        "output.texts": False if no_texts else None,
        "output.wait_s": wait,
        "scoring.rows_per_shard": rows_per_shard,
        "input.limit": limit,
        "input.unanswerable": unanswerable,
        "scoring.max_quarantined": max_quarantined,
        "scoring.retry_quarantined": retry_quarantined or None,
        "cluster.address": address,
    }
    try:
        if local and address is not None:
            raise ConfigError("--local takes no cluster: leave --address out")
        resolved = options.make_config(
            inputs=inputs or (),
            config_path=config,
            settings=setting or (),
            metrics=metrics,
            columns=column or (),
            extra=extra,
        )
        packages.check_before_input(resolved)
        files = find_files(resolved, needs_out=not dry_run)
        resolved, chosen = with_default_metrics(
            resolved, files, device=local_device(resolved.cluster), may_guess=not setting
        )
        found = check_columns(resolved, files)
        check_chat(resolved)
        key_lines = [*filter(None, [chosen]), *check_key_use(resolved)]
        if not dry_run:
            packages.check_before_rows(resolved, is_local=bool(local))
    except QAEvalError as error:
        options.fail(error)
    for line in key_lines:
        options.say(f"note: {line}")
    try:
        found = with_sample(resolved, found)
        is_local = _is_local(resolved, found) if local is None else local
        if not (is_local or dry_run):
            check_runs_data(resolved.cluster)
    except QAEvalError as error:
        options.fail(error)
    if dry_run:
        show_plan(resolved, found)
    elif is_local:
        run_local(resolved, found)
    else:
        run_on_ray(resolved, found)


def _is_local(config: RunConfig, inputs: Inputs) -> bool:
    """Return whether a run for which nothing is said is better off without Ray; say so."""
    n_rows = sum(count_rows(inputs.files, config.input.limit).values())
    if n_rows > arguments.MOST_LOCAL_ROWS or is_named(config.cluster):
        return False
    options.say(f"note: {n_rows:,} rows are scored in this process, without Ray; --ray uses Ray")
    return True


def show_plan(config: RunConfig, inputs: Inputs) -> None:
    """Print what a run would do; writes nothing, builds nothing."""
    for line in input_lines(inputs, config):
        options.show(line)
    try:
        missing = packages.missing_lines(config)
        if missing:
            options.show_lines(f"{missing}\n")
        no_build = config.models.model_copy(update={"build": False})
        job = make_job(
            config.model_copy(update={"models": no_build}),
            inputs,
            device=local_device(config.cluster),
        )
    except ArtifactMissingError as error:
        options.show(f"units and tokens are known once the models are exported: {error}")
        return
    except PackagesMissingError as error:
        options.show(f"units and tokens are known once all is installed: {error}")
        return
    except QAEvalError as error:
        options.fail(error)
    for line in dry_run_lines(job):
        options.show(line)


def run_local(config: RunConfig, inputs: Inputs) -> RunOutcome:
    """Run in this process."""
    executor = LocalPieceExecutor()
    return _run(config, inputs, executor, device=local_device(config.cluster))


def run_on_ray(config: RunConfig, inputs: Inputs) -> RunOutcome:
    """Run on the cluster at ``cluster.address``, or on a local one."""
    try:
        announce(config.cluster)
        # Imported here: Ray takes a second that --help and --local need not pay.
        from qaeval.on_ray.cluster import cluster_device, connected, layout, words_layout
        from qaeval.on_ray.pipeline import RayExecutor

        metadata = job_metadata("score", config.output.path, metrics=",".join(config.metrics))
        with connected(config.cluster, metadata):
            device = cluster_device(config.cluster)
            executor = RayExecutor(
                layout(config.cluster, device),
                words=words_layout(config.cluster, device),
                say=options.say,
                may_leave_out=config.cluster.blind_nodes == "leave_out",
            )
            on_cluster = packages.has_cluster(config)
            return _run(config, inputs, executor, device=device, on_cluster=on_cluster)
    except QAEvalError as error:
        options.fail(error, code=options.EXIT_INCOMPLETE)


def _run(
    config: RunConfig, inputs: Inputs, executor: Any, *, device: Any, on_cluster: bool = False
) -> RunOutcome:
    try:
        check_packages(config, device=device, on_cluster=on_cluster)
        job = make_job(config, inputs, device=device)
    except QAEvalError as error:
        options.fail(error)
    for note in job.notes:
        options.say(f"note: {note}")
    stop_on_signals(executor.stop)
    try:
        outcome = run_job(job, executor, say=options.say)
    except OutRefusedError as error:
        options.fail(error)
    except QAEvalError as error:
        options.fail(error, code=options.EXIT_INCOMPLETE)
    if outcome.report is not None:
        for line in summary_lines(outcome.report, job.store.out):
            options.show(line)
    if outcome.stopped:
        options.say("incomplete: run the same command again to go on")
        sys.exit(options.EXIT_INCOMPLETE)
    if outcome.is_new and outcome.report is not None:
        why = no_score_line(outcome.report)
        if why is not None:
            options.say_error(why)
            sys.exit(options.EXIT_INCOMPLETE)
    return outcome


def stop_on_signals(stop: threading.Event) -> None:
    """Let SIGTERM and Ctrl-C finish the batch in hand; a second Ctrl-C ends at once."""

    def ask(number: int, _: object) -> None:
        # By the kernel: Python's own handler waits for the batch.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        stop.set()
        name = signal.Signals(number).name
        options.say(f"{name}: stopping after the batch in hand; press Ctrl-C to stop at once")

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)


def main() -> None:
    """Run ``python -m qaeval.score``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=EPILOG)(score)
    app()


if __name__ == "__main__":
    main()
