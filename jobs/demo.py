"""demo: the main job on the embedded models and the sample corpus."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import polars as pl
import pyarrow.parquet as pq
import typer

from jobs import options
from jobs.score import run_on_ray
from qaeval_core.configure import load_config
from qaeval_core.errors import QAEvalError
from qaeval_core.sample import GOOD_LABELS, sample_table
from qaeval_core.scoring.job import read_inputs
from qaeval_core.stats.auc import auc

EPILOG = """Example:

  qaeval demo --out demo_out
"""

_METRICS = ("qrelscore", "qrelscore_lrm", "qrelscore_grg")


def demo(
    out: Annotated[Path, typer.Option(help="folder for the sample, scores and report")] = Path(
        "demo_out"
    ),
) -> None:
    """Score the sample corpus on a local Ray and show how labels differ."""
    started = time.perf_counter()
    sample = out / "sample.parquet"
    sample.parent.mkdir(parents=True, exist_ok=True)
    if not sample.exists():
        pq.write_table(sample_table(), sample)
    try:
        config = load_config(
            overrides={
                "input.paths": [str(sample)],
                "output.path": str(out / "scores"),
                "output.carry": ["label"],
            }
        )
        run_on_ray(config, read_inputs(config))
    except QAEvalError as error:
        options.fail(error, code=options.EXIT_BAD_REQUEST)
    scores = pl.read_parquet(out / "scores" / "scores" / "sample.parquet")
    print()
    print(label_table(scores))
    for metric in _METRICS:
        good = scores.filter(pl.col("label").is_in(GOOD_LABELS))[metric].to_numpy()
        bad = scores.filter(~pl.col("label").is_in(GOOD_LABELS))[metric].to_numpy()
        print(
            f"AUC of good against bad questions, {metric}: {auc(positive=good, negative=bad):.3f}"
        )
    print(f"done in {time.perf_counter() - started:.0f} s; scores: {out / 'scores' / 'scores'}")


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
