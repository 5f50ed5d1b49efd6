"""demo: the main job on the embedded models and the sample corpus."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from qaeval import arguments
from qaeval import command as options
from qaeval.packages import check_before_rows
from qaeval.score import run_local, run_on_ray
from qaeval_core.configure import RunConfig, load_config
from qaeval_core.errors import QAEvalError
from qaeval_core.models.artifact import Artifact, default_root, ensure_artifact
from qaeval_core.planning.compile import needed_requests
from qaeval_core.planning.job import Inputs, read_inputs
from qaeval_core.running.local_executor import local_device
from qaeval_core.sample import GOOD_LABELS, answers_table, sample_table
from qaeval_core.stats.ranking import auc

EPILOG = """Examples:

  qaeval demo

  qaeval demo --out demo_out

Exit codes: 0 done; 1 failed.
"""

_METRICS = ("qrelscore", "qrelscore_lrm", "qrelscore_grg")
# Metrics of the answers, and the column that each is compared by.
_WORD_COLUMNS = {
    "exact_match": "exact_match",
    "f1": "f1",
    "bleu_1": "bleu_1",
    "rouge_l": "rouge_l",
    "meteor": "meteor",
}
_MODEL_COLUMNS = {
    "bi_encoder": "bi_encoder",
    "sas": "sas",
    "bertscore": "bertscore_f1",
    "kpqa": "kpqa_bertscore",
}
# Six passages: a causal language model takes a second for five questions on two CPUs.
_N_QUESTIONS = 48
_N_EXPORTS = 2

_NEXT = """
look at
  {answers}/scores/answers.parquet   an answer a row, its scores, and why one is undefined
  {scores}/report.json               how scores were made, means, intervals, rows/s

