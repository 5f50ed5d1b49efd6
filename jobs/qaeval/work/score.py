"""Score: from a command line to scores, on Ray or in this process."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from qaeval import arguments, packages
from qaeval import command as options
from qaeval.on_ray.address import announce, check_runs_data, is_named, job_metadata
from qaeval.work.config import Words
from qaeval.work.reading import find_files_of, read_columns
from qaeval_core.configure import RunConfig
from qaeval_core.errors import (
    ArtifactMissingError,
    ConfigError,
    OutRefusedError,
    PackagesMissingError,
    QAEvalError,
    UnknownMetricError,
)
from qaeval_core.metrics.catalog import metric_of
from qaeval_core.metrics.function import FunctionMetric
from qaeval_core.pages.printed import check_format
from qaeval_core.planning.compile import check_chat, check_key_use
from qaeval_core.planning.default_metrics import packages_of_out, with_default_metrics
from qaeval_core.planning.job import Inputs, count_rows, make_job
from qaeval_core.planning.packages import check_packages
from qaeval_core.planning.predictions import with_prediction_columns
from qaeval_core.readable_signature import ReadableSignature, own_version
from qaeval_core.running import without_pandas
from qaeval_core.running.local_executor import LocalPieceExecutor, local_device
from qaeval_core.running.sampling import with_sample
from qaeval_core.scoring.report import no_score_line, summary_lines
from qaeval_core.scoring.result_table import number_lines, result_text
from qaeval_core.scoring.run import RunOutcome, run_job
from qaeval_core.scoring.run_signatures import check_like
from qaeval_core.storage.path import StoragePath, as_path, read_json


@dataclass(frozen=True, slots=True)
class Printing:
    """How scores are printed.

    Attributes
    ----------
    form : str
        One of `FORMATS`.
    is_percent : bool
        Whether shares are shown times 100.
    width : int or None
        Decimals; None for two digits of half the interval.
    is_quiet : bool
        Whether each metric's number is all that is printed.
    """

    form: str = "text"
    is_percent: bool = False
    width: int | None = None
    is_quiet: bool = False

    def check(self) -> None:
        """Raise ConfigError where there is no such format, or it is not printed."""
        check_format(self.form)
        if self.is_quiet and self.form != "text":
            raise ConfigError("--quiet prints numbers alone; leave --format out [QA0102]")

    def show(self, report: Mapping[str, Any], out: StoragePath) -> None:
        """Print what a person, or a program, wants to see of a report."""
        given: dict[str, Any] = {"percent": self.is_percent, "width": self.width}
        if self.is_quiet:
            for line in number_lines(report, **given):
                options.show(line, keep="\t")
            return
        for line in summary_lines(report, out, form=self.form, **given):
            (options.show if self.form == "text" else options.say)(line)
        if self.form != "text":
            options.show_lines(result_text(report, self.form, **given))


@dataclass(frozen=True, slots=True)
class Order:
    """What a command line asks for besides a configuration."""

    printing: Printing = Printing()
    signatures: Sequence[ReadableSignature] = ()


def score_rows(
    words: Words,
    extra: Mapping[str, object],
    *,
    printing: Printing,
    dry_run: bool,
    local: bool | None,
) -> None:
    """Check a request and carry it out, or show its plan; ends the process where it cannot."""
    try:
        printing.check()
        if local and extra["cluster.address"] is not None:
            raise ConfigError("--local uses no cluster; leave --address out [QA0102]")
        resolved = with_prediction_columns(words.checked(extra))
        order = Order(printing, words.signatures())
        _check_complexity(words, resolved)
        packages.check_before_input(resolved)
        files = find_files_of(resolved, needs_out=not dry_run, is_local=bool(local))
        resolved, chosen = with_default_metrics(
            resolved,
            files,
            device=local_device(resolved.cluster),
            may_guess=not (words.settings or words.like),
        )
        resolved, found, columns = read_columns(resolved, files)
        check_chat(resolved)
        key_lines = [*filter(None, [chosen]), *columns, *check_key_use(resolved)]
        key_lines += dict.fromkeys(_version_lines(order.signatures))
        if not dry_run:
            packages.check_before_rows(resolved, is_local=bool(local))
    except UnknownMetricError as error:
        options.fail(_with_package(error, extra["output.path"]))
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
        show_plan(resolved, found, order)
    elif is_local:
        run_local(resolved, found, order)
    else:
        run_on_ray(resolved, found, order)


def _version_lines(signatures: Sequence[ReadableSignature]) -> Iterator[str]:
    """Yield what to tell people of signatures of other versions."""
    own = own_version()
    for signature in signatures:
        if signature.version not in ("", own):
            yield (
                f"--like: the signature is of version {signature.version}, and this is {own}: "
                "scores may differ"
            )


def _check_complexity(words: Words, config: RunConfig) -> None:
    """Raise ConfigError, with the command that finds it, where a metric lacks a corpus's number."""
    for name, settings in config.metrics.items():
        key = metric_of(settings).calibrated
        is_given = key != "expected_complexity" or getattr(settings, key) is not None
        if is_given or not (getattr(settings, "base_url", "") and getattr(settings, "model", "")):
            continue
        paths = config.input.paths
        corpus = (PurePosixPath(paths[0]).stem if paths else "").strip("-.*") or "NAME"
        given = [text for text in words.settings or () if text.startswith(f"{name}.")]
        own = ["qaeval", "calibrate", *paths, "--corpus", corpus]
        own += [] if given else ["--metrics", name]
        own += ["--config", str(words.config)] if words.config is not None else []
        for option, texts in (("--column", words.columns or ()), ("--set", given)):
            own += [word for text in texts for word in (option, text)]
        setting = shlex.quote(f"{name}.{key}=complexity-{corpus}.json")
        raise ConfigError(
            f"{name}.{key} is missing: the usual number of reasoning steps of this corpus. Give a "
            f"number, or find it, then add --set {setting} [QA0207]\n"
            f"{shlex.join(own)}"
        )


