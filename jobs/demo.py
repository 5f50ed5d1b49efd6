"""demo: the main job on the embedded models and the sample corpus."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from jobs import options
from jobs.score import run_on_ray
from qaeval_core.configure import load_config
from qaeval_core.errors import QAEvalError
from qaeval_core.job import read_inputs
from qaeval_core.sample import GOOD_LABELS, answers_table, sample_table
from qaeval_core.stats.ranking import auc

EPILOG = """Example:

  qaeval demo --out demo_out
"""

_METRICS = ("qrelscore", "qrelscore_lrm", "qrelscore_grg")
# Metrics of the answers, and the column that each is compared by.
_ANSWER_COLUMNS = {
    "exact_match": "exact_match",
    "f1": "f1",
    "bleu_1": "bleu_1",
    "rouge_l": "rouge_l",
    "meteor": "meteor",
    "bi_encoder": "bi_encoder",
    "sas": "sas",
    "bertscore": "bertscore_f1",
    "kpqa": "kpqa_bertscore",
}


def demo(
    out: Annotated[Path, typer.Option(help="folder for the sample, scores and report")] = Path(
        "demo_out"
    ),
) -> None:
    """Score the sample's questions and answers on a local Ray and show how labels differ."""
    started = time.perf_counter()
    questions = _score(
        sample_table(), out / "sample.parquet", out / "scores", {"output.carry": ["label"]}
    )
    options.show("")
    options.show_lines(label_table(questions))
    for metric in _METRICS:
        good = questions.filter(pl.col("label").is_in(GOOD_LABELS))[metric].to_numpy()
        bad = questions.filter(~pl.col("label").is_in(GOOD_LABELS))[metric].to_numpy()
        options.show(
            f"AUC of good against bad questions, {metric}: {auc(positive=good, negative=bad):.3f}"
        )
    options.show("")
    answers = _score(
        answers_table(),
        out / "answers.parquet",
        out / "answers",
        {
            **{f"metrics.{name}": {} for name in _ANSWER_COLUMNS},
            "input.columns": {"candidate": "prediction"},
            "output.carry": ["kind", "is_right"],
        },
    )
    options.show("")
    options.show_lines(answer_table(answers))
    wall_s = time.perf_counter() - started
    options.show(
        f"done in {wall_s:.0f} s; scores: {out / 'scores' / 'scores'}, {out / 'answers' / 'scores'}"
    )


def _score(rows: pa.Table, path: Path, out: Path, overrides: Mapping[str, object]) -> pl.DataFrame:
    """Write a sample unless it is there, score it on a local Ray, and return its scores."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        pq.write_table(rows, path)
    try:
        config = load_config(
            overrides={**overrides, "input.paths": [str(path)], "output.path": str(out)}
        )
        run_on_ray(config, read_inputs(config))
    except QAEvalError as error:
        options.fail(error, code=options.EXIT_BAD_REQUEST)
    return pl.read_parquet(out / "scores" / path.name)


def answer_table(scores: pl.DataFrame) -> str:
    """Return, by metric, the AUC of right answers against all wrong ones and each kind of them."""
    right = scores.filter(pl.col("is_right") == 1)
    wrong = scores.filter(pl.col("is_right") == 0)
    kinds = wrong["kind"].unique().sort().to_list()
    head = "".join(f"{name:>16}" for name in ("all wrong", *kinds))
    lines = [f"{'AUC of right against':<20}" + head]
    for column in _ANSWER_COLUMNS.values():
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
    """Run ``python -m jobs.demo``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=EPILOG)(demo)
    app()


if __name__ == "__main__":
    main()
