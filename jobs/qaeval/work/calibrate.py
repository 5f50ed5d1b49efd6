"""Calibrate: from a command line to the baselines of a corpus."""

from __future__ import annotations

import threading
from pathlib import Path

from qaeval import command as options
from qaeval.packages import check_before_input, check_before_rows
from qaeval.work.config import Words
from qaeval.work.reading import find_files_of, read_columns
from qaeval.work.score import stop_on_signals
from qaeval_core.calibration.baselines import calibrate as calibrate_job
from qaeval_core.configure import RunConfig
from qaeval_core.errors import ConfigError, QAEvalError
from qaeval_core.metrics.calibrated import ComplexityRecord, write_baselines, write_complexity
from qaeval_core.metrics.catalog import METRICS, metric_of
from qaeval_core.planning.compile import check_key_use
from qaeval_core.planning.job import make_job
from qaeval_core.running.local_executor import local_device
from qaeval_core.running.progress import ProgressCounter, ProgressPrinter
from qaeval_core.running.sampling import with_sample
from qaeval_core.storage.path import check_lasting


def calibrate_corpus(
    words: Words,
    *,
    corpus: str | None,
    out: Path | None,
    n_pairs: int,
    n_questions: int,
    seed: int,
) -> None:
    """Check a request, find what it asks for, and write it."""
    try:
        if not corpus:
            raise ConfigError("no corpus is named; give --corpus NAME [QA0107]")
        resolved = words.checked({})
    except QAEvalError as error:
        options.fail(error)
    try:
        found = _calibrated(resolved)
        kind = "complexity" if found == "expected_complexity" else "baseline"
        path = out or Path(f"{kind}-{corpus}.json")
        check_lasting(path, "--out")
    except QAEvalError as error:
        options.fail(error)
    if found == "expected_complexity":
        _calibrate_complexity(resolved, path, corpus=corpus, n_questions=n_questions, seed=seed)
    else:
        _calibrate_baselines(resolved, path, corpus=corpus, n_pairs=n_pairs, seed=seed)


def _calibrated(config: RunConfig) -> str:
    """Return what is found for the configured metrics: a setting of theirs.

    Raises
    ------
    ConfigError
        If a metric has none, or they differ.
    """
    kinds = {name: metric_of(own).calibrated for name, own in config.metrics.items()}
    for name, kind in kinds.items():
        if not kind:
            known = ", ".join(metric.name for metric in METRICS.values() if metric.calibrated)
            raise ConfigError(
                f"metrics.{name}: {config.metrics[name].metric} has nothing to calibrate; these "
                f"metrics have: {known} [QA0217]"
            )
    found, *others = dict.fromkeys(kinds.values())
    if others:
        raise ConfigError(f"calibrate one metric per command: {found} or {others[0]} [QA0102]")
    return found


def _calibrate_baselines(
    config: RunConfig, path: Path, *, corpus: str, n_pairs: int, seed: int
) -> None:
    try:
        _check_no_baseline(config.metrics)
        check_before_input(config)
        files = find_files_of(config, needs_out=False, is_local=True)
        config, found, columns = read_columns(config, files)
        check_before_rows(config)
        found = with_sample(config, found)
        job = make_job(config, found, device=local_device(config.cluster))
    except QAEvalError as error:
        options.fail(error)
    for line in columns:
        options.say(f"note: {line}")
    try:
        content = calibrate_job(job, corpus=corpus, n_pairs=n_pairs, seed=seed)
    except QAEvalError as error:
        options.fail(error, code=options.EXIT_INCOMPLETE)
    write_baselines(path, content)
    for record in content.baselines:
        low, high = record.interval_95
        options.show(
            f"b_{record.part} = {record.value:.4f} [{low:.4f}, {high:.4f}], {record.n_pairs:,} "
            f"pairs, {record.n_dropped:,} dropped for overlap, {record.n_undefined:,} undefined"
        )
    options.show(f"baselines: {path}")


def _calibrate_complexity(
    config: RunConfig, path: Path, *, corpus: str, n_questions: int, seed: int
) -> None:
    # Imported here: HTTP takes a tenth of a second that other runs need not pay.
    from qaeval_core.calibration.complexity import (
        calibrate_complexity,
        calibration_roles,
        with_journal,
    )

    try:
        config = with_journal(config, path.with_suffix(".journal"))
        files = find_files_of(config, needs_out=False, is_local=True)
        config, found, columns = read_columns(config, files, roles=calibration_roles(config))
        key_lines = check_key_use(config)
        found = with_sample(config, found)
    except QAEvalError as error:
        options.fail(error)
    for line in [*columns, *key_lines]:
        options.say(f"note: {line}")
    n_rows = sum(file.n_rows for file in found.files)
    n_asked = min(n_questions, n_rows if found.sample is None else found.sample.n_rows)
    counter = ProgressCounter()
    (name,) = config.metrics
    stop = threading.Event()
    stop_on_signals(stop)

    interval_s = config.scoring.progress_s
    try:
        with ProgressPrinter(name, n_rows_total=n_asked, interval_s=interval_s) as printer:

            def on_batch(n_tokens: int, n_padded_tokens: int, share: float) -> None:
                counter.add(share * n_asked, n_tokens, n_padded_tokens)
                printer.update(counter.snapshot())

            record = calibrate_complexity(
                config, found, n_questions=n_questions, seed=seed, on_batch=on_batch, stop=stop
            )
        write_complexity(path, record, corpus=corpus)
    except ConfigError as error:
        options.fail(error)
    except QAEvalError as error:
        options.fail(error, code=options.EXIT_INCOMPLETE)
    _show_complexity(record, path)


def _show_complexity(record: ComplexityRecord, path: Path) -> None:
    taken = ", ".join(f"{n:,} took {steps}" for steps, n in record.n_steps.items())
    options.show(
        f"e = {record.paper:g} (profile paper), {record.authors:.4g} (authors), {record.n_runs:,} "
        f"replies to {record.n_questions:,} questions, {record.n_unnatural:,} unnatural, "
        f"{record.n_unreadable:,} unreadable, {record.n_failed:,} failed"
    )
    options.show(f"steps of natural ones: {taken}")
    options.show(f"expected complexity: {path}")


def _check_no_baseline(metrics: object) -> None:
    for name, settings in dict(metrics).items():  # type: ignore[call-overload]
        if settings.baseline is not None:
            raise ConfigError(
                f"metrics.{name}.baseline is what calibrate finds; leave it out [QA0217]"
            )
        if settings.profile == "authors":
            raise ConfigError(
                f"metrics.{name}: profile=authors never rescales, so there is nothing to calibrate "
                "[QA0217]"
            )