def _with_package(error: UnknownMetricError, out: object) -> QAEvalError:
    """Return the error, with the package that brought the metric when OUT was scored with it."""
    content = read_json(as_path(str(out)) / "run.json") if out is not None else None
    package = packages_of_out(content or {}).get(error.metric)
    if package is None:
        return error
    return ConfigError(
        f"{out} was scored with the metric {error.metric} of {package}, which is not installed "
        "here [QA0205]"
    )


def _is_local(config: RunConfig, inputs: Inputs) -> bool:
    """Return whether a run for which nothing is said is better off without Ray; say so."""
    n_rows = sum(count_rows(inputs.files, config.input.limit).values())
    is_small = n_rows <= arguments.MOST_LOCAL_ROWS
    if is_named(config.cluster) or not (is_small or _is_spread_here(config)):
        return False
    options.say(f"note: {n_rows:,} rows are scored on this machine, without Ray; --ray uses Ray")
    return True


def _is_spread_here(config: RunConfig) -> bool:
    """Return whether processes here do all that a Ray of its own would do: they count words."""
    metrics = [metric_of(settings) for settings in config.metrics.values()]
    are_words = all(own.needs == ("words",) for own in metrics)
    has_function = any(isinstance(own, FunctionMetric) for own in metrics)
    return are_words and not has_function


def show_plan(config: RunConfig, inputs: Inputs, order: Order) -> None:
    """Print what a run would do; writes nothing, builds nothing."""
    # Not at the top: it knows what calls cost, and no run needs that.
    from qaeval_core.scoring.dry_run import dry_run_lines, input_lines

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
        check_like(job, order.signatures)
    except ArtifactMissingError as error:
        options.show(f"units and tokens are not known before the models are exported: {error}")
        return
    except PackagesMissingError as error:
        options.show(f"units and tokens are not known before everything is installed: {error}")
        return
    except QAEvalError as error:
        options.fail(error)
    for line in dry_run_lines(job):
        options.show(line)


def run_local(config: RunConfig, inputs: Inputs, order: Order) -> RunOutcome:
    """Run in this process."""
    if without_pandas.is_needless():
        without_pandas.leave_out_pandas()
    executor = LocalPieceExecutor()
    return _run(config, inputs, executor, order, device=local_device(config.cluster))


def run_on_ray(config: RunConfig, inputs: Inputs, order: Order = Order()) -> RunOutcome:
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
            return _run(config, inputs, executor, order, device=device, on_cluster=on_cluster)
    except QAEvalError as error:
        options.fail(error, code=options.EXIT_INCOMPLETE)


def _run(
    config: RunConfig,
    inputs: Inputs,
    executor: Any,
    order: Order,
    *,
    device: Any,
    on_cluster: bool = False,
) -> RunOutcome:
    try:
        check_packages(config, device=device, on_cluster=on_cluster)
        job = make_job(config, inputs, device=device)
        check_like(job, order.signatures)
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
        order.printing.show(outcome.report, job.store.out)
    if outcome.stopped:
        options.say_error("incomplete; run the same command again to resume [QA0512]")
        sys.exit(options.EXIT_INCOMPLETE)
    if outcome.is_new and outcome.report is not None:
        why = no_score_line(outcome.report)
        if why is not None:
            options.say_error(f"{why} [QA0520]")
            sys.exit(options.EXIT_INCOMPLETE)
    return outcome


def stop_on_signals(stop: threading.Event) -> None:
    """Let SIGTERM and Ctrl-C finish the batch in hand; a second Ctrl-C ends at once."""

    def ask(number: int, _: object) -> None:
        # By the kernel: Python's own handler waits for the batch.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        stop.set()
        name = signal.Signals(number).name
        options.say(f"{name}: stopping after this batch; press Ctrl-C to stop at once")

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
