"""Benchmark of filter's labels: what columns are worth, alone and together, and what is certified.

QGEval's and quiz_design's questions with people's verdicts; ranks are scores that need no
reference. Areas under the curve are of groups held out, ten folds. Certificates: so many labels are
drawn at random, 500 times; how much of the corpus is certified, how often nothing is, how often the
certified part is not as good as promised, and how often the naive rule's is not: the largest share
whose labels look good enough. A learned rank learns on half of the labelled passages and certifies
on the rest. Prints numbers, and a table for docs/filter.md.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.judged_sets import SETS, JudgedSet
from benchmarks.measure import environment
from benchmarks.validity import score
from qaeval_core.stats.certificate import N_SHARES, certify, kept_rows, share_index
from qaeval_core.stats.learned_rank import fit_rank, is_learning

METRICS = ("roundtrip", "qrelscore", "bertscore_free", "q_bleu_free")
COLUMNS = (
    "roundtrip",
    "roundtrip_confidence",
    "roundtrip_null_margin",
    "qrelscore",
    "bertscore_free_precision",
    "q_bleu_free",
)
_N_DRAWS = 500
_N_LABELS = (400, 800)
_TARGETS = {"qgeval": (0.80, 0.85), "quiz_design": (0.50, 0.55)}
_CONFIDENCE = 0.95


class Corpus:
    """Questions, scores and verdicts of a judged set."""

    def __init__(self, judged: JudgedSet, *, folder: Path | None, n_threads: int) -> None:
        table = score(judged, metrics=METRICS, n_threads=n_threads, folder=folder)
        self.names = [name for name in COLUMNS if name in table.columns]
        self.features = table.select(self.names).cast(float).fill_null(float("nan")).to_numpy()
        self.is_good = table["is_good"].to_numpy()
        groups, self.group = np.unique(table["cluster"].to_numpy(), return_inverse=True)
        self.group_names = np.array([f"passage {i}" for i in range(len(groups))])

    def learned(self, rows: NDArray[np.intp], seed: int) -> NDArray[np.float64]:
        """Return the rank of all rows, learned from some."""
        rank = fit_rank(
            self.features[rows],
            dict.fromkeys(self.names, ""),
            is_good=self.is_good[rows],
            groups=self.group[rows],
            seed=seed,
        )
        return rank.score(self.features)


def areas(corpus: Corpus) -> dict[str, float | None]:
    """Return the area under the curve of each column, and of the combination, held out."""
    found = fit_rank(
        corpus.features,
        dict.fromkeys(corpus.names, ""),
        is_good=corpus.is_good,
        groups=corpus.group,
        seed=0,
    )
    alone = {column.name: column.single_auc for column in found.columns}
    return {**alone, "learned": found.cv_auc}


def certified(
    corpus: Corpus, *, column: str | None, n_labels: int, target: float, rng: np.random.Generator
) -> dict[str, float]:
    """Return what draws of labels certify; a learned rank without a column."""
    shares, naive = [], []
    n_missed = n_missed_naively = 0
    for draw in range(_N_DRAWS):
        rows = rng.choice(len(corpus.is_good), n_labels, replace=False)
        own, clusters = rows, None
        if column is None:
            learns = is_learning(corpus.group_names[corpus.group[rows]], seed=draw)
            rank, own = corpus.learned(rows[learns], draw), rows[~learns]
            clusters = np.unique(corpus.group[own], return_inverse=True)[1]
        else:
            rank = np.nan_to_num(corpus.features[:, corpus.names.index(column)], nan=-np.inf)
        # Ties by chance, as a filter's are by hash.
        order = np.lexsort([rng.random(len(rank)), -rank])
        place = np.empty(len(order), np.intp)
        place[order] = np.arange(len(order))
        truth = np.cumsum(corpus.is_good[order]) / np.arange(1, len(order) + 1)
        found = certify(
            share_index(place[own], n_rows=len(order)),
            corpus.is_good[own],
            target=target,
            confidence=_CONFIDENCE,
            clusters=clusters,
        )
        chosen = found.chosen.share if found.chosen else 0.0
        shares.append(chosen)
        sizes = dict(zip((s.share for s in found.shares), kept_rows(len(order)), strict=True))
        n_missed += chosen > 0 and truth[sizes[chosen] - 1] < target
        looks = [s.share for s in found.shares if s.precision is not None and s.precision >= target]
        naive.append(max(looks, default=0.0))
        n_missed_naively += naive[-1] > 0 and truth[sizes[naive[-1]] - 1] < target
    return {
        "mean_share": float(np.mean(shares)),
        "none": float(np.mean(np.array(shares) == 0)),
        "missed": n_missed / _N_DRAWS,
        "naive_share": float(np.mean(naive)),
        "naive_missed": n_missed_naively / _N_DRAWS,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both sets."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.filter_labels")
    parser.add_argument("--sets", default="qgeval,quiz_design", help="default %(default)s")
    parser.add_argument("--scores", type=Path, help="folder for scores; those there are taken")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    chosen = parser.parse_args(arguments)
    found: dict[str, object] = {"environment": environment(chosen.threads), "shares": N_SHARES}
    print(json.dumps(found["environment"]))
    for name in chosen.sets.split(","):
        judged = SETS[name]()
        assert isinstance(judged, JudgedSet)
        corpus = Corpus(judged, folder=chosen.scores, n_threads=chosen.threads)
        auc = areas(corpus)
        found[name] = own = {"rows": len(corpus.is_good), "good": float(corpus.is_good.mean())}
        own["auc"] = auc
        print(f"\n{name}: {own['rows']:,} questions, {own['good']:.1%} good")
        print("| column | AUC |\n| --- | --- |")
        for column, value in auc.items():
            print(f"| `{column}` | {'' if value is None else f'{value:.3f}'} |")
        best = max(corpus.names, key=lambda column: auc[column] or 0.0)
        print("\n| rank | precision | labels | kept | nothing certified | missed | naive missed |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for column in dict.fromkeys([best, "roundtrip", None]):
            for target in _TARGETS[name]:
                for n_labels in _N_LABELS:
                    rng = np.random.default_rng(0)
                    one = certified(
                        corpus, column=column, n_labels=n_labels, target=target, rng=rng
                    )
                    own[f"{column or 'learned'}-{target}-{n_labels}"] = one
                    print(
                        f"| `{column or 'learned'}` | {target:.2f} | {n_labels} | "
                        f"{one['mean_share']:.0%} | {one['none']:.0%} | {one['missed']:.1%} | "
                        f"{one['naive_missed']:.0%} |",
                        flush=True,
                    )
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2, default=float) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
