"""Benchmark of roundtrip: which questions people found good.

The questions are QGEval's: 15 systems on 100 passages of SQuAD, good where answerability,
consistency and answer consistency are each rated 2.5 or more; intervals draw whole passages. Prints
numbers and never judges one. Its speed is in `benchmarks.answers`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from qaeval_core import Scorer
from qaeval_core.models.cpu import available_cpus
from qaeval_core.stats.bootstrap import bootstrap, percentile_interval
from qaeval_core.stats.ranking import auc, weighted_auc

_QGEVAL = Path(__file__).resolve().parents[2] / "shared/data/qgeval/qgeval_squad.parquet"
_RATED = ("answerability", "consistency", "answer_consistency")
_LEAST = 2.5
_N_RESAMPLES = 1000
_METRICS = ("roundtrip", "qrelscore", "bertscore", "rouge_l")
_ROLES = ("candidate", "context", "answer")


def run_judged(*, n_threads: int) -> dict[str, object]:
    """Print the AUC of each metric, and of the peers' columns, for questions that are good."""
    table = pl.read_parquet(_QGEVAL)
    is_good = np.all([table[name].to_numpy() >= _LEAST for name in _RATED], axis=0)
    _, passage = np.unique(table["passage"].to_numpy(), return_inverse=True)
    rows = table.select(
        candidate="question",
        question="question",
        context="passage",
        answer="answer",
        references=pl.concat_list("reference"),
    )
    scores = Scorer(_METRICS, n_threads=n_threads).score(rows)
    columns = {name: scores[name] for name in scores.columns if scores[name].dtype.is_float()}
    columns |= {
        name: table[name]
        for name in table.columns
        if name.startswith("peer_") and table[name].dtype.is_float()
    }
    print(f"{len(rows):,} questions on {passage.max() + 1} passages, {is_good.mean():.1%} good")
    found: dict[str, object] = {"n_rows": len(rows), "share_good": float(is_good.mean())}
    for name, column in columns.items():
        values = column.cast(pl.Float64).to_numpy()
        defined = ~np.isnan(values)
        own, good = values[defined], is_good[defined]
        area = auc(positive=own[good], negative=own[~good])
        interval = percentile_interval(
            bootstrap(
                partial(weighted_auc, own, good),
                len(own),
                n_resamples=_N_RESAMPLES,
                seed=0,
                clusters=np.unique(passage[defined], return_inverse=True)[1],
            )
        )
        n_undefined = int((~defined).sum())
        found[name] = {
            "auc": area,
            "interval": [interval.low, interval.high],
            "undefined": n_undefined,
        }
        print(
            f"  {name:<32}{area:.3f}   [{interval.low:.3f} .. {interval.high:.3f}]"
            f"{f'   {n_undefined} undefined' if n_undefined else ''}"
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Look at the judged questions."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.roundtrip")
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    chosen = parser.parse_args(arguments)
    found = run_judged(n_threads=chosen.threads)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2, default=float) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
