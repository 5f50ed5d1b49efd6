"""Demo: the sample is scored twice over, and what its scores say is printed."""

from __future__ import annotations

import shlex
import shutil
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

from qaeval import command as options
from qaeval.packages import check_before_rows
from qaeval.work.score import stop_on_signals
from qaeval_core.configure import RunConfig, load_config
from qaeval_core.errors import ConfigError, PackagesMissingError, QAEvalError, RunStoppedError
from qaeval_core.models.artifact import Artifact, artifact_root, ensure_artifact
from qaeval_core.planning.compile import needed_requests
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.running.local_executor import LocalPieceExecutor, local_device
from qaeval_core.sample import generated_table, hard_table, natural_table
from qaeval_core.scoring.run import run_job
from qaeval_core.stats.ranking import auc
from qaeval_core.storage.path import check_lasting

# Metrics and the column that each is compared by: those of words, then those of models.
_WORDS = {"exact_match": "exact_match", "f1": "f1"}
_MODELS = {"sas": "sas", "bertscore": "bertscore_f1"}
_N_EXPORTS = 2
_STOPPED = RunStoppedError("stopped as asked; run the same command again to resume [QA0005]")

NATURAL = """\
1. Natural answers: {n} questions, each with a right and a wrong answer.
   AUC: how often a right answer scores above a wrong one. 1 is perfect, 0.5 is a coin.
"""
HARD = """
2. A small hard set: {n} questions, chosen so that shared words mislead.
   Most right answers are reworded. Wrong ones change a number, a yes or a name.
"""
# Why a figure is what it is; tests hold the figures that they speak of.
NATURAL_NOTES = {
    "exact_match": "Most right answers are not word for word the gold answer, and score 0.",
    "f1": "Right answers share words with the gold answer; few wrong ones do.",
    "sas": "The model judges meaning, but gives some wrong numbers a high score.",
    "bertscore": "Words with a similar meaning count, too.",
}
HARD_NOTES = {
    "exact_match": "Only literal answers score, so most right and all wrong ones tie at 0.",
    "f1": "Worse than a coin: wrong answers share more words than reworded ones.",
    "sas": "The model sees a flipped yes or no, but not a changed number.",
    "bertscore": "A coin: a changed number looks more similar than a rewording.",
}

_NEXT = """
The hard set shows where metrics fail, not how good they are: docs/validity.md has judged sets.

Try next
  {qaeval} explain {hard} --row hard.parquet:0 --html row.html
      where the scores of one row come from
  {qaeval} correlate {hard} --human is_right --compare f1,sas
      whether metrics agree with judgments
  {qaeval} score {questions} --out questions
      whether generated questions lead to their answers
  {qaeval} score YOURS.parquet --out out --column candidate=YOUR_COLUMN
      your own data

The report of part 1: {report}"""


def run_demo(out: Path) -> None:
    """Score the samples below a folder, and say what their scores tell."""
    started = time.perf_counter()
    stop = threading.Event()
    stop_on_signals(stop)
    try:
        check_lasting(out, "--out")
        words, natural, hard = _configs(out)
        check_before_rows(words, natural, hard)
        # Again, with fewer metrics, it would say that results are ignored.
        is_again = (out / "natural" / "run.json").exists()
        scores = _score(natural if is_again else words, stop)
        options.show_lines(NATURAL.format(n=scores.height // 2))
        _show(scores, _WORDS, NATURAL_NOTES)
        first_s = time.perf_counter() - started
        with ThreadPoolExecutor(_N_EXPORTS) as pool:
            for export in _start_exports(pool, natural):
                export.result()
        _show(_score(natural, stop), _MODELS, NATURAL_NOTES)
        scores = _score(hard, stop)
    except (ConfigError, PackagesMissingError) as error:
        options.fail(error)
    except QAEvalError as error:
        # Ctrl-C also ends the exports, which then say that they failed.
        options.fail(_STOPPED if stop.is_set() else error, code=options.EXIT_INCOMPLETE)
    options.show_lines(HARD.format(n=scores.height // 2))
    _show(scores, {**_WORDS, **_MODELS}, HARD_NOTES)
    wall_s = time.perf_counter() - started
    options.say(f"done in {wall_s:.0f} s; first scores after {first_s:.1f} s")
    options.show_lines(next_steps(out) + "\n")


def _configs(out: Path) -> tuple[RunConfig, RunConfig, RunConfig]:
    """Write the samples unless they are there; return the runs, first the quickest."""
    out.mkdir(parents=True, exist_ok=True)
    tables = {
        "natural": natural_table(),
        "hard": hard_table(),
        "questions": generated_table(),
    }
    for name, rows in tables.items():
        if not (out / f"{name}.parquet").exists():
            pq.write_table(rows, out / f"{name}.parquet")
    return (
        _config(out, "natural", _WORDS),
        _config(out, "natural", [*_WORDS, *_MODELS]),
        _config(out, "hard", [*_WORDS, *_MODELS]),
    )


def _config(out: Path, name: str, metrics: Iterable[str]) -> RunConfig:
    return load_config(
        overrides={
            "input.paths": [str(out / f"{name}.parquet")],
            "input.columns": {"candidate": "prediction"},
            "output.path": str(out / name),
            "output.carry": ["is_right"],
            **{f"metrics.{metric}": {} for metric in metrics},
        }
    )


def _start_exports(pool: ThreadPoolExecutor, config: RunConfig) -> list[Future[Artifact]]:
    """Start to build the models of a run that are not there yet; return what builds them."""
    root = artifact_root(config.models.artifacts_path)
    requests = needed_requests(config, device=local_device(config.cluster))
    return [pool.submit(ensure_artifact, root, request) for request in requests]


def _score(config: RunConfig, stop: threading.Event) -> pl.DataFrame:
    """Run in this process; return the scores.

    Raises
    ------
    RunStoppedError
        If asked to stop.
    """
    executor = LocalPieceExecutor(stop=stop)
    job = make_job(config, read_inputs(config), device=local_device(config.cluster))
    if run_job(job, executor, say=options.say).stopped:
        raise _STOPPED
    return pl.read_parquet(Path(config.output.path or "") / "scores" / "*.parquet")


def _show(scores: pl.DataFrame, columns: dict[str, str], notes: dict[str, str]) -> None:
    """Print, a metric a line, how well it tells right answers from wrong ones, and why."""
    for metric, column in columns.items():
        right, wrong = (scores.filter(pl.col("is_right") == own)[column] for own in (1, 0))
        found = auc(positive=right.to_numpy(), negative=wrong.to_numpy())
        options.show(f"   {metric:<12} AUC {found:.3f}   {notes[metric]}")


def next_steps(out: Path) -> str:
    """Return what to try after the demo, as commands that run, and where the report lies."""
    program = sys.argv[0] if Path(sys.argv[0]).name == "qaeval" else "qaeval"
    return _NEXT.format(
        qaeval="qaeval" if shutil.which("qaeval") else shlex.quote(program),
        hard=shlex.quote(str(out / "hard")),
        questions=shlex.quote(str(out / "questions.parquet")),
        report=out / "natural" / "report.html",
    )