try next
  {qaeval} explain {answers} --row answers.parquet:0 --html row.html
      where the scores of one row come from
  {qaeval} correlate {answers} --human is_right --compare f1,sas
      which metric to believe
  {qaeval} score {sample} --out {scores} --carry label
      the questions that are left; what is scored is not scored again
  {qaeval} score YOURS.parquet --out out --metrics f1,rouge_l --column candidate=YOUR_COLUMN
      your own data"""


def demo(
    out: Annotated[
        Path,
        arguments.option(
            group=arguments.OUTPUT,
            metavar="DIR",
            text="Folder for the sample, its scores and reports.",
        ),
    ] = Path("demo_out"),
) -> None:
    """Score a small sample with the bundled models.

    It ends with the paths of the results, and commands to try next.
    """
    # Imported here: Ray takes a second that --help need not pay.
    from qaeval.on_ray.cluster import connected

    started = time.perf_counter()
    try:
        words, answers, questions = _configs(out)
        check_before_rows(words, answers, questions)
        options.show_lines(answer_table(_score(words, run_local), _WORD_COLUMNS) + "\n")
        first_s = time.perf_counter() - started
        with ThreadPoolExecutor(_N_EXPORTS) as pool:
            of_answers, of_questions = _start_exports(pool, answers, questions)
            for export in of_answers:
                export.result()
            table = answer_table(_score(answers, run_local), _MODEL_COLUMNS)
            options.show_lines(f"\n{table}\n")
            with connected(questions.cluster):
                for export in of_questions:
                    export.result()
                scores = _score(questions, run_on_ray)
    except QAEvalError as error:
        options.fail(error)
    options.show_lines("\n" + label_table(scores))
    for metric in _METRICS:
        is_good = pl.col("label").is_in(GOOD_LABELS)
        good, bad = (scores.filter(part)[metric].to_numpy() for part in (is_good, ~is_good))
        options.show(
            f"AUC of good against bad questions, {metric}: {auc(positive=good, negative=bad):.3f}"
        )
    wall_s = time.perf_counter() - started
    options.show_lines(next_steps(out))
    options.show("")
    options.show(f"done in {wall_s:.0f} s; first scores after {first_s:.0f} s")


def _configs(out: Path) -> tuple[RunConfig, RunConfig, RunConfig]:
    """Write the samples unless they are there; return the runs, first the quickest."""
    shortest_first = sorted(sample_table().to_pylist(), key=lambda row: len(row["context"]))
    questions = pa.Table.from_pylist(shortest_first)
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in (("answers.parquet", answers_table()), ("sample.parquet", questions)):
        if not (out / name).exists():
            pq.write_table(rows, out / name)
    of_answers = {
        "input.paths": [str(out / "answers.parquet")],
        "input.columns": {"candidate": "prediction"},
        "output.path": str(out / "answers"),
        "output.carry": ["kind", "is_right"],
    }
    of_questions = {
        "input.paths": [str(out / "sample.parquet")],
        "input.limit": _N_QUESTIONS,
        "output.path": str(out / "scores"),
        "output.carry": ["label"],
    }
    words: dict[str, object] = {f"metrics.{name}": {} for name in _WORD_COLUMNS}
    models: dict[str, object] = {f"metrics.{name}": {} for name in _MODEL_COLUMNS}
    return (
        load_config(overrides={**of_answers, **words}),
        load_config(overrides={**of_answers, **words, **models}),
        load_config(overrides=of_questions),
    )


def _start_exports(
    pool: ThreadPoolExecutor, answers: RunConfig, questions: RunConfig
) -> tuple[list[Future[Artifact]], list[Future[Artifact]]]:
    """Start to build the models of two runs that are not there yet; return what builds them."""
    device = local_device(answers.cluster)
    of_answers = needed_requests(answers, device=device)
    of_questions = needed_requests(questions, device=device)
    root = Path(answers.models.artifacts_path or default_root())
    # The causal language model takes as long as all others: it comes first, and they beside it.
    of_questions.sort(key=lambda request: request.role != "causal_lm")
    order = [of_questions[0], *of_answers, *of_questions[1:]]
    started = {each.folder_name: pool.submit(ensure_artifact, root, each) for each in order}
    return (
        [started[request.folder_name] for request in of_answers],
        [started[request.folder_name] for request in of_questions],
    )


def _score(config: RunConfig, run: Callable[[RunConfig, Inputs], object]) -> pl.DataFrame:
    """Run in this process or on Ray; return the scores."""
    run(config, read_inputs(config))
    return pl.read_parquet(Path(config.output.path or "") / "scores" / "*.parquet")


def next_steps(out: Path) -> str:
    """Return what to look at and what to try after the demo, as commands that run."""
    program = sys.argv[0] if Path(sys.argv[0]).name == "qaeval" else "qaeval"
    return _NEXT.format(
        qaeval="qaeval" if shutil.which("qaeval") else shlex.quote(program),
        answers=shlex.quote(str(out / "answers")),
        scores=shlex.quote(str(out / "scores")),
        sample=shlex.quote(str(out / "sample.parquet")),
    )


def answer_table(scores: pl.DataFrame, columns: Mapping[str, str]) -> str:
    """Return, by metric, the AUC of right answers against all wrong ones and each kind of them."""
    right = scores.filter(pl.col("is_right") == 1)
    wrong = scores.filter(pl.col("is_right") == 0)
    kinds = wrong["kind"].unique().sort().to_list()
    head = "".join(f"{name:>16}" for name in ("all wrong", *kinds))
    lines = [f"{'AUC of right against':<20}" + head]
    for column in columns.values():
        groups = [wrong, *(wrong.filter(pl.col("kind") == kind) for kind in kinds)]
        found = [
            auc(positive=right[column].to_numpy(), negative=group[column].to_numpy())
            for group in groups
        ]
        lines.append(f"{column:<20}" + "".join(f"{value:>16.3f}" for value in found))
    return "\n".join(lines)


def label_table(scores: pl.DataFrame) -> str:
    """Return count, mean and quantiles of qrelscore by label, and AUC of good against it."""
    rows = scores.group_by("label").agg(
        pl.len().alias("n"),
        pl.col("qrelscore").mean().alias("mean"),
        *(pl.col("qrelscore").quantile(q).alias(f"{q:.0%}") for q in (0.05, 0.5, 0.95)),
    )
    head = ("n", "mean", "5%", "50%", "95%", "AUC")
    lines = [f"{'qrelscore by label':<20}" + "".join(f"{name:>9}" for name in head)]
    good = scores.filter(pl.col("label").is_in(GOOD_LABELS))["qrelscore"].to_numpy()
    for row in rows.sort("mean", descending=True).iter_rows():
        label, n, *values = row
        if label not in GOOD_LABELS:
            own = scores.filter(pl.col("label") == label)["qrelscore"].to_numpy()
            values.append(auc(positive=good, negative=own))
        lines.append(f"{label:<20}{n:>9}" + "".join(f"{value:>9.4f}" for value in values))
    return "\n".join(lines)


def main() -> None:
    """Run ``python -m qaeval.demo``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=EPILOG)(demo)
    app()


if __name__ == "__main__":
    main()
