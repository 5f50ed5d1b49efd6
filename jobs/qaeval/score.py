"""score: metrics of every row of Parquet files, on Ray or in this process.

Exit codes: 0 complete, 1 incomplete (run it again to go on) or without one score, 2 bad request.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from qaeval import command as options
from qaeval import packages
from qaeval.on_ray.address import is_named
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

# Ray takes some ten seconds to start: so many rows are scored before it is up, or soon after.
MOST_LOCAL_ROWS = 10_000

EPILOG = """Examples:

  qaeval score data/ --out scores

  qaeval score s3://bucket/data/ --out s3://bucket/scores

  qaeval score q.parquet --out out --column candidate=generated --column context=passage

  qaeval score q.parquet --out out --metrics qrelscore,ref_qrelscore --carry label --limit 1000

  qaeval score q.parquet --out out --set qrelscore.profile=authors --local

  qaeval score q.parquet --out out --set naco.base_url=https://host/v1 --set naco.model=NAME \\
    --set naco.expected_complexity=3 --set naco.requests_per_minute=500 --dry-run
"""

InputsArgument = Annotated[
    list[str] | None, typer.Argument(help="Parquet files, folders, globs or filesystem URIs")
]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="YAML file of settings")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="key=value, e.g. qrelscore.layers=last")
]
MetricsOption = Annotated[
    str | None, typer.Option(help="comma-separated metric names; --set NAME.KEY adds its metric")
]
ColumnOption = Annotated[
    list[str] | None, typer.Option("--column", help="role=name, e.g. context=passage")
]


def score(
    inputs: InputsArgument = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="folder for scores and state: a path, or s3://, gs://, az://BUCKET/PREFIX"
        ),
    ] = None,
    config: ConfigOption = None,
    setting: SetOption = None,
    metrics: MetricsOption = None,
    column: ColumnOption = None,
    carry: Annotated[
        str | None, typer.Option(help="comma-separated input columns to copy into the scores")
    ] = None,
    rows_per_shard: Annotated[int | None, typer.Option(help="rows committed at once")] = None,
    unanswerable: Annotated[
        str | None,
        typer.Option(help="an empty list of references: undefined, or empty: no answer is right"),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="score only the first N rows")] = None,
    max_quarantined: Annotated[
        float | None, typer.Option(help="stop (exit 1) above this share of quarantined rows")
    ] = None,
    retry_quarantined: Annotated[
        bool,
        typer.Option(
            "--retry-quarantined",
            help="score quarantined rows once more; ask again where LLM calls failed",
        ),
    ] = False,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster; default: start a local one")
    ] = None,
    local: Annotated[
        bool | None,
        typer.Option(
            "--local/--ray",
            show_default=False,
            help=f"run in this process, or on Ray; default: on Ray above {MOST_LOCAL_ROWS:,} rows "
            "or where a cluster is named",
        ),
    ] = None,
    no_replies: Annotated[
        bool,
        typer.Option("--no-replies", help="keep what was read of LLM replies, not their texts"),
    ] = False,
    no_texts: Annotated[
        bool, typer.Option("--no-texts", help="show no text of a row in report.html")
    ] = False,
    wait: Annotated[
        float | None, typer.Option(help="seconds to wait for another run that writes to OUT")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="show shards, units, tokens, calls, money; write nothing"),
    ] = False,
) -> None:
    """Score every row of Parquet files; the same command again resumes or adds to a run."""
    extra: dict[str, object] = {
        "output.path": out,
        "output.carry": carry.split(",") if carry else None,
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
            resolved, files, device=local_device(resolved.cluster)
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
    ray = sys.modules.get("ray")
    is_connected = ray is not None and ray.is_initialized()
    if n_rows > MOST_LOCAL_ROWS or is_connected or is_named(config.cluster):
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
    # Imported here: Ray takes a second that --help and --local need not pay.
    from qaeval.on_ray.cluster import cluster_device, connected, layout, words_layout
    from qaeval.on_ray.pipeline import RayExecutor

    try:
        with connected(config.cluster):
            device = cluster_device(config.cluster)
            executor = RayExecutor(
                layout(config.cluster, device),
                words=words_layout(config.cluster, device),
                say=options.say,
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
        options.say(f"{signal.Signals(number).name}: stopping after the batch in hand")
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)


def main() -> None:
    """Run ``python -m qaeval.score``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=EPILOG)(score)
    app()


if __name__ == "__main__":
    main()
